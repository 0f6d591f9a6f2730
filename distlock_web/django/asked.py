"""``once`` in Django: who asks for what."""

from __future__ import annotations

import json
from collections.abc import Iterator
from io import BytesIO
from typing import Any

from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib.sessions.backends.signed_cookies import SessionStore
from django.core.exceptions import DisallowedHost, RequestDataTooBig
from django.http import HttpRequest
from django.http.request import RawPostDataException
from django.utils.datastructures import MultiValueDict

from ..core.errors import ConfigurationError, KeyUnavailable
from ..core.keys import key_part
from ..locks import hooks
from ..locks.hooks import Asked
from ..web.asked import (
    CREDENTIALS,
    MAX_COMPARED,
    File,
    asked_by,
    content_of,
    data_parts,
    emptied,
    form_parts,
    is_form,
    logged_in,
    nameless,
    read_before,
    was_sent_empty,
    whole_body,
)

#: The messages to show once, where they are in the session.
_MESSAGES = "_messages"
_HOW = "request.body, as in json.loads(request.body)"


async def asked(args: tuple[object, ...], request: Any, *, asynchronous: bool) -> Asked:
    """Who asks for what, of a view that was called with these arguments."""
    # REST framework's around the request: it knows a user by more, and its parsers may have read the body.
    wrapper: Any = next((each for each in args[:2] if getattr(each, "_request", None) is request), request)
    user = getattr(wrapper, "user", None)
    if not asynchronous:
        return _asked(request, wrapper, user)
    user = await hooks.loaded(user)
    if is_form(str(request.content_type)):  # whose files may be long
        return await sync_to_async(_asked)(request, wrapper, user)
    return _asked(request, wrapper, user)


def _asked(request: Any, wrapper: Any, user: Any) -> Asked:
    whose, what = list(who(request, wrapper, user)), (request.get_full_path(), str(request.content_type))
    where = (str(request.method), _host(request), *what)
    # A user; else a session, and what a program sends.
    before = whose[:3] if whose[0] == "user" else whose[: 2 + len(CREDENTIALS)]
    before += [str(request.method), request.META.get("HTTP_HOST", ""), *what]
    return asked_by(whose, where, _body(request, wrapper), before=before)


def _host(request: HttpRequest) -> str:
    """Whose site it is: behind a proxy, as the settings say, all of them may have one ``Host``."""
    try:
        return request.get_host()
    # Which is for Django to refuse: it can be compared all the same. Nor does a test's bare HttpRequest() have one.
    except (DisallowedHost, KeyError):
        return json.dumps([request.headers.get(name) for name in ("Host", "X-Forwarded-Host")])


def who(request: HttpRequest, wrapper: Any, user: Any) -> Iterator[str]:
    if (known := logged_in(user, lambda user: getattr(user, "pk", None))) is not None:
        yield from known
        return
    yield from ("session", _session(getattr(request, "session", None)))
    sent = [request.headers.get(name, "") for name in CREDENTIALS]
    yield from sent
    yield _named(getattr(wrapper, "auth", None), is_known=any(sent))
    if at_server := request.META.get("REMOTE_USER"):  # a login of the web server's, of which no user was made
        yield from ("REMOTE_USER", at_server)


def _named(auth: Any, *, is_known: bool) -> str:
    """By what a program is known to REST framework or Ninja: a token, a row. ``is_known``: by what it sent, too."""
    try:
        return key_part(auth, "request.auth") or ""
    except (ConfigurationError, KeyUnavailable) as error:
        if auth and not is_known:
            raise nameless(auth) from error
        return ""


def _session(session: Any) -> str:
    if isinstance(session, SessionStore):  # its key is the cookie, which is signed anew with each answer
        return content_of(session.items(), _MESSAGES)
    return str(getattr(session, "session_key", None))


def _body(request: Any, wrapper: Any) -> Iterator[str | bytes]:
    """What the body says, so that the view, and REST framework's ``wrapper``, still can read it."""
    if is_form(str(request.content_type)) and (form := _form(request, wrapper)) is not None:
        yield from form
        return
    length = _length(request)
    try:
        yield from whole_body(length if length > MAX_COMPARED else _bytes(request) if length else b"")
    except RawPostDataException:
        yield from ("data", *_data(wrapper))


def _form(request: Any, wrapper: Any) -> Iterator[str] | None:
    """What a form says; None if it is not read as one, nor its fields: then its bytes are compared."""
    was_read = getattr(request, "_read_started", False) and not hasattr(request, "_body")
    if hasattr(request, "_post") and (was_read or request._post or request._files):
        # As other code has parsed it before: of another method than POST, too, as a middleware of Ninja's does.
        if not request._post and not request._files and not _is_void(request):
            raise emptied(_HOW)
        return said(request._post, request._files)
    if not _is_parsed(request, wrapper):
        return None
    if was_read:
        raise read_before(_HOW)
    _keep(request)
    try:
        fields, files = wrapper.POST, wrapper.FILES
    except RequestDataTooBig:
        if request.content_type == "multipart/form-data":
            raise
        return None  # a view that does not read it as a form has no limit
    if isinstance(stream := vars(wrapper).get("_stream"), BytesIO):
        stream.seek(0)  # REST framework's, for the view
    return said(fields, files) if fields or files or _is_void(request) else None


def _is_parsed(request: Any, wrapper: Any) -> bool:
    """Whether a form of this method is read as one: by Django, or by a parser of REST framework's view."""
    if wrapper is request:
        return bool(request.method == "POST")
    return wrapper.negotiator.select_parser(wrapper, wrapper.parsers) is not None


def _keep(request: Any) -> None:
    """The bytes of a form that is still unread, for a view that checks their signature: Django keeps them, once read.

    Not those of a long form: its files may be, and go to disk.
    """
    limit = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
    longest = MAX_COMPARED if limit is None else min(limit, MAX_COMPARED)
    if getattr(request, "_read_started", None) is False and _length(request) <= longest:
        request.body  # noqa: B018 - it is kept


def _is_void(request: Any) -> bool:
    return was_sent_empty(_length(request), request.content_type, request.content_params.get("boundary", ""))


def said(fields: Any, files: Any) -> Iterator[str]:
    if not (isinstance(fields, MultiValueDict) and isinstance(files, MultiValueDict)):
        return data_parts([_plain(fields), _plain(files)])  # as a parser of the project's own has it
    found = [
        File(name, file.name, getattr(file, "content_type", None), file)
        for name, several in files.lists()
        for file in several
    ]
    return form_parts(fields.lists(), found)


def _plain(data: Any) -> Any:
    return dict(data.lists()) if isinstance(data, MultiValueDict) else data


def _length(request: Any) -> int:
    """In bytes. WSGI has no body of unknown length; under ASGI it is in a file."""
    if (kept := getattr(request, "_body", None)) is not None:
        return len(kept)
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
        if getattr(request._stream, "seekable", bool)():  # under ASGI: Django has looked for its end
            request._stream.seek(0)
        read: bytes = request.read()
        # As if it were unread: a view that reads it in pieces has no limit.
        request._stream, request._read_started = BytesIO(read), False
        return read


def _data(wrapper: Any) -> Iterator[str]:
    """What REST framework's parser has made of the body, which it has read before: for a key with {request.data}."""
    data = vars(wrapper).get("_full_data")
    # A class stands there until it parses, and an empty form where it found nothing.
    if data is None or isinstance(data, type) or (isinstance(data, MultiValueDict) and not data):
        raise read_before(_HOW)
    return data_parts(_plain(data))
