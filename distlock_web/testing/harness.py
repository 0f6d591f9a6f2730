"""One test case, two modes: threads that block, and asyncio.

A case is a coroutine that uses a *harness*. The asyncio harness awaits; the harness of threads blocks in every verb and
never suspends, so that ``drive`` runs the same case: the engine's own way of being one source.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Generic, Protocol, TypeVar

import distlock_web
from distlock_web import Lease, distributed_lockable
from distlock_web.core.backend import LockInfo, Port
from distlock_web.core.registry import Store
from distlock_web.core.runtime import TASKS, THREADS, Runtime, drive, now
from distlock_web.locks.lock import Lock

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

#: Seconds after which a test gives up waiting for something that has to happen.
PATIENCE = 30.0


class Actor(Protocol[T_co]):
    """A caller that runs at the same time."""

    async def result(self) -> T_co:
        """Wait for the end; what it returned, or raise what it raised."""


class Harness:
    """What a case can do, in one mode."""

    runtime: Runtime

    def __init__(self, store: Store) -> None:
        self.store = store

    @property
    def port(self) -> Port:
        return self.store.port(self.runtime)

    def run(self, case: Coroutine[Any, Any, None]) -> None:
        """Run one case to its end."""
        raise NotImplementedError

    async def _call(self, of: object, verb: str, *args: Any, **options: Any) -> Any:
        """The verb of this mode: ``release``, or ``arelease``."""
        raise NotImplementedError

    async def acquire(self, lock: Lock) -> Lease:
        return await self._call(lock, "acquire")  # type: ignore[no-any-return]

    async def try_acquire(self, lock: Lock) -> Lease | None:
        return await self._call(lock, "try_acquire")  # type: ignore[no-any-return]

    def inside(self, lock: Lock | Lease) -> AbstractAsyncContextManager[Lease]:
        """``with lock`` or ``async with lock``."""
        raise NotImplementedError

    async def release(self, lease: Lease) -> None:
        await self._call(lease, "release")

    async def extend(self, lease: Lease, expire: float | None = None) -> None:
        await self._call(lease, "extend", expire)

    async def detach(self, lease: Lease, transit: float = 60.0) -> str:
        return await self._call(lease, "detach", transit)  # type: ignore[no-any-return]

    async def attach(self, ticket: str, expire: float | None = None) -> Lease:
        return await self._call(distlock_web, "attach", ticket, expire=expire)  # type: ignore[no-any-return]

    async def lost(self, lease: Lease) -> bool:
        """Wait until the lease is lost."""
        raise NotImplementedError

    def decorated(
        self, body: Callable[..., Awaitable[T]], by: Callable[..., Any] = distributed_lockable, **options: Any
    ) -> Callable[..., Coroutine[Any, Any, T]]:
        """The body under ``distributed_lockable``, or ``by`` another one, as a function or a coroutine function."""
        raise NotImplementedError

    def unrelated(self, body: Callable[[], Coroutine[Any, Any, T]]) -> Actor[T]:
        """Run the body at the same time, as a caller that has inherited nothing."""
        return self._start(body, contextvars.Context())

    def sibling(self, body: Callable[[], Coroutine[Any, Any, T]]) -> Actor[T]:
        """Run the body at the same time, as part of what the caller is doing."""
        return self._start(body, contextvars.copy_context())

    def _start(self, body: Callable[[], Coroutine[Any, Any, T]], context: contextvars.Context) -> Actor[T]:
        raise NotImplementedError

    def event(self) -> ActorEvent:
        return ActorEvent(self)

    async def sleep(self, seconds: float) -> None:
        """Let time pass: for leases that have to end, never as proof that something has happened."""
        raise NotImplementedError

    async def line(self, name: str) -> LockInfo | None:
        """What the store shows for this lock; None: it is free."""
        return next((line for line in await self.port.inspect() if line.name == name), None)

    async def shown(self, name: str) -> LockInfo:
        """What the store shows for a lock that is not free."""
        line = await self.line(name)
        assert line is not None, f"{name} is free"
        return line

    async def until(self, condition: Callable[[], Awaitable[bool]]) -> None:
        """Wait for a state that can be seen."""
        give_up = now() + PATIENCE
        while not await condition():
            if now() > give_up:
                raise TimeoutError("the awaited state did not come")
            await self.sleep(0.005)

    async def waiters(self, name: str, count: int) -> None:
        """Wait until so many wait for the lock."""

        async def seen() -> bool:
            line = await self.line(name)
            return (line.waiters if line else 0) == count

        await self.until(seen)

    async def until_free(self, name: str) -> None:
        """Wait until the lock is free: a little longer than its holder believes in it."""

        async def seen() -> bool:
            return await self.line(name) is None

        await self.until(seen)
        await self.sleep(0.005)  # a store may round what it shows, by a tick of its clock


class ActorEvent:
    """Something that an actor tells another one."""

    def __init__(self, harness: Harness) -> None:
        self._harness = harness
        self._is_set = False

    def set(self) -> None:
        self._is_set = True

    async def wait(self) -> None:
        """Wait until it is set; ``TimeoutError`` if that never happens."""

        async def seen() -> bool:
            return self._is_set

        await self._harness.until(seen)


class ThreadActor(Generic[T]):
    def __init__(self, body: Callable[[], Coroutine[Any, Any, T]], context: contextvars.Context) -> None:
        self._result: T | None = None
        self._error: BaseException | None = None
        # Not a Future: in a simulated world only ``threading`` is simulated, and one would wait in real time for ever.
        self._thread = threading.Thread(target=context.run, args=(self._run, body), daemon=True)
        self._thread.start()

    def _run(self, body: Callable[[], Coroutine[Any, Any, T]]) -> None:
        try:
            self._result = drive(body())
        except BaseException as error:
            self._error = error

    async def result(self) -> T:
        self._thread.join(PATIENCE)
        if self._thread.is_alive():
            raise TimeoutError("a thread of the test did not end")
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]


class SyncHarness(Harness):
    """The blocking entry points, in threads."""

    runtime = THREADS

    def run(self, case: Coroutine[Any, Any, None]) -> None:
        contextvars.Context().run(drive, case)

    async def _call(self, of: object, verb: str, *args: Any, **options: Any) -> Any:
        return getattr(of, verb)(*args, **options)

    @asynccontextmanager
    async def inside(self, lock: Lock | Lease) -> AsyncIterator[Lease]:
        with lock as lease:
            yield lease

    async def lost(self, lease: Lease) -> bool:
        return lease.lost.wait(PATIENCE)

    def decorated(
        self, body: Callable[..., Awaitable[T]], by: Callable[..., Any] = distributed_lockable, **options: Any
    ) -> Callable[..., Coroutine[Any, Any, T]]:
        def function(*args: Any) -> T:
            return drive(body(*args))  # type: ignore[arg-type]

        function.__qualname__ = body.__qualname__  # one job, whatever runs it
        locked: Callable[..., T] = by(**options)(function)

        async def call(*args: Any) -> T:
            return locked(*args)

        return call

    def _start(self, body: Callable[[], Coroutine[Any, Any, T]], context: contextvars.Context) -> Actor[T]:
        return ThreadActor(body, context)

    async def sleep(self, seconds: float) -> None:
        threading.Event().wait(seconds)


class TaskActor(Generic[T]):
    def __init__(self, task: asyncio.Task[T]) -> None:
        self.task = task

    async def result(self) -> T:
        async with asyncio.timeout(PATIENCE):
            return await self.task


class AsyncHarness(Harness):
    """The a-methods, in tasks of one event loop."""

    runtime = TASKS

    def run(self, case: Coroutine[Any, Any, None]) -> None:
        contextvars.Context().run(asyncio.run, case)

    async def _call(self, of: object, verb: str, *args: Any, **options: Any) -> Any:
        return await getattr(of, f"a{verb}")(*args, **options)

    @asynccontextmanager
    async def inside(self, lock: Lock | Lease) -> AsyncIterator[Lease]:
        async with lock as lease:
            yield lease

    async def lost(self, lease: Lease) -> bool:
        async with asyncio.timeout(PATIENCE):
            return await lease.lost

    def decorated(
        self, body: Callable[..., Awaitable[T]], by: Callable[..., Any] = distributed_lockable, **options: Any
    ) -> Callable[..., Coroutine[Any, Any, T]]:
        async def function(*args: Any) -> T:
            return await body(*args)

        function.__qualname__ = body.__qualname__
        locked: Callable[..., Coroutine[Any, Any, T]] = by(**options)(function)
        return locked

    def _start(self, body: Callable[[], Coroutine[Any, Any, T]], context: contextvars.Context) -> TaskActor[T]:
        return TaskActor(asyncio.get_running_loop().create_task(body(), context=context))

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


HARNESSES: dict[str, type[Harness]] = {"threads": SyncHarness, "asyncio": AsyncHarness}
