"""``once`` in Django: who asks for what."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from django.core.exceptions import RequestDataTooBig
from django.http import HttpRequest
from django.http.request import RawPostDataException

from ..locks import hooks
from ..web.asked import CREDENTIALS, digest_of, form_parts, is_comparable, is_form


async def asked(args: tuple[object, ...], request: Any, *, asynchronous: bool) -> str:
    """Who asks for what, of a view that was called with these arguments."""
    wrapper = next((each for each in args[:2] if getattr(each, "_request", None) is request), request)
    user = getattr(request, "user", None)
    if asynchronous:
        user = await hooks.loaded(user)
    where = (str(request.method), request.META.get("HTTP_HOST", ""), request.get_full_path())
    return digest_of(*_who(request, user), *where, str(request.content_type), *_body(request, wrapper))


def _who(request: HttpRequest, user: Any) -> Iterator[str]:
    if getattr(user, "is_authenticated", False) and (pk := getattr(user, "pk", None)) is not None:
        kind = user.__class__  # of what a lazy object stands for
        yield from ("user", f"{kind.__module__}.{kind.__qualname__}", str(pk))
        return
    yield from ("session", str(getattr(getattr(request, "session", None), "session_key", None)))
    yield from (request.headers.get(name, "") for name in CREDENTIALS)


def _body(request: HttpRequest, wrapper: Any) -> Iterator[str | bytes]:
    """What the body says, so that the view, and REST framework's ``wrapper`` around the request, still can read it."""
    if is_form(str(request.content_type)) and (request.method == "POST" or wrapper is not request):
        files = ((name, file.name, file) for name, several in wrapper.FILES.lists() for file in several)
        yield from form_parts(wrapper.POST.lists(), files)
        return
    length = request.META.get("CONTENT_LENGTH") or ""
    if not is_comparable(int(length) if length.isdecimal() else None):
        yield length
        return
    try:
        yield request.body
    except RequestDataTooBig:  # a limit of the project's, for those who read it at once
        yield length
    except RawPostDataException:  # REST framework's parser has read it, for a key with {request.data}
        yield json.dumps(getattr(wrapper, "data", None), default=str)
