"""The watchdog: one thread per process renews every lease that asked for it, and sees to it that a loss is told.

A lease is renewed at a third of its ``expire`` (the seeds' v7, Redisson). Leases that are due at nearly the same time
share one request per store, on connections of their own. A store that does not answer makes a lease unsure, and its
deadline makes it lost. The thread starts with the first lease and ends with the last; a forked child starts its own.
"""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from ..core.errors import DistLockError
from ..core.registry import Store
from ..core.runtime import after_fork, drive, now
from .hold import Hold
from .scope import Scope
from .watched_hold import WatchedHold, holder_alive

logger = logging.getLogger("distlock_web")

#: Seconds that the idle thread stays before it ends: starting one costs more than a sleep.
IDLE_TIMEOUT = 1.0
#: Seconds that it sleeps at a time: a release does not wake it, and the last of a lease of an hour has to be noticed.
MAX_SLEEP = 5.0
#: Leases in one request: the server runs a script alone, so one must not be long.
MAX_BATCH_LEASES = 500


class Watchdog:
    """The thread and what it looks after. All state behind one condition; the network is used outside of it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._watched: set[WatchedHold] = set()
        self._stores: set[Store] = set()  # that it has watched since it started
        self._thread: threading.Thread | None = None
        self._next = float("inf")

    def add(self, watched: Sequence[WatchedHold]) -> None:
        with self._changed:
            self._watched.update(watched)
            self._stores.update([item.hold.store for item in watched])
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="distlock-watchdog", daemon=True)
                thread.start()  # may raise, where the system has no more threads: the next one tries again
                self._thread = thread
            elif min(item.due for item in watched) < self._next:
                self._changed.notify()

    def remove(self, watched: Sequence[WatchedHold]) -> None:
        with self._changed:
            self._watched.difference_update(watched)

    def look(self, watched: Sequence[WatchedHold]) -> None:
        """Look at these at once; after ``MAX_SLEEP`` where somebody is inside of the condition at this very moment.

        It may be called while garbage is collected: it waits for nobody.
        """
        for item in watched:
            item.look_at(0.0)
        if self._changed.acquire(blocking=False):
            try:
                self._changed.notify()
            finally:
                self._changed.release()

    def _run(self) -> None:
        while True:
            due = self._wait_until_due()
            if due is None:
                return
            try:
                self._look_after(due)
            except Exception:
                # A bug here must not end the renewal of every lease in the process.
                logger.exception("The watchdog failed; it goes on")
                self._postpone(due)

    def _wait_until_due(self) -> list[WatchedHold] | None:
        """What is to be looked at next, when it is; None: there has been nothing for a while, the thread may end."""
        idle_since = now()
        with self._changed:
            while True:
                moment = now()
                if self._watched:
                    idle_since = moment
                elif moment - idle_since >= IDLE_TIMEOUT:
                    self._thread = None
                    self._stores.clear()
                    return None
                self._next = min((item.due for item in self._watched), default=idle_since + IDLE_TIMEOUT)
                if self._next > moment:
                    self._changed.wait(min(self._next - moment, MAX_SLEEP))
                moment = now()
                if any(item.due <= moment for item in self._watched):
                    # Whoever is due within half a period comes along: a thousand leases make a few requests.
                    return [
                        item
                        for item in self._watched
                        if item.due <= moment or (item.renew and item.due <= moment + item.period / 2)
                    ]

    def _look_after(self, due: list[WatchedHold]) -> None:
        by_store: defaultdict[Store, list[WatchedHold]] = defaultdict(list)
        for item in due:
            if not item.hold.check():  # which tells of a loss
                self.remove([item])
            elif item.renew and self._wanted(item):
                by_store[item.hold.store].append(item)
            else:
                item.only_watch()
        for store, items in by_store.items():
            for first in range(0, len(items), MAX_BATCH_LEASES):
                self._renew(store, items[first : first + MAX_BATCH_LEASES])

    def _wanted(self, item: WatchedHold) -> bool:
        if not item.alive():
            if item.gone is not None:
                item.gone()
            else:
                logger.warning("Lock %s: its holder has ended without releasing it; no longer renewed.", item.hold.name)
            return False
        return item.until is None or now() < item.until

    def _renew(self, store: Store, items: list[WatchedHold]) -> None:
        since, claims = now(), [item.hold.claim for item in items]
        try:
            losses = drive(store.renewal_port().extend(claims, self._renewal_timeout(store, items, since)))
        except DistLockError as error:
            logger.warning("%d locks could not be renewed, trying again: %s", len(items), error)
            self._postpone(items)
            return
        for item, claim, loss in zip(items, claims, losses, strict=True):
            if loss is None:
                item.hold.renewed(since, claim.expire)
                item.schedule()
            elif item.hold.check():
                # Not ours: unless it is being released at this moment, it is lost.
                item.hold.lose(loss)
                self.remove([item])

    def _renewal_timeout(self, store: Store, items: list[WatchedHold], moment: float) -> float:
        """How long to wait for an answer: to the first deadline; a store that hangs must not cost the others theirs."""
        timeout = min(item.hold.deadline for item in items) - moment
        if len(self._stores) > 1:
            with self._changed:
                others = [item.period for item in self._watched if item.hold.store is not store]
            timeout = min(timeout, max(0.1, min(others, default=timeout)))
        return max(0.05, timeout)

    def is_running_here(self) -> bool:
        return threading.current_thread() is self._thread

    def _postpone(self, items: Sequence[WatchedHold]) -> None:
        moment = now()
        for item in items:
            item.hold.mark_unsure()
            item.look_at(min(moment + max(0.05, item.period / 4), max(item.hold.deadline, moment + 0.001)))


_watchdog = Watchdog()


def _forked() -> None:
    global _watchdog
    _watchdog = Watchdog()  # the thread, and perhaps a lock it held, stayed in the parent


after_fork(_forked)


def register(scope: Scope) -> None:
    """Renew the scope's holds if it asked for it, and watch those of which a loss is to be told."""
    spec = scope.spec
    if spec.on_lost == "cancel":
        scope.cancel_when_lost()
    elif callable(spec.on_lost):
        scope.notify_when_lost(partial(_call_aside, spec.on_lost))
    elif not spec.renew:
        return
    until = now() + spec.renew_for if spec.renew_for is not None else None
    _watch(scope, [WatchedHold(hold, spec.renew, until, holder_alive(scope)) for hold in scope.holds])


