"""``once`` in Django: who asks for what, what is kept of a response, and how that is made again."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from asgiref.sync import sync_to_async
from django.core.exceptions import RequestDataTooBig
from django.http import HttpRequest, HttpResponse
from django.http.request import RawPostDataException
from django.http.response import HttpResponseBase

from ..locks import hooks
from ..web import once
from ..web.once import CREDENTIALS, digest_of, form_parts, is_comparable, is_form, keep


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


async def answer_of(response: Any, function: str, *, asynchronous: bool) -> dict[str, Any] | None:
    """What is kept of a response, which is rendered for that; None of what is none."""
    if not isinstance(response, HttpResponseBase):
        return None
    if not getattr(response, "is_rendered", True):
        if hasattr(response, "data") and not hasattr(response, "accepted_renderer"):
            return _data(response, function)
        render: Any = response.render  # type: ignore[attr-defined]
        response = await sync_to_async(render)() if asynchronous else render()
    body = None if response.streaming else response.content
    return keep(function, response.status_code, response.items(), body)


def _data(response: Any, function: str) -> dict[str, Any]:
    """REST framework has not chosen the renderer yet: it does that when the method has returned."""
    from rest_framework.renderers import JSONRenderer

    headers = [(name, value) for name, value in response.items() if name.lower() != "content-type"]
    if response.content_type:
        headers.append(("Content-Type", response.content_type))
    try:
        # Bytes are for a renderer of the project's own, which would not know them again.
        body = None if isinstance(response.data, bytes) else JSONRenderer().render(response.data)
    except (TypeError, ValueError):  # a model for a template, for instance: the work is done all the same
        body = None
    kept = keep(function, response.status_code, headers, body)
    return {**kept, "is_data": "body" in kept, "template_name": response.template_name}


def replay(kept: Mapping[str, Any]) -> HttpResponseBase:
    """The response again."""
    made = once.replay(kept)
    if kept.get("is_data"):
        from rest_framework.response import Response

        headers = dict(made.headers)
        own = headers.pop("Content-Type", None)
        data = json.loads(made.body) if made.body else None
        template = kept.get("template_name")
        response: HttpResponseBase = Response(data, made.status, template, headers=headers, content_type=own)
        return response
    return HttpResponse(made.body, status=made.status, headers=dict(made.headers))
