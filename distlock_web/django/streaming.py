"""A streaming response goes on in its request, and under the lock of its view, until its body is sent, fails, or is
closed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from asgiref.sync import async_to_sync

from ..core.runtime import in_event_loop
from ..web.streaming import (
    AsyncRequestBody,
    LockedAsyncBody,
    LockedBody,
    RequestBody,
    SavedContext,
    StreamLock,
    spawn,
)


def send_under_lock(result: Any, lock: StreamLock) -> Any:
    """The same result, which is a ``StreamingHttpResponse`` or a ``FileResponse``, sent under the lock."""
    # Django calls these when the response is closed: after the last byte, and when the client has gone.
    closers: list[Callable[[], None]] = result._resource_closers
    if getattr(result, "file_to_stream", None) is not None:  # which is left to the server's way (sendfile)
        lock.by_server = True
        lock.lives_with(result)
        closers.append(lock.close)
        return result
    own, closers[:] = tuple(closers), []
    if result.is_async:
        result.streaming_content = body = LockedAsyncBody(lock, result._iterator, *own)
        closers.append(partial(_close_locked, body))
    else:
        result.streaming_content = LockedBody(lock, result._iterator, *own)  # it has a close, so Django adds it
    return result


def send_in_request(response: Any) -> None:
    """From now on the body of this ``StreamingHttpResponse`` runs, and is closed, in the request that is running."""
    context = SavedContext()
    # In place, not by its setter: that would add a closer, and take from a FileResponse the file that a server sends
    # by itself.
    closers: list[Callable[[], None]] = response._resource_closers
    closers[:] = [partial(context.run, close) for close in closers]
    if not response.is_async:
        response._iterator = RequestBody(context, response._iterator)
        return
    is_locked = isinstance(response._iterator, LockedAsyncBody)  # and is closed with its lock
    response._iterator = body = AsyncRequestBody(context, response._iterator)
    if not is_locked:
        closers.insert(0, partial(_close_in_request, body))


def _close_in_request(body: AsyncRequestBody[Any]) -> None:
    """Close a body whose client has gone, which Django leaves to the garbage collector: that knows of no request."""
    if not body.is_open:
        return
    if in_event_loop():
        spawn(body.aclose, otherwise=_nobody_can)
    else:
        async_to_sync(body.aclose)()


def _nobody_can() -> None:
    """The event loop has ended, and with it what could run an asynchronous body."""


def _close_locked(body: LockedAsyncBody[Any]) -> None:
    """Close an asynchronous body, which Django leaves to the garbage collector, and then release the lock."""
    if not body.begun:
        body.drop()
    elif in_event_loop():
        spawn(body.aclose, otherwise=body.close_lock)
    else:
        # In the loop that the body runs in: Django closes a response from a thread that this loop has started.
        async_to_sync(body.aclose)()
