"""A lease that goes on after its function has returned, until the body of a streaming response has been sent.

It is renewed meanwhile. It ends with the last byte, with an error in the body, when the response is closed (a client
that went away), or when the response is dropped without any of that; once, whichever comes first.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable, Iterator
from contextvars import Context, copy_context
from typing import Any, TypeVar

from . import engine, watchdog
from .errors import DistLockError
from .lease import Lease
from .runtime import TASKS, THREADS, drive, in_event_loop

logger = logging.getLogger("distlock_web")
T = TypeVar("T")

#: The longest that a response is renewed, in seconds, unless ``renew_for`` says otherwise: a client may never read on.
LONGEST = 3600.0

_closing: set[asyncio.Task[None]] = set()  # a loop keeps only weak references to its tasks


class Carried:
    """A lease and the response that carries it. Each step of the body runs in the context that took the lock."""

    def __init__(self, lease: Lease, response: object) -> None:
        self._lease = lease
        self._context = copy_context()
        lease.leave()  # code after the function, and this thread's next request, is not inside of it
        dropped = weakref.ref(response)
        longest = LONGEST if lease.spec.renew_for is None else lease.spec.renew_for
        watchdog.carry(lease, longest, alive=lambda: dropped() is not None, gone=self.close)

    def iterate(self, body: Iterable[T]) -> CarriedBody[T]:
        """The body of a blocking server."""
        return CarriedBody(self, body, self._lease, self._context)

    def aiterate(self, body: AsyncIterator[T]) -> CarriedAsyncBody[T]:
        """The body of an asyncio server."""
        return CarriedAsyncBody(self, body, self._lease, self._context)

    def end(self, error: BaseException | None = None) -> None:
        """Give the lock back, from any thread. Raises ``LeaseLost`` as ``on_lost`` says."""
        self._lease.runtime = THREADS  # an async view's own loop may be closed by now
        drive(engine.end(self._lease, error))

    async def aend(self, error: BaseException | None = None) -> None:
        """Give the lock back, from an event loop."""
        self._lease.runtime = TASKS
        await engine.end(self._lease, error)

    def close(self) -> None:
        """The response is closed: give the lock back if that has not happened. Nobody is left to be told of a loss."""
        if in_event_loop():
            task = asyncio.ensure_future(self._aclose())
            _closing.add(task)
            task.add_done_callback(_closing.discard)
            return
        try:
            self.end()
        except DistLockError as error:
            logger.warning("A streaming response ended without its lock: %s", error)

    async def _aclose(self) -> None:
        try:
            await self.aend()
        except DistLockError as error:
            logger.warning("A streaming response ended without its lock: %s", error)


class CarriedBody(Iterator[T]):
    """The chunks of a body, under its lock; ``LeaseLost`` in place of the next one where the lock is gone."""

    def __init__(self, carried: Carried, body: Iterable[T], lease: Lease, context: Context) -> None:
        self._carried = carried
        self._body = body
        self._steps = context.run(iter, body)
        self._lease = lease
        self._context = context

    def __next__(self) -> T:
        try:
            self._lease.raise_if_lost()
            return self._context.run(next, self._steps)
        except StopIteration:
            self._carried.end()
            raise
        except BaseException as error:
            self._carried.end(error)
            raise

    def close(self) -> None:
        close = getattr(self._body, "close", None)
        try:
            if close is not None:
                self._context.run(close)
        finally:
            self._carried.close()


class CarriedAsyncBody(AsyncIterator[T]):
    """The asynchronous twin of :class:`CarriedBody`."""

    def __init__(self, carried: Carried, body: AsyncIterator[T], lease: Lease, context: Context) -> None:
        self._carried = carried
        self._body = body
        self._lease = lease
        self._context = context

    async def __anext__(self) -> T:
        try:
            self._lease.raise_if_lost()
            return await _InContext(self._context, lambda: self._body.__anext__())
        except StopAsyncIteration:
            await self._carried.aend()
            raise
        except BaseException as error:
            await self._carried.aend(error)
            raise

    async def aclose(self) -> None:
        aclose = getattr(self._body, "aclose", None)
        try:
            if aclose is not None:
                await _InContext(self._context, aclose)
        finally:
            await self._carried.aend()


class _InContext(Awaitable[T]):
    """Awaits in another context, in the same task: a task of its own for every chunk would cost more than the chunk."""

    def __init__(self, context: Context, work: Callable[[], Awaitable[T]]) -> None:
        self._context = context
        self._work = work

    def __await__(self) -> Generator[Any, Any, T]:
        steps = self._context.run(lambda: self._work().__await__())
        try:
            waited = self._context.run(next, steps)
            while True:
                try:
                    sent = yield waited
                except BaseException as error:
                    waited = self._context.run(_throw, steps, error)
                else:
                    waited = self._context.run(_send, steps, sent)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]


def _send(steps: Generator[Any, Any, T], value: Any) -> Any:
    # The iterator behind an __await__ need not be a generator: a future's has no send before it is asked for a value.
    return next(steps) if value is None else steps.send(value)


def _throw(steps: Generator[Any, Any, T], error: BaseException) -> Any:
    return steps.throw(error)
