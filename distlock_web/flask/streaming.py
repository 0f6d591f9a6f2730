"""A streaming response goes on under the lock of its view, until its body is sent, fails, or is closed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from flask import has_request_context
from werkzeug.wrappers import Response

from ..locks.decorator import LockedFunction, undecorated
from ..locks.lease import Lease
from ..web.streaming import LockedBody, StreamLock
from .views import functions_of_request


class _Owner:
    """Has the lock until its body has it."""


def send_under_lock(result: Any, locked: object, lease: Lease) -> Any | None:
    """What a view returned, with its streamed response, or its generator, going on under the lock; else None.

    A generator stays one: Flask makes a response of it, or a schema above the view a list.
    """
    if not is_stream(result, locked):
        return None
    content = result[0] if isinstance(result, tuple) else result
    if isinstance(content, Response):
        content.response = _locked(content.response, StreamLock(lease, content))
        return result
    owner = _Owner()
    body = _locked(content, StreamLock(lease, owner))
    return (body, *result[1:]) if isinstance(result, tuple) else body


def _locked(chunks: Any, lock: StreamLock) -> LockedBody[Any]:
    closers = [chunks.close] if hasattr(chunks, "close") else []
    return LockedBody(lock, iter(chunks), *closers)  # which is closed with the response


def is_stream(result: Any, locked: object) -> bool:
    """Whether it is a streamed response, or a generator of which Flask makes one."""
    if isinstance(result, Response):
        return result.is_streamed
    content = result[0] if isinstance(result, tuple) and result else result
    streams = content.is_streamed if isinstance(content, Response) else isinstance(content, Iterator)
    return streams and is_view(locked)


def is_view(locked: object) -> bool:
    """Whether the locked function is the view of this request: elsewhere a generator is just a generator."""
    if not (has_request_context() and isinstance(locked, LockedFunction)):
        return False
    # Not by ``__distlock__``: only the outermost of several is seen, and none where each request decorates anew.
    return any(undecorated(function) is locked.function for function in functions_of_request())
