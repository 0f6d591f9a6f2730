"""``once`` in Flask: what is kept of a response, and how that is made again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from flask import Response, current_app
from markupsafe import Markup
from werkzeug.wrappers import Response as AnyResponse

from ..web import once
from ..web.once import keep


def answer_of(result: Any, function: str) -> dict[str, Any]:
    """What is kept of what a view returned. Raises ``TypeError`` for None, as Flask will."""
    response, body = _response(result), None
    if response is None:
        head = ("", *result[1:]) if isinstance(result, tuple) else ""
        response = current_app.make_response(head)
    elif not response.is_streamed:
        body = response.get_data()
    return keep(function, response.status_code, response.headers.items(), body)


def _response(result: Any) -> AnyResponse | None:
    """The response that Flask makes of this; None of a generator, or of what an API renders."""
    content = result[0] if isinstance(result, tuple) and result else result
    if isinstance(content, Iterator):
        return None
    try:
        return current_app.make_response(result)
    except TypeError:
        if result is None:
            raise
        return None


def replay(kept: Mapping[str, Any]) -> AnyResponse:
    """The response again."""
    made = once.replay(kept)
    return Response(made.body, made.status, made.headers)


def field() -> Markup:
    """``{{ once() }}``: a hidden field ``once``, with another value for each rendered form."""
    return Markup(once.hidden_field())  # noqa: S704 - nothing of a client's is in it
