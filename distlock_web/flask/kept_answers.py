"""``once`` in Flask: what is kept of a response, and how that is made again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from flask import after_this_request, current_app, request
from markupsafe import Markup
from werkzeug.datastructures import Headers
from werkzeug.exceptions import HTTPException
from werkzeug.wrappers import Response

from ..locks.hooks import Answer
from ..locks.plain_values import unpack
from ..web import kept_answers
from ..web.kept_answers import is_kept, keep, keep_value, kept_of, of_bytes, writes_before


class Answered(HTTPException):
    """The line in place of a value that was not kept: what is above the view would take it for the value."""

    description = kept_answers.NOT_KEPT.strip()


def answer_of(result: Any, locked: Any) -> dict[str, Any]:
    """What is kept of what a view returned: of a response, or of a value, which may have a status and headers."""
    function = locked.name
    content, more = parts_of(result)
    response = response_of(content)
    if isinstance(content, Iterator):
        kept = {**keep(function, 200, (), None), "is_value": True}
    elif response is None:
        kept = {**keep_value(function, content), "is_value": True}
        if is_kept(kept) and writes_before(locked) and isinstance(content, str | bytes | dict | list):
            kept["before"] = _before(content, more)
    else:
        body = response.get_data() if response.is_sequence else None
        kept = keep(function, response.status_code, response.headers.items(), body)
        kept["is_error"] = isinstance(content, HTTPException)
    if is_kept(kept):
        return {**kept, "more": [_kept_part(each) for each in more]}
    head = head_of(result)
    return {**kept, "status": head.status_code, "headers": kept_of(head.headers.items())}


def _before(content: Any, more: tuple[Any, ...]) -> dict[str, Any]:
    """A value in format 1, as the response that Flask makes of it; of what an API alone can render, nothing."""
    try:
        made = _with_parts(current_app.make_response(content), more)
    except (TypeError, ValueError):
        return {}
    return {"status": made.status_code, "headers": kept_of(made.headers.items()), **of_bytes(made.get_data())}


def parts_of(result: Any) -> tuple[Any, tuple[Any, ...]]:
    """What a view returned, without the status and the headers, and these: ``(body, status, headers)`` or less."""
    if type(result) is tuple and len(result) in (2, 3) and all(map(_is_part, result[1:])):
        return result[0], result[1:]
    return result, ()


def _is_part(value: Any) -> bool:
    """Whether it can be a status, or headers."""
    if value is None or isinstance(value, int | str):
        return value != ""
    try:
        Headers(value)
    except (AttributeError, TypeError, ValueError):
        return False
    return True


def response_of(content: Any) -> Response | None:
    """The response that this is. Not by ``make_response``: that runs what else Flask takes, WSGI applications."""
    if isinstance(content, HTTPException):
        return content.get_response(request.environ)
    return content if isinstance(content, Response) else None


def head_of(result: Any) -> Response:
    """Status and headers of what a view returned, in a response without a body."""
    content, more = parts_of(result)
    response = response_of(content)
    head = current_app.response_class() if response is None else Response(status=response.status)
    if response is not None:
        head.headers = Headers(response.headers)
    return _with_parts(head, more)


def _with_parts(response: Response, more: tuple[Any, ...]) -> Response:
    for each in more:
        if isinstance(each, int):
            response.status_code = each
        elif isinstance(each, str):
            response.status = each
        elif each is not None:
            response.headers.update(each)
    return response


def _kept_part(part: Any) -> Any:
    if part is None or isinstance(part, int | str):
        return int(part) if isinstance(part, int) else part
    return {
        "headers": kept_of(Headers(part).items()),
        "as": "dict" if isinstance(part, dict) else "Headers" if isinstance(part, Headers) else "list",
    }


def _part(kept: Any) -> Any:
    if not isinstance(kept, dict):
        return kept
    headers = Headers(kept["headers"])
    if kept["as"] == "dict":
        return {name: several if len(several := headers.getlist(name)) > 1 else several[0] for name in dict(headers)}
    return headers if kept["as"] == "Headers" else list(headers)


def replay(kept: Mapping[str, Any]) -> Answer:
    """The answer again. Raises :class:`Answered`."""
    after_this_request(_mark)
    if "value" in kept:
        content = unpack(kept["value"])
    else:
        made = kept_answers.replay(kept)
        content = current_app.response_class(made.body, made.status, made.headers)
        if not made.says_type:
            del content.headers["Content-Type"]
        if kept.get("is_value"):
            raise Answered(response=content)
        if kept.get("is_error"):
            content = HTTPException(response=content)
    more = tuple(map(_part, kept.get("more", ())))
    return Answer((content, *more) if more else content)


def _mark(response: Any) -> Any:
    response.headers[kept_answers.REPLAYED] = "true"
    return response


def field() -> Markup:
    """``{{ once() }}``: a hidden field ``once``, with another value for each rendered form."""
    return Markup(kept_answers.hidden_field())  # noqa: S704 - nothing of a client's is in it
