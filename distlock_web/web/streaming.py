"""A lock that goes on after its function has returned, until the body of a streaming response has been sent.

It is renewed meanwhile. It ends with the last byte, with an error in the body, when the response is closed (a client
that has disconnected), or when the response is dropped without any of that; once, whichever comes first.
"""

from __future__ import annotations

import asyncio
import logging
import types
import weakref
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterator,
    Mapping,
    Sequence,
)
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial
from typing import Any, ParamSpec, TypeVar

from ..core.errors import DistLockError, LeaseLost, add_note
from ..core.process import check_process
from ..core.request_id import current_origin, swap_origin
from ..core.runtime import in_event_loop
from ..locks import ending, watchdog
from ..locks.kept import leave_no_record
from ..locks.lease import Lease, scope_of
from ..locks.records import Record
from ..locks.reentry import chain

logger = logging.getLogger("distlock_web")
P = ParamSpec("P")
T = TypeVar("T")

CLOSING_FAILED = "its closing failed, too: %r"

#: The longest that a response is renewed, in seconds, unless ``renew_for`` says otherwise: a client may never read on.
MAX_STREAM_SECONDS = 3600.0


class StreamLock:
    """The lock of a response that is sent under it. Each step of the body runs inside of the lock.

    Of a response that is closed before its last byte nothing is recorded as done.
    """

    def __init__(self, lease: Lease) -> None:
        self.context = SavedContext()
        self.by_server = False  #: the server sends it, and only its end is known here
        self._scope = scope_of(lease)
        self._releasing = _FirstCall()
        self._owners: list[weakref.ref[object]] = []
        chain.leave(self._scope)  # code after the function, and this thread's next request, is not inside of it
        renew_for = self._scope.spec.renew_for
        max_seconds = MAX_STREAM_SECONDS if renew_for is None else renew_for
        self._check_owners = watchdog.renew_while(
            self._scope, max_seconds, alive=self._alive, when_abandoned=self.close
        )

    def lives_with(self, owner: object) -> None:
        """The lock lives as long as one of its owners does: the body, or a response that the server sends."""
        self._owners.append(weakref.ref(owner, lambda _: self._check_owners()))

    def _alive(self) -> bool:
        return not self._owners or any(owner() is not None for owner in self._owners)

    @classmethod
    def of_record(cls, lease: Lease) -> StreamLock | None:
        """The lock of a ``once`` whose answer is not known yet; None: it leaves no record, and ends now."""
        return None if scope_of(lease).record is None else cls(lease)

    def keep(self, kept: Mapping[str, Any]) -> None:
        """This was answered: its end records it."""
        if self._scope.record is not None:
            self._scope.record = Record.with_kept(self._scope.record, kept)

    def leave_no_record(self) -> None:
        """It was not done: its end leaves nothing, and it is done again."""
        leave_no_record(self._scope)

    def check(self) -> None:
        """Before each step: ``LeaseLost`` if the lock is gone, unless ``on_lost`` says to go on all the same."""
        check_process()  # in a copy of the process the body would go on beside its parent's
        if not self._scope.over and self._scope.spec.on_lost in ("raise", "cancel"):
            self._scope.raise_if_lost()

    def end(self, error: BaseException | None = None) -> None:
        """Release the lock, from any thread. Raises ``LeaseLost`` as ``on_lost`` says."""
        ending.end_now(self._scope, error)

    async def aend(self, error: BaseException | None = None) -> None:
        """Release the lock, from an event loop. It is free then, also where another task has begun to release it."""
        await self._releasing.run(partial(ending.end, self._scope, error))

    def close(self) -> None:
        """The response is closed: release the lock if that has not happened. No caller is left to be told of a loss."""
        if in_event_loop():
            spawn(self.aclose, otherwise=self.close_now)
        else:
            self.close_now()

    def close_now(self) -> None:
        """The same, without giving the event loop to another task: for a loop that is about to end."""
        self._break_off()
        try:
            self.end()
        except DistLockError as error:
            self._log_loss(error)

    async def aclose(self) -> None:
        """The asyncio twin of :meth:`close`."""
        self._break_off()
        try:
            await self.aend()
        except DistLockError as error:
            self._log_loss(error)

    def _break_off(self) -> None:
        if not self.by_server:
            self.leave_no_record()

    def note_failure(self, error: BaseException, failure: Exception) -> None:
        """The body's exception wins over that of its closing."""
        fields = self._scope.log_fields("stream")
        logger.warning("A streaming response that has failed could not be closed: %s", failure, extra=fields)
        add_note(error, CLOSING_FAILED, failure, fields=fields)

    def _log_loss(self, error: DistLockError) -> None:
        reason = error.reason if isinstance(error, LeaseLost) else "release"
        fields = self._scope.log_fields("lost" if isinstance(error, LeaseLost) else "error", reason=reason)
        logger.warning("A streaming response ended without its lock: %s", error, extra=fields)


