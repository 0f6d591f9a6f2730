"""What you hold: a lease, and what you can do with it while its block runs."""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from types import TracebackType
from typing import Any, TypeVar

from ..core.config import seconds
from ..core.errors import ConfigurationError
from ..core.runtime import TASKS, THREADS, Runtime, drive, in_event_loop, now
from . import engine, transfer
from .scope import Scope, active_scopes

T = TypeVar("T")


class Lost:
    """The event that a lease is lost: ``wait(timeout)`` for threads, ``await`` for tasks, ``is_set()`` for a look.

    It is set at the latest when the lease's deadline comes, before anybody else can have the lock.
    """

    __slots__ = ("_block",)

    def __init__(self, block: Scope) -> None:
        self._block = block

    def is_set(self) -> bool:
        return self._block.state == "lost"

    def wait(self, timeout: float | None = None) -> bool:
        """Scope until the lease is lost (True), or until it is released or ``timeout`` seconds are over (False)."""
        return drive(self._wait(THREADS, timeout))

    def __await__(self) -> Generator[Any, None, bool]:
        """Wait until the lease is lost (True) or released (False)."""
        return self._wait(TASKS, None).__await__()

    async def _wait(self, runtime: Runtime, timeout: float | None) -> bool:
        parker = runtime.parker()
        until = None if timeout is None else now() + timeout
        holds = self._block.holds
        for hold in holds:
            hold.on_change(parker.unpark)
        try:
            while self._block.alive and self._block.state in ("held", "unsure"):
                if not holds:  # let through without a lock: nothing can be lost, and nobody tells of the end
                    if until is not None and now() >= until:
                        break
                    await parker.park(1.0 if until is None else min(1.0, until - now()))
                    continue
                left = self._block.remaining
                if until is not None and (left := min(left, until - now())) <= 0:
                    break
                await parker.park(left + 0.001)  # a millisecond past the deadline, not one before it
            return self.is_set()
        finally:
            for hold in holds:
                hold.forget_callback(parker.unpark)


class Lease(Scope):
    """A lock that is held, made by ``lock(...)``: over when its block ends, lost if the store gave it up before."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<Lease {self.name!r}: {self.state}, {self.remaining:.3f} s left>"

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._blocking(engine.end(self, error))

    async def __aenter__(self) -> Lease:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await engine.end(self, error)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the locks in the store, prefix included."""
        return tuple(hold.name for hold in self.holds)

    @property
    def name(self) -> str:
        return ", ".join(self.names)

    @property
    def fences(self) -> dict[str, int]:
        """For each name the number of this acquisition. It only grows, so a store of data can refuse a late writer."""
        return {hold.name: hold.fence for hold in self.holds if hold.fence is not None}

    @property
    def fence(self) -> int | None:
        """The fence of a lease over one name; None where the store has none, or nothing is guarded."""
        holds = self.holds
        if len(holds) > 1:
            raise ConfigurationError("This lease holds several locks: read lease.fences, a number for each name.")
        return holds[0].fence if holds else None

    @property
    def depth(self) -> int:
        """How many live blocks of this call chain hold the lock; 1: the outermost alone."""
        return max((hold.depth for hold in self.holds), default=0)

    @property
    def reason(self) -> str | None:
        """Why the lease is lost: expired, taken, revoked, unreachable, ended or forked. None: it is not."""
        if self.state != "lost":
            return None
        return next((hold.reason for hold in self.holds if hold.reason), "ended")

    @property
    def lost(self) -> Lost:
        """The event of the loss: ``lease.lost.wait(5)``, ``await lease.lost``, ``lease.lost.is_set()``."""
        return Lost(self)

    def raise_if_lost(self) -> None:
        """Raise ``LeaseLost`` unless the lock is surely still ours. No round trip: it looks at the deadline."""
        for hold in self.holds:
            hold.raise_if_lost()

    def release(self) -> None:
        """Give the lock back before the block ends.

        Raises ``LeaseLost`` if it was lost, ``NotHeld`` if it was given back before, ``BackendUnavailable`` if the
        store does not answer (the lease then ends by itself).
        """
        self._blocking(engine.release(self))

    async def arelease(self) -> None:
        """The asyncio twin of :meth:`release`."""
        await engine.release(self)

    def extend(self, expire: float | None = None) -> None:
        """Give the lease at least ``expire`` seconds from now (left out: its own). ``LeaseLost`` if it is gone."""
        self._blocking(engine.extend(self, seconds(expire, "expire", none=True)))

    async def aextend(self, expire: float | None = None) -> None:
        """The asyncio twin of :meth:`extend`."""
        await engine.extend(self, seconds(expire, "expire", none=True))

    def detach(self, transit: float = 60.0) -> str:
        """Let go of the lock without freeing it; ``attach`` takes it on from the string, within ``transit`` seconds.

        The string is proof of ownership, good for one use: hand it to a Celery task, do not log it.
        """
        return self._blocking(transfer.detach(self, seconds(transit, "transit") or 0.0))

    async def adetach(self, transit: float = 60.0) -> str:
        """The asyncio twin of :meth:`detach`."""
        return await transfer.detach(self, seconds(transit, "transit") or 0.0)

    def _blocking(self, work: Coroutine[Any, Any, T]) -> T:
        if self.runtime is TASKS or in_event_loop():
            work.close()
            raise ConfigurationError("In asyncio code use the lease's a-methods: await lease.arelease(), and so on.")
        return drive(work)


def current_lease() -> Lease | None:
    """The innermost lease that the running code is inside of, for its ``fence`` or ``raise_if_lost()``; or None."""
    return next((block for block in reversed(active_scopes()) if isinstance(block, Lease)), None)
