"""A streaming response goes on under the lock of its view, until its body is sent, fails, or is closed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from flask import Response, current_app, has_request_context, request

from ..core.carry import Carried
from ..core.decorator import Guard


def carry_response(result: Any, guard: Guard, carry: Callable[[object], Carried]) -> Response | None:
    """The carrier (see ``core.lifetime``) of streamed responses, and of the generators that Flask makes them of."""
    if not isinstance(result, Response):
        body = result[0] if isinstance(result, tuple) else result
        if not isinstance(body, Iterator) or not _is_view(guard):
            return None
        result = current_app.make_response(result)
    if not result.is_streamed:
        return None
    carried = carry(result)
    response: Response = result
    response.response = carried.iterate(response.response)  # type: ignore[assignment]  # an iterable of what it was
    response.call_on_close(carried.close)
    return response


def _is_view(guard: Guard) -> bool:
    """Whether the guarded function is the view of this request: elsewhere a generator is just a generator."""
    if not has_request_context() or request.endpoint is None:
        return False
    view: Any = current_app.view_functions[request.endpoint]
    view_class = getattr(view, "view_class", None)
    methods = ("dispatch_request", request.method.lower())
    candidates = [view] if view_class is None else [getattr(view_class, name, None) for name in methods]
    return any(getattr(candidate, "__distlock__", None) is guard for candidate in candidates)
