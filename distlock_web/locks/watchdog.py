"""Leases are extended by hand, and by the watchdog: a thread that sees to it as well that a loss is told.

The watchdog looks after leases with ``renew``, with ``on_lost="cancel"`` or a callable, and those that are held already
while a further name is awaited (:func:`keep_alive`). Others know their deadline without it.

There is one thread for each store of the process, so that a store that hangs costs no lease of another. A lease is
renewed at a third of its ``expire``, as Redisson does it, the first ones at once, for that opens the connection. Leases
that are due at nearly the same time share one request, on connections of their own. A store that does not answer makes
a lease unsure, and its deadline makes it lost. The thread starts with the first lease and ends with the last; a forked
child starts its own.
"""

from __future__ import annotations

import logging
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial

from ..core.backend import Claim, Loss, Port, retry_once
from ..core.errors import BackendUnavailable, DistLockError
from ..core.registry import Store
from ..core.runtime import TASKS, Runtime, after_fork, drive, now
from ..core.worker import Worker, start_thread
from . import events
from .hold import Hold
from .scope import Runner, Scope

logger = logging.getLogger("distlock_web")

#: Seconds that the idle thread stays before it ends: starting one costs more than a sleep.
IDLE_TIMEOUT = 1.0
#: Seconds that it sleeps at a time: a release does not wake it, and the last of a lease of an hour has to be noticed.
MAX_SLEEP = 5.0

#: Leases in one request: the server runs a script alone, so one must not be long, and Lua's stack is bounded.
MAX_BATCH_LEASES = 500


async def extend(scope: Scope, expire: float | None, runtime: Runtime = TASKS) -> None:
    """Extend every hold of the scope; ``LeaseLost`` if one is gone."""
    scope.check_usable()
    if scope.holds:  # none: the call was let through without a lock
        await extend_holds(scope.spec.store.port(runtime), scope.holds, expire)


async def extend_holds(port: Port, holds: list[Hold], expire: float | None) -> None:
    """Give each at least ``expire`` seconds again, None: as many as it was taken for. ``LeaseLost`` if one is gone.

    ``BackendUnavailable`` if there was no answer for some of them; those that were answered for are extended, or lost.
    Very many go in several requests, and none is sent after one that has failed.
    """
    for first in range(0, len(holds), MAX_BATCH_LEASES):
        await _extend_batch(port, holds[first : first + MAX_BATCH_LEASES], expire)


async def _extend_batch(port: Port, holds: list[Hold], expire: float | None) -> None:
    claims = [hold.claim if expire is None else hold.claim._replace(expire=expire) for hold in holds]
    since = now()
    for hold, claim in zip(holds, claims, strict=True):
        hold.asks(since, claim.expire)
    try:
        losses = await _ask_to_extend(port, claims)
    except DistLockError as error:
        for hold in holds:
            hold.tell_of_failure("extend", error)
        raise
    outages = []
    for hold, claim, loss in zip(holds, claims, losses, strict=True):
        if loss is None:
            hold.renewed(since, claim.expire)
        elif isinstance(loss, BackendUnavailable):
            outages.append((hold, loss))
        elif hold.check():  # else it is being given back: nobody has lost anything
            hold.lose(loss)
    for hold, outage in outages:
        hold.tell_of_failure("extend", outage)
    for hold in holds:
        hold.raise_if_lost()
    if outages:
        raise outages[0][1]
    if events.listeners:
        for hold in holds:
            hold.tell("renewed")


async def _ask_to_extend(port: Port, claims: list[Claim]) -> list[Loss | BackendUnavailable | None]:
    """An answer for each claim. Where there was none it is asked once more: all, or the claims of a silent server."""
    losses = list(await retry_once(port.extend, claims))
    unanswered = [place for place, loss in enumerate(losses) if isinstance(loss, BackendUnavailable)]
    if unanswered:
        with suppress(BackendUnavailable):  # then the first answer stands
            for place, loss in zip(unanswered, await port.extend([claims[i] for i in unanswered]), strict=True):
                losses[place] = loss
    return losses


