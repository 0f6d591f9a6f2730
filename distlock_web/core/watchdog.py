"""The watchdog: one thread per process renews every lease that asked for it, and sees to it that a loss is told.

A lease is renewed at a third of its ``expire`` (the seeds' v7, Redisson). Leases that are due at nearly the same time
share one request per store, on connections of their own. A store that does not answer makes a lease unsure, and its
deadline makes it lost. The thread starts with the first lease and ends with the last; a forked child starts its own.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, cast

from .block import Block
from .errors import DistLockError
from .hold import Hold
from .runtime import drive, now

if TYPE_CHECKING:
    from .registry import Store

logger = logging.getLogger("distlock_web")

#: Seconds that the idle thread stays before it ends: starting one costs more than a sleep.
LINGER = 1.0
#: Seconds that it sleeps at a time: a release does not wake it, and the last of a lease of an hour has to be noticed.
NAP = 5.0
#: Leases in one request: the server runs a script alone, so one must not be long.
BATCH = 500


class Tended:
    """A hold that the watchdog looks after: renewed until ``until``, or only watched for its deadline."""

    __slots__ = ("alive", "due", "gone", "hold", "renew", "until")

    def __init__(
        self,
        hold: Hold,
        renew: bool,
        until: float | None = None,
        alive: Callable[[], bool] = lambda: True,
        gone: Callable[[], None] | None = None,
    ) -> None:
        self.hold = hold
        self.renew = renew
        self.until = until
        self.alive = alive
        self.gone = gone  #: called once when the holder is found dead; left out, the lease is left to end by itself
        self.due = hold.deadline
        self.schedule()

    @property
    def period(self) -> float:
        return self.hold.claim.expire / 3

    def schedule(self) -> None:
        # Counted from its end: a lease that is tended only when most of it is over is due at once.
        self.due = self.hold.deadline - 2 * self.period if self.renew else self.hold.deadline


class Watchdog:
    """The thread and what it tends. All state behind one condition; the network is used outside of it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._tended: set[Tended] = set()
        self._stores: set[Store] = set()  # that it has tended since it started
        self._thread: threading.Thread | None = None
        self._next = float("inf")

    def add(self, tended: Sequence[Tended]) -> None:
        with self._changed:
            self._tended.update(tended)
            self._stores.update([item.hold.store for item in tended])
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="distlock-watchdog", daemon=True)
                thread.start()  # may raise, where the system has no more threads: the next one tries again
                self._thread = thread
            elif min(item.due for item in tended) < self._next:
                self._changed.notify()

    def remove(self, tended: Sequence[Tended]) -> None:
        with self._changed:
            self._tended.difference_update(tended)

    def look(self, tended: Sequence[Tended]) -> None:
        """Look at these at once. It may be called while garbage is collected: it waits for nobody."""
        if self._changed.acquire(blocking=False):
            try:
                for item in tended:
                    item.due = 0.0
                self._changed.notify()
            finally:
                self._changed.release()

    def _run(self) -> None:
        idle_since = now()
        while True:
            with self._changed:
                moment = now()
                if self._tended:
                    idle_since = moment
                elif moment - idle_since >= LINGER:
                    self._thread = None
                    self._stores.clear()
                    return
                self._next = min((item.due for item in self._tended), default=idle_since + LINGER)
                if self._next > moment:
                    self._changed.wait(min(self._next - moment, NAP))
                # Whoever is due within half a period comes along: a thousand leases make a few requests.
                moment = now()
                due = [
                    item
                    for item in self._tended
                    if item.due <= moment or (item.renew and item.due <= moment + item.period / 2)
                ]
                if not any(item.due <= moment for item in due):
                    continue
            try:
                self._tend(due)
            except Exception:
                # A bug here must not end the renewal of every lease in the process.
                logger.exception("The watchdog failed; it goes on")
                self._postpone(due)

    def _tend(self, due: list[Tended]) -> None:
        by_store: defaultdict[Store, list[Tended]] = defaultdict(list)
        for item in due:
            if item.hold.state not in ("held", "unsure"):  # looking at the state is what tells of a loss
                self.remove([item])
            elif item.renew and self._wanted(item):
                by_store[item.hold.store].append(item)
            else:
                item.renew = False  # from now on it is only watched, to its deadline
                item.schedule()
        for store, items in by_store.items():
            for first in range(0, len(items), BATCH):
                self._renew(store, items[first : first + BATCH])

    def _wanted(self, item: Tended) -> bool:
        if not item.alive():
            if item.gone is not None:
                item.gone()
            else:
                logger.warning("Lock %s: its holder has ended without releasing it; no longer renewed.", item.hold.name)
            return False
        return item.until is None or now() < item.until

    def _renew(self, store: Store, items: list[Tended]) -> None:
        since, claims = now(), [item.hold.claim for item in items]
        try:
            losses = drive(store.renewing().extend(claims, self._patience(store, items, since)))
        except DistLockError as error:
            logger.warning("%d locks could not be renewed, trying again: %s", len(items), error)
            self._postpone(items)
            return
        for item, claim, loss in zip(items, claims, losses, strict=True):
            if loss is None:
                item.hold.renewed(since, claim.expire)
                item.schedule()
            elif item.hold.state in ("held", "unsure"):
                # Not ours: unless it is being released at this moment, it is lost.
                item.hold.lose(loss)
                self.remove([item])

    def _patience(self, store: Store, items: list[Tended], moment: float) -> float:
        """How long to wait for an answer: to the first deadline; a store that hangs must not cost the others theirs."""
        patience = min(item.hold.deadline for item in items) - moment
        if len(self._stores) > 1:
            with self._changed:
                others = [item.period for item in self._tended if item.hold.store is not store]
            patience = min(patience, max(0.1, min(others, default=patience)))
        return max(0.05, patience)

    def is_running_here(self) -> bool:
        return threading.current_thread() is self._thread

    def _postpone(self, items: Sequence[Tended]) -> None:
        moment = now()
        for item in items:
            item.hold.doubt()
            item.due = min(moment + max(0.05, item.period / 4), max(item.hold.deadline, moment + 0.001))


