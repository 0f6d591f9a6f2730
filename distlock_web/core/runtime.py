"""What truly differs between threads and asyncio, in pairs; ``drive``, which runs the one source for threads; tokens.

The algorithm (``locks/engine.py``) is written once, as coroutines. Asyncio awaits them. Threads run them to the end
with ``drive``: their ports are ``async def`` that block and never suspend, so one ``send`` finishes the coroutine.
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, Protocol, TypeVar

from .errors import ConfigurationError
from .request_id import request_token

T = TypeVar("T")

#: Seconds on a clock that never jumps and runs on while the machine sleeps, as the store's leases do.
now: Callable[[], float]
if hasattr(time, "CLOCK_BOOTTIME"):  # noqa: SIM108 - a pragma for one of them
    now = partial(time.clock_gettime, time.CLOCK_BOOTTIME)  # in C: it is asked several times for each lock
else:  # pragma: no cover - macOS, Windows
    now = time.monotonic


#: For pauses and the like. The random module's own functions, called in a thread of ours, would change what a program's
#: seed gives it; and a forked child would throw what its parent does.
DICE = random.SystemRandom()


def drive(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends, and return what it returns."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    coroutine.close()
    raise RuntimeError("a blocking port suspended: it may await nothing but other blocking ports")


class Token(str):
    """One acquisition: 16 hex digits name the store that is told, 24 the request, 12 are its own; at last, behind a
    ``/``, how many may hold the lock, if that is more than one.

    The digits of the request are random and leave this process only as a part of tokens, so they cannot be guessed. Its
    own are random, too: a copy of this process (a fork, the snapshot of a machine) never makes the same token.

    It is a text, for as a text it goes to a server, comes back from it, and finds its waiter. What is where in it is
    known here alone, and in Lua.
    """

    __slots__ = ()

    STORE_DIGITS = 16

    @property
    def store(self) -> str:
        """Of its store object in its process: by this name a server tells its waiters something."""
        return self[: self.STORE_DIGITS]

    @property
    def number(self) -> int:
        """Another one for each acquisition, and no secret."""
        return int(self.partition("/")[0][-12:], 16)

    @property
    def limit(self) -> int:
        """How many may hold the lock as far as this claim is concerned; 1: it wants to be alone."""
        return int(self.partition("/")[2] or 1)

    def limited(self, limit: int) -> Token:
        """The same of a claim that lets so many hold the lock, itself among them.

        The number is a part of the token, so that every verb of a store, and the queue, knows of it.
        """
        return Token(f"{self}/{limit}")


def new_ident() -> str:
    """The name of a store object in this process, random: what its tokens begin with."""
    return secrets.token_hex(Token.STORE_DIGITS // 2)


def new_token(ident: str = new_ident(), *, limit: int = 1) -> Token:
    """For one acquisition, by the running request, that lets so many hold the lock."""
    token = Token(ident + request_token() + os.urandom(6).hex())
    return token if limit == 1 else token.limited(limit)


class Parker(Protocol):
    """Where one thread or task sleeps. A wake-up that comes before the sleep is not lost."""

    async def park(self, seconds: float | None) -> bool:
        """Sleep until woken (True) or until the time is over (False)."""

    def unpark(self) -> bool:
        """Wake the sleeper; from any thread. False: its event loop has closed, and the sleeper will never wake."""

    def hears(self) -> bool:
        """Whether a wake-up reaches anybody: False, as ``unpark``, where its event loop has closed."""


class ThreadParker:
    __slots__ = ("_gate",)

    def __init__(self) -> None:
        self._gate = threading.Lock()
        self._gate.acquire()

    async def park(self, seconds: float | None) -> bool:
        return self._gate.acquire(timeout=-1 if seconds is None else min(max(seconds, 0.0), threading.TIMEOUT_MAX))

    def unpark(self) -> bool:
        try:
            self._gate.release()
        except RuntimeError:  # woken already: one wake-up is enough
            pass
        return True

    def hears(self) -> bool:
        return True


class TaskParker:
    __slots__ = ("_event", "_loop")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()

    async def park(self, seconds: float | None) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._event.wait()
        except TimeoutError:
            return False
        self._event.clear()
        return True

    def unpark(self) -> bool:
        try:
            self._loop.call_soon_threadsafe(self._event.set)
        except RuntimeError:
            return False
        return True

    def hears(self) -> bool:
        return not self._loop.is_closed()


class Runtime(Protocol):
    def parker(self) -> Parker: ...

    async def shield(self, work: Awaitable[T]) -> T:
        """Run to the end even if the caller is cancelled meanwhile; the cancellation is raised afterwards.

        Only the end of the event loop, which cancels every task, ends the work before its end, or before its beginning.
        """


class Threads:
    """Blocking callers, in any thread."""

    def parker(self) -> Parker:
        return ThreadParker()

    async def shield(self, work: Awaitable[T]) -> T:
        return await work


class Tasks:
    """Callers in an event loop."""

    def parker(self) -> Parker:
        return TaskParker()

    async def shield(self, work: Awaitable[T]) -> T:
        task = asyncio.ensure_future(work)
        cancelled: asyncio.CancelledError | None = None
        while not task.done():
            try:
                await asyncio.shield(task)
            except asyncio.CancelledError as error:
                if not task.cancelled():  # ours, even where the work has ended in this very turn of the loop
                    cancelled = error
            except GeneratorExit:  # the caller is closed after its loop: it would never be woken again
                raise
            except BaseException:  # noqa: S110 - it is the task's own: raised below, by result()
                pass
        if cancelled is not None:
            if not task.cancelled():
                task.exception()  # seen: the cancellation is what the caller must hear of
            raise cancelled
        return task.result()


THREADS = Threads()
TASKS = Tasks()


def in_event_loop() -> bool:
    """Whether the running thread is inside an event loop, where a blocking call would stop every other task."""
    return asyncio._get_running_loop() is not None


def refuse_in_event_loop(instead: str) -> None:
    """``ConfigurationError`` for a blocking call inside a running event loop, where it would stop every other task."""
    if in_event_loop():
        raise ConfigurationError(f"This is a blocking call inside a running event loop. In async code write {instead}.")


def blocking_runtime(instead: str = "`async with lock(...)`, or `await lock(...).aacquire()`") -> Runtime:
    """The runtime of a blocking entry point; refused inside a running event loop, which it would stop."""
    if asyncio._get_running_loop() is not None:
        refuse_in_event_loop(instead)
    return THREADS


def lives_for_one_call(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether asgiref's ``async_to_sync`` has made this loop, as Django and Flask do for an async view under WSGI."""
    asgiref = sys.modules.get("asgiref.sync")
    return asgiref is not None and loop in getattr(asgiref.AsyncToSync, "loop_thread_executors", ())