def _exit_stack(lock: StreamLock, closers: Sequence[Callable[[], object]]) -> ExitStack:
    """Calls each of them once, when it is closed: in their order, inside of the lock, whatever the others raise."""
    stack = ExitStack()
    for closer in reversed(closers):
        stack.callback(lock.context.run, closer)
    return stack


class LockedBody(Iterator[T]):
    """The chunks of a body, under its lock; ``LeaseLost`` in place of the next one where the lock is gone.

    ``closers`` are what has to be called when the response is closed, while the lock is still held.
    """

    def __init__(self, lock: StreamLock, steps: Iterator[T], *closers: Callable[[], object]) -> None:
        self._lock = lock
        self._steps = steps
        self._closers = _exit_stack(lock, closers)
        lock.lives_with(self)

    def __next__(self) -> T:
        try:
            self._lock.check()
            return self._lock.context.run(next, self._steps)
        except StopIteration:
            self._lock.end()
            raise
        except BaseException as error:
            try:
                self._closers.close()  # not every server closes a response that has failed
            except Exception as failure:
                self._lock.note_failure(error, failure)
            finally:
                self._lock.end(error)
            raise

    def close(self) -> None:
        try:
            self._closers.close()
        finally:
            self._lock.close()


class _FirstCall:
    """What the first caller does. The others wait until it has done so, or has failed, and hear nothing of it."""

    def __init__(self) -> None:
        self._open = [True]  # emptied by the first: list.pop is atomic
        self._done: Future[None] = Future()  # not asyncio's: who waits may have another loop

    async def run(self, end: Callable[[], Awaitable[None]]) -> None:
        if self._done.done():  # without a turn of the loop, where a late caller could be cancelled
            return
        try:
            self._open.pop()
        except IndexError:
            await asyncio.shield(asyncio.wrap_future(self._done))  # a cancellation is that of who waits
            return
        try:
            await end()
        finally:
            self._done.set_result(None)


class LockedAsyncBody(AsyncIterator[T]):
    """The asynchronous twin of :class:`LockedBody`. It is closed where it runs: in its event loop."""

    def __init__(self, lock: StreamLock, steps: AsyncIterator[T], *closers: Callable[[], object]) -> None:
        self._lock = lock
        self._steps = steps
        self._closers = _exit_stack(lock, closers)
        self._closing = _FirstCall()
        self.begun = False
        lock.lives_with(self)

    async def __anext__(self) -> T:
        self.begun = True
        try:
            self._lock.check()
            return await self._lock.context.arun(_next(self._steps))
        except StopAsyncIteration:
            await self._lock.aend()
            raise
        except BaseException as error:
            await self._closing.run(partial(self._fail, error))  # Django closes no response whose body has failed
            raise

    def drop(self) -> None:
        """Close it before its first step, from any thread: nothing of it runs in a loop yet.

        Not named ``close``: Django would call that for bodies that run.
        """
        try:
            self._closers.close()
        finally:
            self._lock.close()

    async def aclose(self) -> None:
        """The body, then its lock, which is held to the end of the body.

        A second call waits for both, for as long as the body's ``finally`` takes, and leaves them to the first.
        """
        await self._closing.run(self._close)

    def close_lock(self) -> None:
        """Release the lock, whatever becomes of the body: its event loop has ended."""
        self._lock.close_now()

    async def _close(self) -> None:
        try:
            await self._close_body()
        finally:
            await self._lock.aclose()

    async def _fail(self, error: BaseException) -> None:
        try:
            await self._close_body()
        except Exception as failure:
            self._lock.note_failure(error, failure)
        finally:
            await self._lock.aend(error)

    async def _close_body(self) -> None:
        aclose = getattr(self._steps, "aclose", None)
        with self._closers:
            if aclose is not None:
                await self._lock.context.arun(_call(aclose))