class WatchedHold:
    """A hold that the watchdog looks after: renewed until ``until``, or only watched for its deadline.

    It is renewed while ``alive``; for a ``scope``, while somebody is left who could release it: a dead holder's lease
    must not be renewed for ever.
    """

    __slots__ = ("_alive", "_at_once", "_resumed", "_scope", "due", "gone", "hold", "renew", "until")

    def __init__(
        self,
        hold: Hold,
        renew: bool,
        until: float | None = None,
        scope: Scope | None = None,
        alive: Callable[[], bool] | None = None,
        gone: Callable[[], None] | None = None,
    ) -> None:
        self.hold = hold
        self.renew = renew
        self.due: float
        self.until = until  #: by our clock; None: as long as it is held
        self._scope = None if scope is None else weakref.ref(scope)
        self._alive = alive
        self.gone = gone  #: called once when the holder is found dead; left out, the lease is left to end by itself
        self._at_once = False
        self._resumed = False
        self.schedule()

    def lives(self, ended: dict[Runner, float]) -> bool:
        """Whether to renew it still. ``ended``: for how long the runners have ended that were asked in this round.

        Somebody must have the scope still, and the task or thread in it must live, or have ended less than a lease ago:
        so long it may be on its way, returned by a task, given to a thread that has been started.
        """
        if self._alive is not None:
            return self._alive()
        if self._scope is None:
            return True
        scope = self._scope()
        if scope is None:
            return False
        runner = scope.runner
        if runner is None:
            return True
        if (seconds := ended.get(runner)) is None:
            seconds = ended[runner] = runner.ended_for()
        return seconds < scope.spec.expire

    @property
    def period(self) -> float:
        """Seconds between two renewals."""
        return self.hold.claim.expire / 3

    def schedule(self) -> None:
        # Two thirds of the lease before its end, not one third from now on: a lease that comes here with little left
        # is due at once.
        self.schedule_at(self.hold.deadline - 2 * self.period if self.renew else self.hold.deadline)

    def schedule_at(self, moment: float) -> None:
        """It is due at this moment."""
        self.due = moment
        if self._at_once:  # said while it was being renewed
            self.due = 0.0

    def schedule_now(self) -> None:
        """It is due now; if it is just being renewed, again after that."""
        self._at_once = True
        self.due = 0.0

    def begin_check(self) -> None:
        """From here on ``schedule_now`` and ``resume`` ask for a further check."""
        self._at_once = self._resumed = False

    def only_watch(self) -> None:
        """From now on it is not renewed, only watched, to its deadline."""
        self.renew = False
        if self._resumed:  # while it was found that nobody would release it
            self.renew = True
        self.schedule()

    def resume(self) -> None:
        """Renew it again, from any thread: somebody has entered it."""
        self._resumed = True  # first: only_watch() may run at this moment, and looks at it last
        self.renew = True
        self._resumed = True  # again: of a check that has begun in between only_watch() is still to come
        self.schedule_now()