_watchdog = Watchdog()


def _forked() -> None:
    global _watchdog
    _watchdog = Watchdog()  # the thread, and perhaps a lock it held, stayed in the parent


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def tend(block: Block) -> None:
    """Renew the block's holds if it asked for it, and watch those of which a loss is to be told."""
    spec = block.spec
    if spec.on_lost == "cancel":
        block.cancel_when_lost()
    elif callable(spec.on_lost):
        block.tell_when_lost(partial(_call_aside, cast("Callable[[Block], object]", spec.on_lost)))
    elif not spec.renew:
        return
    until = now() + spec.renew_for if spec.renew_for is not None else None
    watch(block, [Tended(hold, spec.renew, until, _holder_alive(block)) for hold in block.holds])


def watch(block: Block, tended: Sequence[Tended]) -> None:
    if not tended:  # a call that was let through without its lock
        return
    watchdog = _watchdog
    block.stop_renewing = lambda: watchdog.remove(tended)
    watchdog.add(tended)


def carry(block: Block, longest: float, *, alive: Callable[[], bool], gone: Callable[[], None]) -> Callable[[], None]:
    """Renew the block's holds from now on, for at most ``longest`` seconds, while ``alive``; then call ``gone``.

    What it returns makes the watchdog look at once whether they are alive.
    """
    if block.stop_renewing is not None:
        block.stop_renewing()
    until = now() + longest
    tended = [Tended(hold, True, until, alive, gone) for hold in block.holds]
    watch(block, tended)
    return partial(_watchdog.look, tended)


@contextmanager
def keeping(holds: Sequence[Hold]) -> Iterator[None]:
    """Keep the locks that are held already while the caller waits for a further one."""
    if not holds:
        yield
        return
    tended = [Tended(hold, renew=True) for hold in holds]
    _watchdog.add(tended)
    try:
        yield
    finally:
        _watchdog.remove(tended)


def _call_aside(callback: Callable[[Block], object], block: Block) -> None:
    """Call the user's ``on_lost``; where the watchdog noticed, in a thread of its own, for it may take its time."""
    if _watchdog.is_running_here():
        threading.Thread(target=_call, args=(callback, block), name="distlock-on-lost", daemon=True).start()
    else:
        _call(callback, block)


def _call(callback: Callable[[Block], object], block: Block) -> None:
    try:
        callback(block)
    except Exception:
        logger.exception("on_lost failed")


def _holder_alive(block: Block) -> Callable[[], bool]:
    """Whether anybody is left who could release: a dead holder's lease must not be renewed for ever.

    That is the task or thread that runs now; and the lease itself must not have been dropped.
    """
    lease = weakref.ref(block)
    try:
        task = asyncio.current_task()
    except RuntimeError:
        thread = threading.current_thread()
        return lambda: thread.is_alive() and lease() is not None
    if task is None or getattr(task.get_coro(), "__name__", "") in ("aacquire", "atry_acquire"):
        # Taken through wait_for or create_task: this task ends with the acquisition, the lease does not.
        return lambda: lease() is not None
    return lambda: not task.done() and lease() is not None
