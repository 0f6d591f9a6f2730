"""``once`` in Django: what is kept of an answer, and how that is made again."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from asgiref.sync import sync_to_async
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.utils.translation import get_language

from ..locks.hooks import Answer
from ..locks.plain_values import unpack
from ..web import kept_answers
from ..web.kept_answers import is_given, is_kept, keep, keep_value, not_kept, writes_before

#: What a request carries whose view has answered again: the middleware marks the response, wherever it is made.
REPLAYS = "distlock_replays"


async def answer_of(result: Any, request: HttpRequest, locked: Any) -> dict[str, Any]:
    """What is kept of what a view returned: of a response, which is rendered for that, or of a value (Ninja's)."""
    function, asynchronous = locked.name, locked.asynchronous
    if not isinstance(result, HttpResponseBase) and is_given(locked, HttpResponseBase):  # of Ninja's
        return not_kept(function, "its headers are on the response that the operation was given")
    if isinstance(result, _status_class()):
        return {**keep_value(function, result.value, result.status_code), "is_status": True}
    if not isinstance(result, HttpResponseBase):
        return keep_value(function, result, status_of(result) or 200)
    if not getattr(result, "is_rendered", True):
        if hasattr(result, "data") and not hasattr(result, "accepted_renderer"):
            return _data(result, locked)
        result = await _rendered(result, asynchronous=asynchronous)
    body = None if result.streaming else result.content
    nonce = _nonce(request)
    has_own_nonce = body is not None and nonce is not None and nonce.encode() in body
    kept = keep(function, result.status_code, _headers(result, request), body, policy_follows=has_own_nonce)
    if has_own_nonce:
        kept["nonce"] = nonce
    if is_kept(kept):  # and what a decorator has marked for a middleware, such as xframe_options_exempt
        kept["marks"] = [name for name, value in vars(result).items() if value is True and name not in _OWN_MARKS]
    return kept


def _status_class() -> Any:
    """Django Ninja's, of ``Status(201, value)``, where a view may have used it."""
    return getattr(sys.modules.get("ninja.responses"), "Status", ())


_OWN_MARKS = frozenset({"closed", "_is_rendered"})


def _nonce(request: Any) -> str | None:
    """What the page's Content-Security-Policy will name, if the view has asked for it: Django's and django-csp's."""
    nonce = getattr(request, "_csp_nonce", None)  # lazy, and false until it is asked for
    return str(nonce) if nonce else None


async def _rendered(response: Any, *, asynchronous: bool) -> Any:
    """The response when it has been rendered, now. It stays that one if a callback has put another in its place."""
    made = await sync_to_async(response.render)() if asynchronous else response.render()
    if made is not response:
        response.render = lambda: made  # as it is asked for by Django, once more
    return made


def _headers(response: Any, request: HttpRequest) -> list[tuple[str, str]]:
    """With the language, of which the middleware would say that it is the second client's."""
    headers = list(response.items())
    language = get_language() if hasattr(request, "LANGUAGE_CODE") else None  # LocaleMiddleware's
    if language is not None and not response.has_header("Content-Language"):
        headers.append(("Content-Language", language))
    return headers


def _data(response: Any, locked: Any) -> dict[str, Any]:
    """REST framework renders it when the method has returned, the second time as the first."""
    headers = [(name, value) for name, value in response.items() if name.lower() != "content-type"]
    if response.content_type:
        headers.append(("Content-Type", response.content_type))
    whole = (response.data, response.template_name, response.exception)
    kept = {**keep_value(locked.name, whole, response.status_code, headers), "is_rest": True}
    return {**kept, "before": _data_before(response)} if is_kept(kept) and writes_before(locked) else kept


def _data_before(response: Any) -> dict[str, Any]:
    """The same in format 1, as JSON."""
    from rest_framework.renderers import JSONRenderer

    try:
        body = JSONRenderer().render(response.data).decode()
    except (TypeError, ValueError):  # of bytes, perhaps: it was not kept
        return {}
    return {"body": body, "is_data": True, "template_name": response.template_name}


def status_of(result: Any) -> int | None:
    """What an operation of Ninja's says beside its value: ``Status(402, value)``, or ``402, value``."""
    if isinstance(result, _status_class()):
        return int(result.status_code)
    said = result[0] if isinstance(result, tuple) and len(result) == 2 else None
    return said if isinstance(said, int) and not isinstance(said, bool) else None


def replay(kept: Mapping[str, Any], request: HttpRequest, *, is_marked: bool) -> Answer:
    """The answer again. ``is_marked``: it is the view's, of which a middleware may make another response."""
    if is_marked:
        setattr(request, REPLAYS, True)
    if "value" not in kept and kept.get("is_data"):  # of format 1
        return Answer(_with_data(kept, json.loads(kept["body"]), kept["template_name"], False))
    if "value" not in kept:
        return Answer(response_of(kept, request))
    value = unpack(kept["value"])
    if "is_rest" in kept:
        return Answer(_with_data(kept, *value))
    return Answer(_status_class()(kept["status"], value) if "is_status" in kept else value)


def response_of(kept: Mapping[str, Any], request: HttpRequest) -> HttpResponse:
    made = kept_answers.replay(kept)
    response = HttpResponse(made.body, status=made.status, headers=dict(made.headers))
    if not made.says_type:
        del response.headers["Content-Type"]
    if "nonce" in kept:
        request._csp_nonce = kept["nonce"]  # type: ignore[attr-defined]
    for name in kept.get("marks", ()):
        setattr(response, name, True)
    return response


def _with_data(kept: Mapping[str, Any], data: Any, template: Any, exception: Any) -> HttpResponseBase:
    """REST framework's."""
    from rest_framework.response import Response

    headers = {**dict(kept["headers"]), kept_answers.REPLAYED: "true"}
    content_type = headers.pop("Content-Type", None)
    return Response(data, kept["status"], template, headers, exception, content_type)  # type: ignore[no-any-return]