class Watchdog:
    """The thread of one store and what it looks after.

    Its state is changed in single steps, without a mutex: it may be called while garbage is collected, anywhere.
    """

    def __init__(self) -> None:
        self._watched: set[WatchedHold] = set()
        self._dues_arrived: deque[float] = deque()  # since the thread has looked at all of them
        self._next = self._idle_since = float("-inf")
        self._worker = Worker("distlock-watchdog", self._step, self._is_left)

    def add(self, watched: Sequence[WatchedHold]) -> None:
        """Look after these. ``RuntimeError`` where the system has no thread more: nobody would."""
        if not self._worker.runs:
            for item in watched:
                if item.renew:
                    item.schedule_at(0.0)  # to connect takes its time: not at a third of a lease that is short
        self._watched.update(watched)
        due = min(item.due for item in watched)
        self._dues_arrived.append(due)
        if not self._worker.start():
            self.remove(watched)
            raise RuntimeError("The thread that renews leases could not be started: the process has too many threads.")
        if due < self._next:
            self._worker.wake()

    def remove(self, watched: Sequence[WatchedHold]) -> None:
        self._watched.difference_update(watched)

    def resume(self, watched: Sequence[WatchedHold]) -> None:
        """Renew these again, if that was given up."""
        for item in watched:
            item.resume()
        self._worker.wake()

    def check_now(self, watched: Sequence[WatchedHold]) -> None:
        """Check these at once. It may be called while garbage is collected: it waits for nobody."""
        for item in watched:
            item.schedule_now()
        self._worker.wake()

    def _is_left(self) -> bool:
        if self._watched:
            self._idle_since = now()
        return now() - self._idle_since < IDLE_TIMEOUT

    def _step(self) -> float:
        """Look after those that are due; the seconds until the next are."""
        self._next = float("-inf")  # who comes from here on is seen below, and wakes nobody
        self._dues_arrived.clear()  # whose items are in the set already
        watched, moment = list(self._watched), now()
        # Whoever is due within half a period comes along: a thousand leases make a few requests.
        due = [item for item in watched if item.due <= moment + (item.period / 2 if item.renew else 0.0)]
        if any(item.due <= moment for item in due):
            self._look_after(due)
            return 0.0
        soonest = min((item.due for item in watched), default=self._idle_since + IDLE_TIMEOUT)
        self._next = soonest
        # Who came meanwhile did not know yet when we would wake. Not all are looked at again for that: where many are
        # held and others keep coming it would never end.
        while self._dues_arrived:
            self._next = min(self._next, self._dues_arrived.popleft())
        return min(self._next - now(), MAX_SLEEP)

    def _look_after(self, due: list[WatchedHold]) -> None:
        """Renew first, then tell of those whose holder is gone. What fails for one ends no other's renewal."""
        events.never_wait_here()
        to_renew: list[WatchedHold] = []
        gone: list[WatchedHold] = []
        ended: dict[Runner, float] = {}
        for item in due:
            try:
                self._sort(item, ended, to_renew, gone)
            except Exception:
                self._try_again([item])
        for first in range(0, len(to_renew), MAX_BATCH_LEASES):
            batch = to_renew[first : first + MAX_BATCH_LEASES]
            try:
                self._renew(batch)
            except Exception:
                self._try_again(batch)
        for item in gone:
            try:
                self._tell_gone(item)
            except Exception:
                self._try_again([item])

    def _try_again(self, items: Sequence[WatchedHold]) -> None:
        """In an ``except``: what has failed for these ends no other's renewal."""
        logger.exception("The watchdog failed at the lock %s (of %d); it tries again", items[0].hold.name, len(items))
        self._postpone(items)

    def _sort(
        self,
        item: WatchedHold,
        ended: dict[Runner, float],
        to_renew: list[WatchedHold],
        gone: list[WatchedHold],
    ) -> None:
        item.begin_check()
        if not item.hold.check():  # which tells of a loss
            self.remove([item])
        elif not item.renew:
            item.only_watch()
        elif not item.lives(ended):
            gone.append(item)
        elif item.until is None or now() < item.until:
            to_renew.append(item)
        else:
            item.only_watch()

    def _tell_gone(self, item: WatchedHold) -> None:
        if item.gone is not None:
            fields = item.hold.log_fields("error", reason="release")
            what = "The release of a lock whose holder is gone"
            start_thread("distlock-gone", _call, what, item.gone, fields)  # may take its time
        else:
            logger.warning(
                "Lock %s: its holder has ended without releasing it; no longer renewed.",
                item.hold.name,
                extra=item.hold.log_fields("abandoned"),
            )
        item.only_watch()

    def _renew(self, items: list[WatchedHold]) -> None:
        store, since, claims = items[0].hold.store, now(), [item.hold.claim for item in items]
        timeout = max(0.05, min(item.hold.deadline for item in items) - since)  # to the first deadline
        for item in items:
            item.hold.asks(since, item.hold.claim.expire)
        try:
            losses = drive(store.renewal_port().extend(claims, timeout))
        except DistLockError as error:
            self._failed(items, error)
            return
        for item, claim, loss in zip(items, claims, losses, strict=True):
            if loss is None:
                item.hold.renewed(since, claim.expire)
                item.schedule()
            elif not isinstance(loss, BackendUnavailable) and item.hold.check():
                # Not ours: unless it is being released at this moment, it is lost.
                item.hold.lose(loss)
                self.remove([item])
        for outage in {loss for loss in losses if isinstance(loss, BackendUnavailable)}:
            self._failed([item for item, loss in zip(items, losses, strict=True) if loss is outage], outage)
        if events.listeners:
            for item, loss in zip(items, losses, strict=True):
                if loss is None and item.hold.state == "held":  # else it came too late
                    item.hold.tell("renewed")

    def _failed(self, items: list[WatchedHold], error: DistLockError) -> None:
        fields = items[0].hold.log_fields("error", reason="renew", locks=len(items))
        noun = "lock" if len(items) == 1 else "locks"
        logger.warning("%d %s could not be renewed, trying again: %s", len(items), noun, error, extra=fields)
        self._postpone(items)
        for item in items:
            item.hold.tell_of_failure("renew", error)

    def is_running_here(self) -> bool:
        return self._worker.is_current()

    def _postpone(self, items: Sequence[WatchedHold]) -> None:
        moment = now()
        for item in items:
            item.hold.mark_unsure()
            item.schedule_at(min(moment + max(0.05, item.period / 4), max(item.hold.deadline, moment + 0.001)))