class RequestBody(Iterator[T]):
    """The chunks of a body without a lock, each made inside of the request that it was opened in."""

    def __init__(self, context: SavedContext, steps: Iterator[T]) -> None:
        self._context = context
        self._steps = steps

    def __next__(self) -> T:
        return self._context.run(next, self._steps)


class AsyncRequestBody(AsyncIterator[T]):
    """The asynchronous twin of :class:`RequestBody`. It notices by itself when it is abandoned."""

    def __init__(self, context: SavedContext, steps: AsyncIterator[T]) -> None:
        self._context = context
        self._steps = steps
        self.is_open = False  #: begun, and not sent to its end

    async def __aiter__(self) -> AsyncGenerator[T, None]:
        # A generator: Python tells it when it is dropped. Where a server's ``send`` has raised, Django closes no
        # response, and leaves that, in a cycle, to the garbage collector.
        try:
            while True:
                yield await anext(self)
        except StopAsyncIteration:
            pass
        except GeneratorExit:  # it is dropped, or closed
            if self.is_open:
                await self.aclose()
            raise
        except BaseException as error:
            try:
                await self.aclose()
            except Exception as failure:
                add_note(error, CLOSING_FAILED, failure)
            raise

    async def __anext__(self) -> T:
        self.is_open = True
        try:
            return await self._context.arun(_next(self._steps))
        except StopAsyncIteration:
            self.is_open = False
            raise

    async def aclose(self) -> None:
        self.is_open = False
        aclose = getattr(self._steps, "aclose", None)
        if aclose is not None:
            await self._context.arun(_call(aclose))


async def _next(steps: AsyncIterator[T]) -> T:
    return await anext(steps)


async def _call(function: Callable[[], Awaitable[T]]) -> T:
    return await function()


class SavedContext:
    """What a body knows of locks: which ones it is inside of, for which request. Each of its steps begins there.

    Only this, not a copy of the whole context: the steps of a body run where the server runs them, and a token of
    another variable (a pushed context of Flask's, a span) is good in no context but its own.
    """

    def __init__(self) -> None:
        self._chain = chain.current_chain()
        self._origin = current_origin()

    def run(self, step: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run one step, which may itself enter and leave further locks."""
        outer_chain, outer_origin = chain.swap_scopes(self._chain), swap_origin(self._origin)
        try:
            return step(*args, **kwargs)
        finally:
            self._chain, self._origin = chain.swap_scopes(outer_chain), swap_origin(outer_origin)

    @types.coroutine
    def arun(self, step: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
        """Await one step in the caller's task: a task of its own for every chunk would cost more than the chunk."""
        resume: Callable[[Any], Any] = step.send
        answer: Any = None
        while True:
            try:
                awaited = self.run(resume, answer)
            except StopIteration as stop:
                return stop.value  # type: ignore[no-any-return]
            try:
                resume, answer = step.send, (yield awaited)
            except BaseException as error:  # a cancellation: the step's, not ours
                resume, answer = step.throw, error


_closing_tasks: set[asyncio.Task[None]] = set()  # a loop keeps only weak references to its tasks


def spawn(close: Callable[[], Coroutine[Any, Any, None]], *, otherwise: Callable[[], None]) -> None:
    """Close in a task of the running loop, for a caller that cannot wait; or ``otherwise``, if the loop ends first."""

    def ended(task: asyncio.Task[None]) -> None:
        _closing_tasks.discard(task)
        if task.cancelled():
            otherwise()

    task = asyncio.get_running_loop().create_task(close())
    _closing_tasks.add(task)
    task.add_done_callback(ended)
