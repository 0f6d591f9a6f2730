"""A streaming response goes on under the lock of its view, until its body is sent, fails, or is closed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from werkzeug.wrappers import Response

from ..web.framework import is_view
from ..web.streaming import LockedBody, StreamLock
from .views import functions_of_request


def send_under_lock(result: Any, lock: StreamLock) -> Any:
    """What a view returned, with its streamed response, or its generator, going on under the lock.

    A generator stays one: Flask makes a response of it, or a schema above the view a list.
    """
    content = result[0] if isinstance(result, tuple) else result
    chunks = content.response if isinstance(content, Response) else content
    closers = [chunks.close] if hasattr(chunks, "close") else []
    body = LockedBody(lock, iter(chunks), *closers)  # which is closed with the response
    if isinstance(content, Response):
        content.response = body
        return result
    return (body, *result[1:]) if isinstance(result, tuple) else body


def is_stream(result: Any, locked: object) -> bool:
    """Whether it is a streamed response, or a generator of which Flask makes one. Elsewhere that is just that."""
    if isinstance(result, Response):
        return result.is_streamed
    content = result[0] if isinstance(result, tuple) and result else result
    streams = content.is_streamed if isinstance(content, Response) else isinstance(content, Iterator)
    return streams and is_view(locked, functions_of_request())