_watchdogs: weakref.WeakKeyDictionary[Store, Watchdog] = weakref.WeakKeyDictionary()


def _forked() -> None:
    global _watchdogs
    _watchdogs = weakref.WeakKeyDictionary()  # the threads, and perhaps a lock they held, stayed in the parent


after_fork(_forked)


def _watchdog_of(store: Store) -> Watchdog:
    found = _watchdogs.get(store)
    return found if found is not None else _watchdogs.setdefault(store, Watchdog())


def register(scope: Scope) -> None:
    """Renew the scope's holds if it asked for that, and watch them where somebody is to be told of a loss at once."""
    spec = scope.spec
    if (spec.renew or spec.on_lost == "cancel") and not scope.outlives_task:
        scope.bind_runner()
    if spec.on_lost == "cancel":
        scope.cancel_when_lost()
    elif callable(spec.on_lost):
        scope.notify_when_lost(partial(_call_aside, spec.on_lost))
    until = now() + spec.renew_for if spec.renew_for is not None else None
    _watch(scope, [WatchedHold(hold, spec.renew, until, scope) for hold in scope.holds])


def renew_while(
    scope: Scope, max_seconds: float, *, alive: Callable[[], bool], gone: Callable[[], None]
) -> Callable[[], None]:
    """Renew the scope's holds from now on, for at most ``max_seconds``, while ``alive``; then call ``gone``.

    What it returns makes the watchdog check at once whether they are alive.
    """
    until = now() + max_seconds
    watched = [WatchedHold(hold, True, until, alive=alive, gone=gone) for hold in scope.holds]
    _watch(scope, watched)
    return partial(_watchdog_of(scope.spec.store).check_now, watched)


def _watch(scope: Scope, watched: Sequence[WatchedHold]) -> None:
    if not watched:  # a call that was let through without its lock
        return
    watchdog = _watchdog_of(scope.spec.store)
    to_renew = [item for item in watched if item.renew]
    scope.watch(lambda: watchdog.remove(watched), partial(watchdog.resume, to_renew))
    watchdog.add(watched)


@contextmanager
def keep_alive(holds: Sequence[Hold]) -> Iterator[None]:
    """Keep the locks that are held already while the caller waits for a further one."""
    if not holds:
        yield
        return
    watched = [WatchedHold(hold, renew=True) for hold in holds]
    watchdog = _watchdog_of(holds[0].store)
    watchdog.add(watched)
    try:
        yield
    finally:
        watchdog.remove(watched)


def _call_aside(callback: Callable[[Scope], object], scope: Scope) -> None:
    """Call the user's ``on_lost``; where a watchdog noticed, in a thread of its own, for it may take its time."""
    work, fields = partial(callback, scope), scope.log_fields("error", reason="on_lost")
    if any(watchdog.is_running_here() for watchdog in list(_watchdogs.values())):
        try:
            start_thread("distlock-on-lost", _call, "on_lost", work, fields)
        except RuntimeError as error:  # renewals wait for it, but a loss that nobody hears of is worse
            logger.warning("on_lost runs in the thread that renews leases: %s", error, extra=fields)
            _call("on_lost", work, fields)
    else:
        _call("on_lost", work, fields)


def _call(what: str, work: Callable[[], object], fields: dict[str, object]) -> None:
    """Call it; if it fails, log that with these fields."""
    try:
        work()
    except Exception:
        logger.exception("%s failed", what, extra=fields)
