"""A port made of plain blocking functions, for stores whose driver knows no asyncio: SQL databases, ZooKeeper.

A store implements :class:`BlockingVerbs` once, and its backend is a :class:`BlockingBackend`. A thread calls the verbs
where it is. A task has them run in threads of ours: the event loop never blocks. A waiting caller sleeps on a parker
and takes no thread, and releases have threads of their own: those that want a lock cannot keep one that has it
from giving it back.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from ..core.backend import Backend, Busy, Claim, Granted, LockInfo, Loss, Port, WaiterInfo
from ..core.errors import BackendUnavailable, ConfigurationError, NotSent
from ..core.runtime import TASKS, THREADS, Runtime, now
from .wakeups import Wakeups

T = TypeVar("T")

#: Threads for those that want a lock, and for those that have one.
ACQUIRING_THREADS, HOLDING_THREADS = 8, 4
#: Seconds that a task waits for one of the first; behind a store that hangs it would be the time-outs of all others.
MAX_QUEUED = 5.0
#: Seconds that an interrupted acquisition is waited for before it is cancelled. Where a store's time-out is longer, one
#: may take the lock after that: it has no owner, and ends with its lease.
MAX_INTERRUPTED = 30.0


class BlockingVerbs(Protocol):
    """The verbs of ``core/backend.py``, as functions that any thread may call and that end within a bounded time."""

    @abstractmethod
    def acquire(self, claim: Claim, join: bool, memo: Any) -> Granted | Busy:
        """``join``: stand in the queue if it is another's. ``memo``: of the last ``Busy``; None at first."""

    @abstractmethod
    def cancel(self, claim: Claim) -> None: ...

    @abstractmethod
    def extend(self, claims: Sequence[Claim], timeout: float | None) -> Sequence[Loss | BackendUnavailable | None]: ...

    @abstractmethod
    def release(self, claim: Claim, cooldown: float, record: str | None) -> Loss | None: ...

    def detach(self, claim: Claim, transit: str, seconds: float) -> Loss | None:
        """Only of a store that can ``transfer``."""
        raise AssertionError("nobody asks this of a store that cannot transfer")

    def attach(self, claim: Claim, transit: str) -> Granted | None:
        """A store that cannot ``transfer`` knows no ticket."""
        return None

    @abstractmethod
    def inspect(self, names: Sequence[str] | None) -> list[LockInfo]: ...

    @abstractmethod
    def revoke(self, name: str, fence: int) -> bool: ...

    def names(self, limit: int | None) -> tuple[int, list[str]] | None:
        """None: ``inspect`` reads them all."""
        return None

    def waiters(self, name: str, limit: int) -> list[WaiterInfo] | None:
        """None: it cannot tell."""
        return None

    def done(self, limit: int) -> list[LockInfo]:
        """Only of a store with ``records``, as the next one."""
        return []

    def forget(self, name: str, fence: int) -> bool:
        return False


