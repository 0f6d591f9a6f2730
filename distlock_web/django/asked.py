"""``once`` in Django: who asks for what."""

from __future__ import annotations

import json
from collections.abc import Iterator
from io import BytesIO
from typing import Any

from asgiref.sync import sync_to_async
from django.contrib.sessions.backends.signed_cookies import SessionStore
from django.core.exceptions import DisallowedHost, RequestDataTooBig
from django.http import HttpRequest
from django.http.request import RawPostDataException
from django.utils.datastructures import MultiValueDict

from ..core.errors import ConfigurationError, KeyUnavailable
from ..core.keys import key_part
from ..locks import hooks
from ..web.asked import (
    CREDENTIALS,
    MAX_COMPARED,
    File,
    content_of,
    data_parts,
    digest_of,
    form_parts,
    is_form,
    read_before,
    refuse_emptied,
    user_parts,
)

#: The messages to show once, where they are in the session.
_MESSAGES = "_messages"
_HOW = "request.body, as in json.loads(request.body)"


async def asked(args: tuple[object, ...], request: Any, *, asynchronous: bool) -> str:
    """Who asks for what, of a view that was called with these arguments."""
    # REST framework's around the request: it knows a user by more, and its parsers may have read the body.
    wrapper: Any = next((each for each in args[:2] if getattr(each, "_request", None) is request), request)
    user = getattr(wrapper, "user", None)
    if not asynchronous:
        return _digest(request, wrapper, user)
    user = await hooks.loaded(user)
    if is_form(str(request.content_type)):  # whose files may be long
        return await sync_to_async(_digest)(request, wrapper, user)
    return _digest(request, wrapper, user)


def _digest(request: Any, wrapper: Any, user: Any) -> str:
    where = (str(request.method), _host(request), request.get_full_path(), str(request.content_type))
    return digest_of(*_who(request, wrapper, user), *where, *_body(request, wrapper))


def _host(request: HttpRequest) -> str:
    """Whose site it is: behind a proxy, as the settings say, all of them may have one ``Host``."""
    try:
        return request.get_host()
    except DisallowedHost:  # which is for Django to refuse: it can be compared all the same
        return json.dumps([request.headers.get(name) for name in ("Host", "X-Forwarded-Host")])


def _who(request: HttpRequest, wrapper: Any, user: Any) -> Iterator[str]:
    # Not `is None`: a lazy object may stand for None.
    if not isinstance(user, type(None)) and getattr(user, "is_authenticated", True):
        known = hasattr(user, "is_authenticated")
        yield from user_parts(user, getattr(user, "pk", None) if known else None)
        return
    yield from ("session", _session(getattr(request, "session", None)))
    yield from (request.headers.get(name, "") for name in CREDENTIALS)
    yield _named(getattr(wrapper, "auth", None))


def _named(auth: object) -> str:
    """By what a program is known to REST framework or Ninja: a token, a row; "" of what has no stable text."""
    try:
        return key_part(auth, "request.auth") or ""
    except (ConfigurationError, KeyUnavailable):
        return ""


def _session(session: Any) -> str:
    if isinstance(session, SessionStore):  # its key is the cookie, which is signed anew with each answer
        return content_of((name, said) for name, said in session.items() if name != _MESSAGES)
    return str(getattr(session, "session_key", None))


def _body(request: Any, wrapper: Any) -> Iterator[str | bytes]:
    """What the body says, so that the view, and REST framework's ``wrapper``, still can read it."""
    if is_form(str(request.content_type)) and (request.method == "POST" or wrapper is not request):
        yield from _form(request, wrapper)
        return
    length = _length(request)
    if length > MAX_COMPARED:
        yield from ("length", str(length))
        return
    try:
        yield from ("body", _bytes(request) if length else b"")
    except RawPostDataException:
        yield from ("data", *_data(wrapper))


def _form(request: Any, wrapper: Any) -> Iterator[str]:
    was_parsed, is_kept = hasattr(request, "_post"), hasattr(request, "_body")
    if request._read_started and not is_kept and not was_parsed:
        raise read_before(_HOW)
    fields, several = list(wrapper.POST.lists()), wrapper.FILES.lists()
    files = [
        File(name, file.name, getattr(file, "content_type", None), file) for name, found in several for file in found
    ]
    if not fields and not files and was_parsed and not is_kept:  # by somebody who may have found it read
        refuse_emptied(_length(request), request.content_type, request.content_params.get("boundary", ""), _HOW)
    yield from form_parts(fields, files)


def _length(request: Any) -> int:
    """In bytes. WSGI has no body of unknown length; under ASGI it is in a file."""
    said = request.META.get("CONTENT_LENGTH") or ""
    if said.isdecimal():
        return int(said)
    stream = getattr(request, "_stream", None)
    if stream is None or not stream.seekable():
        return 0
    place = stream.tell()
    length: int = stream.seek(0, 2)
    stream.seek(place)
    return length


def _bytes(request: Any) -> bytes:
    try:
        return bytes(request.body)
    except RequestDataTooBig:  # a limit of the project's, for those who read it at once
        read: bytes = request.read()
        # As if nobody had: a view that reads it in pieces has no limit.
        request._stream, request._read_started = BytesIO(read), False
        return read


def _data(wrapper: Any) -> Iterator[str]:
    """What REST framework's parser has made of the body, which it has read before: for a key with {request.data}."""
    data = vars(wrapper).get("_full_data")
    # A class stands there until it parses, and an empty form where it found nothing.
    if data is None or isinstance(data, type) or (isinstance(data, MultiValueDict) and not data):
        raise read_before(_HOW)
    return data_parts(dict(data.lists()) if isinstance(data, MultiValueDict) else data)
