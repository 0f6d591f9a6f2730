"""A request that the rest of a test runs as. What the middlewares make of one refuses ids that this lets pass."""

from __future__ import annotations

from dataclasses import replace

from distlock_web.core.request_id import Origin, swap_origin


def begin_request(request_id: str, path: str = "") -> None:
    """From now on the running context is a request with this id, whatever is in it."""
    swap_origin(replace(Origin.new(path=path), request_id=request_id))


def end_request() -> None:
    """The running context is outside of any request."""
    swap_origin(None)
