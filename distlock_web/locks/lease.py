"""What a caller holds: a lease, and what can be done with it while its block runs."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Literal, Never, TypeAlias

from ..core.errors import ConfigurationError, DistLockError, LeaseLost, LossReason, NotHeld
from ..core.keys import shorten, whole_key
from ..core.process import check_process
from ..core.runtime import TASKS, THREADS, drive, refuse_in_event_loop
from ..core.setting import Duration, check_seconds
from . import ending, handover, watchdog
from .elsewhere import refuse_arguments
from .hold import State
from .lost import Lost
from .reentry import chain
from .reentry.entering import begin_block
from .scope import Scope

#: What happens when a lease is lost: raise at the end of the block, log, cancel the task, or call with the lease.
OnLost: TypeAlias = "Literal['raise', 'warn', 'cancel'] | Callable[[Lease], object]"


class Lease:
    """A held lock, made by ``lock(...)``. It is over when its block ends, and lost if the store gave it up before that.

    It is a handle. Two handles of the same block are equal. Its attributes are read when they are asked for, and
    reading changes nothing.

    ``with lease:`` and ``async with lease:`` release the lock at the end of the block, in any thread or task. Code in
    the block is inside the lock: it enters the lock again without waiting, and ``on_lost="cancel"`` cancels its task.
    With ``renew=True`` the lease is renewed until it is released, as long as the object exists. Entering raises
    ``NotHeld`` if the lease is over, and ``LeaseLost`` if it is lost, before the block begins.

    A call that ``on_backend_error="open"`` let through without its lock also has a lease. Its ``acquired`` is False,
    and it holds nothing: until it is over its ``state`` is ``held``, ``remaining`` is 0, ``raise_if_lost`` and
    ``extend`` do nothing, and ``detach`` raises ``NotHeld``.
    """

    __slots__ = ("_its_scope",)

    def __init__(self, scope: Scope) -> None:
        self._its_scope = scope

    @property
    def _scope(self) -> Scope:
        check_process()  # what it tells may be asked first in a copy of the process that holds it
        return self._its_scope

    def __eq__(self, other: object) -> bool:
        return other._scope is self._scope if isinstance(other, Lease) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._scope)

    def __repr__(self) -> str:
        return f"<Lease {self.name!r}: {self.state}, {self.remaining:.3f} s left>"

    def __enter__(self) -> Lease:
        try:
            refuse_in_event_loop("`async with lease:`")
            self._enter()
        except (ConfigurationError, NotHeld):
            raise
        except BaseException as error:
            # Of several locks only one may be lost, and a signal's exception may come: no other code releases them.
            ending.end_now(self._its_scope, error)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            ending.end_now(self._scope, error)
        except DistLockError:
            raise
        except BaseException as interruption:  # a signal's, perhaps before anything was done
            drive(ending.abort(self._its_scope, interruption, success=error is None))  # nothing, where it ended
            raise

    async def __aenter__(self) -> Lease:
        try:
            self._enter()
        except LeaseLost as error:
            await ending.end(self._scope, error)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await ending.end(self._scope, error)

    def _enter(self) -> None:
        scope = self._scope
        scope.check_usable()
        begin_block(scope)
        if scope.cancelling is not None:
            scope.cancelling.bind_task()
        chain.enter(scope)

    # What it is ---------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The name of the lock in the store, with its prefix. Several names are separated by commas."""
        return ", ".join(self.names)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the locks in the store, with their prefix. Empty if ``acquired`` is False."""
        return tuple(hold.name for hold in self._scope.holds)

    @property
    def acquired(self) -> bool:
        """False: the store did not answer, and ``on_backend_error="open"`` let the call through without its lock."""
        return self._scope.locked

    @property
    def fence(self) -> int | None:
        """The fence of a lease over one name. None if the store has no fences, or the lock was not acquired.

        Raises ``ConfigurationError`` for a lease over several names: use ``fence_for``.
        """
        holds = self._scope.holds
        if len(holds) > 1:
            raise ConfigurationError("This lease holds several locks: each has its own fence, lease.fence_for(key).")
        return holds[0].fence if holds else None

    def fence_for(self, key: object) -> int | None:
        """The fence of one of its locks, by the key as in ``lock(key)``. None as for ``fence``.

        Raises ``ConfigurationError`` for a key that this lease is not over.
        """
        spec = self._scope.spec
        name = shorten(spec.prefix + whole_key(key))
        if name not in spec.names:
            raise ConfigurationError(f"This lease does not hold {name!r}, only {', '.join(spec.names)}.")
        return self.fences.get(name)

    @property
    def fences(self) -> dict[str, int]:
        """The fence for each name. Fences only grow, so data that stores them can refuse a late writer."""
        return {hold.name: hold.fence for hold in self._scope.holds if hold.fence is not None}

    @property
    def depth(self) -> int:
        """How many live blocks of this call chain hold the lock; 1: only the outermost."""
        return max((hold.depth for hold in self._scope.holds), default=0)

    # How it stands ------------------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """``held``, ``unsure`` (the store is not answering), ``lost``, ``releasing`` or ``released``.

        For a call without its lock (``acquired`` is False) it is ``held``, then ``released``.
        """
        return self._scope.state

    @property
    def reason(self) -> LossReason | None:
        """Why the lease is lost: expired, taken, revoked, unreachable, ended or forked. None if it is not lost."""
        if self._scope.state != "lost":
            return None
        lost = self._scope.why_lost
        return next((reason for hold in self._scope.holds if (reason := hold.reason)), lost().reason if lost else None)

    @property
    def remaining(self) -> float:
        """Seconds that the lease will certainly live without a renewal; 0 without a lock."""
        return self._scope.remaining

    @property
    def lost(self) -> Lost:
        """The event of the loss: ``lease.lost.wait(5)``, ``await lease.lost``, ``if lease.lost:``."""
        return Lost(self._scope)

    def raise_if_lost(self) -> None:
        """Raise ``LeaseLost`` if the lease is lost, as far as this process knows: by the deadline, without a request.

        It also raises if the lease is over, even if an outer block still holds the lock.

        For a call that was let through without its lock it does nothing: check ``acquired``.
        """
        self._scope.raise_if_lost()

    # What can be done with it -------------------------------------------------------------------------------------

    def release(self) -> None:
        """Release the lock before the block ends.

        Raises ``LeaseLost`` if the lease was lost, ``NotHeld`` if it was released before, ``BackendUnavailable`` if
        the store does not answer (then the lease ends by itself).
        """
        refuse_in_event_loop("`await lease.arelease()`")
        ending.end_now(self._scope, None, by_hand=True)

    async def arelease(self) -> None:
        """The asyncio twin of :meth:`release`."""
        await ending.end(self._scope, None, by_hand=True)

    def extend(self, expire: Duration | None = None, **other_words: Never) -> None:
        """Give the lease at least ``expire`` seconds from now (default: its own ``expire``). Without a lock: nothing.

        Raises ``LeaseLost`` if the lease is lost, ``NotHeld`` if it is over, ``BackendUnavailable`` if the store does
        not answer.
        """
        if other_words:
            refuse_arguments("extend()", (), other_words)
        refuse_in_event_loop("`await lease.aextend()`")
        drive(watchdog.extend(self._scope, self._check_extension(expire), THREADS))

    async def aextend(self, expire: Duration | None = None, **other_words: Never) -> None:
        """The asyncio twin of :meth:`extend`."""
        if other_words:
            refuse_arguments("aextend()", (), other_words)
        await watchdog.extend(self._scope, self._check_extension(expire))

    def detach(self, transit: Duration = 60.0) -> str:
        """Give up the lease without freeing the lock. Returns a ticket: ``attach`` takes the lock over with it.

        The ticket is valid for ``transit`` seconds, and for one use. It proves ownership: hand it to a task, and do not
        log it.
        """
        refuse_in_event_loop("`await lease.adetach()`")
        return drive(handover.detach(self._scope, self._check_lifetime(transit, "transit"), THREADS))

    async def adetach(self, transit: Duration = 60.0) -> str:
        """The asyncio twin of :meth:`detach`."""
        return await handover.detach(self._scope, self._check_lifetime(transit, "transit"), TASKS)

    def _check_extension(self, expire: Duration | None) -> float | None:
        return None if expire is None else self._check_lifetime(expire, "expire", or_none=", or None")

    def _check_lifetime(self, given: Duration, setting: str, or_none: str = "") -> float:
        shortest = self._scope.spec.store.backend.capabilities.min_expire
        return check_seconds(given, setting, minimum=shortest, or_none=or_none)


def scope_of(lease: Lease) -> Scope:
    """What the lease is a handle of; for the parts of this package that stand above it."""
    return lease._scope


def current_lease() -> Lease | None:
    """The innermost lease that the running code is inside, for its ``fence`` or ``raise_if_lost()``; or None."""
    scope = chain.innermost_scope()
    return None if scope is None else Lease(scope)
