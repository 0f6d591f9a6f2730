"""A streaming response goes on under the lock of its view, until its body is sent, fails, or is closed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from asgiref.sync import async_to_sync
from django.http import StreamingHttpResponse

from ..core.runtime import in_event_loop
from ..locks.lease import Lease
from ..web.streaming import LockedAsyncBody, LockedBody, StreamLock, spawn


def send_under_lock(response: Any, lease: Lease) -> StreamingHttpResponse:
    """The same response, which is a ``StreamingHttpResponse`` or a ``FileResponse``, sent under the lock."""
    is_file = getattr(response, "file_to_stream", None) is not None  # which is left to the server's way (sendfile)
    lock = StreamLock(lease, response, by_server=is_file)
    # Django calls these when the response is closed: after the last byte, and when the client has gone.
    closers: list[Callable[[], None]] = response._resource_closers
    if is_file:
        closers.append(lock.close)
        return response  # type: ignore[no-any-return]
    own, closers[:] = tuple(closers), []
    if response.is_async:
        body = LockedAsyncBody(lock, response._iterator, *own)
        response.streaming_content = body
        closers.append(partial(_close, body))
    else:
        response.streaming_content = LockedBody(lock, response._iterator, *own)  # it has a close, so Django adds it
    return response  # type: ignore[no-any-return]


def _close(body: LockedAsyncBody[Any]) -> None:
    """Close an asynchronous body, which Django leaves to the garbage collector, and then release the lock."""
    if not body.begun:
        body.drop()
    elif in_event_loop():
        spawn(body.aclose, otherwise=body.close_lock)
    else:
        # In the loop that the body runs in: Django closes a response from a thread that this loop has started.
        async_to_sync(body.aclose)()