def renew_while(
    scope: Scope, max_seconds: float, *, alive: Callable[[], bool], gone: Callable[[], None]
) -> Callable[[], None]:
    """Renew the scope's holds from now on, for at most ``max_seconds``, while ``alive``; then call ``gone``.

    What it returns makes the watchdog look at once whether they are alive.
    """
    until = now() + max_seconds
    watched = [WatchedHold(hold, True, until, alive, gone) for hold in scope.holds]
    _watch(scope, watched)
    return partial(_watchdog.look, watched)


def _watch(scope: Scope, watched: Sequence[WatchedHold]) -> None:
    if not watched:  # a call that was let through without its lock
        return
    watchdog = _watchdog
    scope.watch(lambda: watchdog.remove(watched))
    watchdog.add(watched)


@contextmanager
def keep_alive(holds: Sequence[Hold]) -> Iterator[None]:
    """Keep the locks that are held already while the caller waits for a further one."""
    if not holds:
        yield
        return
    watched = [WatchedHold(hold, renew=True) for hold in holds]
    _watchdog.add(watched)
    try:
        yield
    finally:
        _watchdog.remove(watched)


def _call_aside(callback: Callable[[Scope], object], scope: Scope) -> None:
    """Call the user's ``on_lost``; where the watchdog noticed, in a thread of its own, for it may take its time."""
    if _watchdog.is_running_here():
        threading.Thread(target=_call, args=(callback, scope), name="distlock-on-lost", daemon=True).start()
    else:
        _call(callback, scope)


def _call(callback: Callable[[Scope], object], scope: Scope) -> None:
    try:
        callback(scope)
    except Exception:
        logger.exception("on_lost failed")