class Executors:
    """Our threads. Started when a task needs one; a backend makes them anew after a fork."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._start()
        #: By token: requests that make it the owner, whose task was cancelled or closed, and whose thread goes on.
        self.interrupted: dict[str, Future[Any]] = {}

    def _start(self) -> None:
        self.acquiring = ThreadPoolExecutor(ACQUIRING_THREADS, f"distlock-{self._name}-acquire")
        self.holding = ThreadPoolExecutor(HOLDING_THREADS, f"distlock-{self._name}-hold")

    def close(self) -> None:
        """End the threads, each after what it does. A later use starts others."""
        ended = self.acquiring, self.holding
        self._start()
        for pool in ended:
            pool.shutdown(wait=False)


class BlockingPort(Port):
    """The port of one mode over a store's verbs."""

    def __init__(self, verbs: BlockingVerbs, runtime: Runtime, wakeups: Wakeups, executors: Executors) -> None:
        self.runtime = runtime
        self._verbs = verbs
        self._wakeups = wakeups
        self._executors = executors

    async def acquire(self, claim: Claim, wait: float | None) -> Granted | Busy:
        try:
            return await self._acquire(claim, wait != 0, None)
        except NotSent:  # what is not there is not cancelled
            self._wakeups.forget(claim.token)
            raise

    async def wait(self, claim: Claim, busy: Busy, seconds: float | None) -> Granted | Busy:
        parker, begun = self._wakeups.expect(claim.token, self.runtime), now()
        sooner = seconds is not None and seconds < busy.recheck_after
        if not await parker.park(seconds if sooner else busy.recheck_after) and sooner:
            return busy._replace(remaining=max(0.001, busy.remaining - (now() - begun)))
        return await self._acquire(claim, True, busy.memo)

    async def cancel(self, claim: Claim) -> None:
        self._wakeups.forget(claim.token)
        try:
            await self._after_interrupted(claim.token)
        finally:
            self._wakeups.forget(claim.token)  # its thread may have noted meanwhile what it waits for
        await self._hold(self._verbs.cancel, claim)

    async def extend(
        self, claims: Sequence[Claim], timeout: float | None = None
    ) -> Sequence[Loss | BackendUnavailable | None]:
        return await self._hold(self._verbs.extend, claims, timeout)

    async def release(self, claim: Claim, cooldown: float = 0.0, record: str | None = None) -> Loss | None:
        return await self._hold(self._verbs.release, claim, cooldown, record)

    async def detach(self, claim: Claim, transit: str, seconds: float) -> Loss | None:
        tokens = transit, claim.token
        return await self._take(tokens, self._executors.holding, self._verbs.detach, claim, transit, seconds)

    async def attach(self, claim: Claim, transit: str) -> Granted | None:
        return await self._take((claim.token,), self._executors.holding, self._verbs.attach, claim, transit)

    async def inspect(self, names: Sequence[str] | None = None) -> list[LockInfo]:
        return await self._hold(self._verbs.inspect, names)

    async def revoke(self, name: str, fence: int) -> bool:
        return await self._hold(self._verbs.revoke, name, fence)

    async def names(self, limit: int | None = None) -> tuple[int, list[str]] | None:
        return await self._hold(self._verbs.names, limit)

    async def waiters(self, name: str, limit: int) -> list[WaiterInfo] | None:
        return await self._hold(self._verbs.waiters, name, limit)

    async def done(self, limit: int) -> list[LockInfo]:
        return await self._hold(self._verbs.done, limit)

    async def forget(self, name: str, fence: int) -> bool:
        return await self._hold(self._verbs.forget, name, fence)

    async def _acquire(self, claim: Claim, join: bool, memo: Any) -> Granted | Busy:
        if join:
            self._wakeups.expect(claim.token, self.runtime)  # before the place in the queue: no wake-up is missed
        answer = await self._take((claim.token,), self._executors.acquiring, self._ask, now(), claim, join, memo)
        if not (join and isinstance(answer, Busy)) or answer.final:
            self._wakeups.forget(claim.token)
        return answer

    def _ask(self, since: float, claim: Claim, join: bool, memo: Any) -> Granted | Busy:
        """``since`` when it has waited for a thread."""
        if now() - since > MAX_QUEUED:
            raise NotSent(
                f"All {ACQUIRING_THREADS} threads that take locks for tasks were in use for {MAX_QUEUED:g} s: the "
                f"store does not answer, or too many tasks want locks at once."
            )
        return self._verbs.acquire(claim, join, memo)

    async def _take(
        self, tokens: tuple[str, ...], pool: ThreadPoolExecutor, verb: Callable[..., T], *args: object
    ) -> T:
        """A verb that may leave the lock to one of these tokens."""
        if self.runtime is not TASKS:
            return verb(*args)
        try:
            running = _submit(pool, verb, *args)
        except BackendUnavailable as error:
            raise NotSent(str(error)) from error.__cause__
        answer = asyncio.wrap_future(running)
        try:
            return await answer
        except (asyncio.CancelledError, GeneratorExit):
            # One that has not begun is cancelled with the task. One that runs may take the lock yet: see cancel(). Of a
            # coroutine that is closed asyncio cancels nothing; where its loop has ended, it tells nobody.
            with suppress(RuntimeError):
                answer.cancel()
            if not running.cancel():
                self._executors.interrupted.update(dict.fromkeys(tokens, running))
            raise

    async def _after_interrupted(self, token: str) -> None:
        """A cancellation that overtook the acquisition would find nothing to cancel, and leave a lock behind."""
        running = self._executors.interrupted.get(token)
        if running is None:
            return
        parker = self.runtime.parker()
        running.add_done_callback(lambda _: parker.unpark())
        await parker.park(MAX_INTERRUPTED)
        # Not before: if this is interrupted, too, what goes on with the cancellation has to wait as well.
        self._executors.interrupted.pop(token, None)

    async def _hold(self, verb: Callable[..., T], *args: object) -> T:
        if self.runtime is not TASKS:
            return verb(*args)
        return await asyncio.wrap_future(_submit(self._executors.holding, verb, *args))


class BlockingBackend(Backend):
    """The ports of a store of blocking verbs. A backend inherits it, and says what it can do and which settings it has.

    ``renewing``: the verbs on connections for renewals alone; None: those that all have never queue up.
    """

    def __init__(
        self,
        name: str,
        verbs: BlockingVerbs,
        wakeups: Wakeups,
        *,
        renewing: BlockingVerbs | None = None,
    ) -> None:
        for given in (verbs, renewing or verbs):
            if BlockingVerbs not in type(given).__mro__:  # what it does not offer would be missing at its first use
                raise ConfigurationError(
                    f"The verbs of the store {name} are of type {type(given).__name__}, which has to inherit "
                    f"{BlockingVerbs.__module__}.{BlockingVerbs.__name__}."
                )
        self._wakeups, self._executors = wakeups, Executors(name)
        self._sync_port, self._async_port, self._renewal_port = (
            BlockingPort(of, runtime, wakeups, self._executors)
            for of, runtime in ((verbs, THREADS), (verbs, TASKS), (renewing or verbs, THREADS))
        )

    def sync_port(self) -> BlockingPort:
        return self._sync_port

    def async_port(self) -> BlockingPort:
        """One for all event loops: what is an event loop's own is where its tasks sleep."""
        return self._async_port

    def renewal_port(self) -> BlockingPort:
        return self._renewal_port

    def close(self) -> None:
        """At last, when the connections are closed: those that wait ask again, and so open others."""
        self._executors.close()
        self._wakeups.wake_all()


def _submit(pool: ThreadPoolExecutor, verb: Callable[..., T], *args: object) -> Future[T]:
    """Have a thread do it. Where none can be started nothing is done, and not later either."""
    done = Future[T]()
    try:
        pool.submit(_do, done, verb, args)
    except RuntimeError as error:  # the pool keeps what it could not begin, for the next thread
        if done.cancel():
            raise BackendUnavailable(f"No thread could be started to ask the store: {error}.") from error
    return done


def _do(done: Future[T], verb: Callable[..., T], args: tuple[object, ...]) -> None:
    if done.set_running_or_notify_cancel():
        try:
            done.set_result(verb(*args))
        except BaseException as error:
            done.set_exception(error)
            del done  # with the frames of the exception it would be a circle
