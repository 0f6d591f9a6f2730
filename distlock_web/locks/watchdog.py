"""Leases are extended by hand, and by the watchdog: a thread that sees to it as well that a loss is told.

The watchdog looks after leases with ``renew``, with ``on_lost="cancel"`` or a callable, and those that are held already
while a further name is awaited (:func:`renewing`). Others know their deadline without it.

There is one thread for each store of the process, and in a Redis Cluster one for each node that has leases: a server
that hangs costs no lease at another. A lease is renewed at a third of its ``expire``, as Redisson does it, the first
ones at once, for that opens the connection. Leases that are due at nearly the same time, and have about as much time
left, share one request, on connections of their own. A store that does not answer makes a lease unsure, and its
deadline makes it lost. The thread starts with the first lease and ends with the last; a forked child starts its own.
"""

from __future__ import annotations

import logging
import weakref
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from operator import attrgetter
from typing import TypeAlias

from ..core.backend import Claim, Loss, Port, retry_once
from ..core.errors import BackendUnavailable, DistLockError
from ..core.process import after_fork
from ..core.registry import Store
from ..core.runtime import TASKS, Runtime, drive, now
from ..core.worker import Worker, Workers, program_ends
from . import events
from .hold import Hold
from .scope import Scope

logger = logging.getLogger("distlock_web")

#: Seconds that the idle thread stays before it ends: starting one costs more than a sleep.
IDLE_TIMEOUT = 1.0
#: Seconds that it sleeps at a time: a release does not wake it, and the last of a lease of an hour has to be noticed.
MAX_SLEEP = 5.0

#: When something is due that is not to wait.
AT_ONCE = float("-inf")

#: Calls of ``on_lost`` that are made at a time, and releases for those who are gone: of a store that fails ten thousand
#: leases are lost at once. Further ones wait until one has ended, so one that never ends takes a place for good.
AT_A_TIME = 64

#: By how much one lease of a request may have more time left than another.
MOST_LEFT = 4.0

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
    since = _asked_at(claims, holds)
    try:
        answers = await _ask_to_extend(port, claims)
    except DistLockError as error:
        for hold in holds:
            hold.tell_of_failure("extend", error)
        raise
    outages = _settle(holds, claims, since, answers)
    for hold, outage in outages.items():
        hold.tell_of_failure("extend", outage)
    for hold in holds:
        if not hold.check():
            raise hold.lost_error()
    for outage in outages.values():
        raise outage


def _asked_at(claims: Sequence[Claim], holds: Sequence[Hold]) -> float:
    """When a request to extend these is sent: now."""
    since = now()
    for hold, claim in zip(holds, claims, strict=True):
        hold.asks(since, claim.expire)
    return since


def _settle(
    holds: Sequence[Hold], claims: Sequence[Claim], since: float, answers: Sequence[Loss | DistLockError | None]
) -> dict[Hold, DistLockError]:
    """What the answers make of the holds: extended, or lost. Of those that are returned nothing is known."""
    outages: dict[Hold, DistLockError] = {}
    for hold, claim, answer in zip(holds, claims, answers, strict=True):
        if answer is None:
            hold.renewed(since, claim.expire)
        elif isinstance(answer, DistLockError):
            outages[hold] = answer
        elif hold.check():  # else it is being given back: nothing was lost
            hold.lose(answer)
    if events.listeners:
        for hold, answer in zip(holds, answers, strict=True):
            if answer is None and hold.state == "held":  # else it came too late
                hold.tell("renewed")
    return outages


async def _ask_to_extend(port: Port, claims: list[Claim]) -> list[Loss | DistLockError | None]:
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

    It is renewed while ``alive``: a lease that no code has any more cannot be released, and is left to its time. A
    block that is never left (of an ``ExitStack`` that is never closed) has its lease until the process ends.
    """

    __slots__ = ("alive", "due", "hold", "renew", "stopped", "until", "when_abandoned")

    def __init__(
        self,
        hold: Hold,
        renew: bool,
        until: float | None = None,
        alive: Callable[[], object] | None = None,
        when_abandoned: Callable[[], None] | None = None,
    ) -> None:
        self.hold = hold
        self.renew = renew
        self.until = until  #: by our clock; None: as long as it is held
        self.alive = alive
        #: Called once when it is not ``alive``; left out, the lease is left to end by itself.
        self.when_abandoned = when_abandoned
        self.stopped = False  #: it is not to be looked after any more, whichever thread it is just handed to
        self.due: float
        self.schedule()

    @property
    def period(self) -> float:
        """Seconds between two renewals."""
        return self.hold.claim.expire / 3

    @property
    def server(self) -> object:
        """Where it is renewed now."""
        return self.hold.store.server_of(self.hold.claim)

    def schedule(self) -> None:
        # Two thirds of the lease before its end, not one third from now on: a lease that comes here with little left
        # is due at once.
        self.due = self.hold.deadline - 2 * self.period if self.renew else self.hold.deadline


_deadline = attrgetter("hold.deadline")


def _batches(items: Sequence[WatchedHold]) -> Iterator[list[WatchedHold]]:
    """Those that may share a request, which is waited for to the first deadline: none has many times as much left.

    A lease of a minute would be lost beside those of half a second, in a store that answers, and needs a second.
    """
    items, first, moment = sorted(items, key=_deadline), 0, now()
    while first < len(items):
        rest = max(0.05, items[first].hold.deadline - moment)
        end = bisect_right(items, moment + MOST_LEFT * rest, first + 1, key=_deadline)
        yield items[first:end]
        first = end


class Watchdog:
    """The thread of one server of a store and what it looks after; ``server`` is None where the store is one.

    Its state is changed in single steps, without a mutex: it may be called while garbage is collected, anywhere.
    """

    def __init__(self, server: object = None) -> None:
        self._server = server
        self._watched: dict[WatchedHold, None] = {}  # in the order in which they came
        self._dues_arrived: deque[float] = deque()  # since the thread has looked at all of them
        self._next = self._idle_since = float("-inf")
        self._worker = Worker("distlock-watchdog", self._step, self._is_left)

    def add(self, watched: Sequence[WatchedHold]) -> None:
        """Look after these. ``RuntimeError`` where the system has no thread more."""
        if not self._worker.runs:
            for item in watched:
                if item.renew:
                    item.due = AT_ONCE  # to connect takes its time: not at a third of a lease that is short
        self._take_on(watched)

    def _take_on(self, watched: Sequence[WatchedHold]) -> None:
        self._keep(watched)
        due = min(item.due for item in watched)
        self._dues_arrived.append(due)
        if not self._worker.start():
            self.remove(watched)
            raise RuntimeError("The thread that renews leases could not be started (see the log).")
        if due < self._next:
            self._worker.wake()

    def _keep(self, watched: Sequence[WatchedHold]) -> None:
        """None that was removed before it came here: its removal may have passed this watchdog already."""
        self._watched.update(dict.fromkeys(watched))
        self.remove([item for item in watched if item.stopped])

    def remove(self, watched: Sequence[WatchedHold]) -> None:
        for item in watched:
            self._watched.pop(item, None)

    def check_now(self, watched: Sequence[WatchedHold]) -> None:
        """Check these at once. It may be called while garbage is collected: it does not wait."""
        for item in watched:
            item.due = AT_ONCE
        self._worker.wake()

    def _is_left(self) -> bool:
        if self._watched:
            self._idle_since = now()
        return now() - self._idle_since < IDLE_TIMEOUT

    def _step(self) -> float:
        """Look after those that are due; the seconds until the next are."""
        self._next = float("-inf")  # who comes from here on is seen below, and wakes no thread
        self._dues_arrived.clear()  # whose items are in the set already
        watched, moment = list(self._watched), now()
        # A lease that is due within half a period comes along: a thousand leases make a few requests.
        due = [item for item in watched if item.due <= moment + (item.period / 2 if item.renew else 0.0)]
        batches = [batch for batch in _batches(due) if any(item.due <= moment for item in batch)]
        for batch in batches:
            self._look_after(batch)
        if batches:
            return 0.0
        soonest = min((item.due for item in watched), default=self._idle_since + IDLE_TIMEOUT)
        self._next = soonest
        # Who came meanwhile did not know yet when we would wake. Not all are looked at again for that: where many are
        # held and others keep coming it would never end.
        while self._dues_arrived:
            self._next = min(self._next, self._dues_arrived.popleft())
        return min(self._next - now(), MAX_SLEEP)

    def _look_after(self, due: list[WatchedHold]) -> None:
        """Renew those that are to be. What fails for one ends no other's renewal."""
        events.never_wait_here()
        to_renew: list[WatchedHold] = []
        for item in due:
            try:
                if self._is_to_renew(item):
                    to_renew.append(item)
            except Exception:
                self._try_again([item])
        for first in range(0, len(to_renew), MAX_BATCH_LEASES):
            batch = to_renew[first : first + MAX_BATCH_LEASES]
            try:
                self._renew(batch)
            except Exception:
                self._try_again(batch)

    def _try_again(self, items: Sequence[WatchedHold]) -> None:
        """In an ``except``: what has failed for these ends no other's renewal."""
        logger.exception("The watchdog failed at the lock %s (of %d); it tries again", items[0].hold.name, len(items))
        self._postpone(items)

    def _is_to_renew(self, item: WatchedHold) -> bool:
        item.due = now()  # before it is asked who is alive: from here on ``check_now`` counts anew
        if not item.hold.check():  # which tells of a loss
            self.remove([item])
            return False
        if self._hand_over(item) or item.stopped:
            return False
        if item.renew and item.alive is not None and not item.alive():
            self._tell_abandoned(item)
            item.renew = False
        elif item.until is not None and now() >= item.until:
            item.renew = False
        if not item.renew:
            item.schedule()
        return item.renew

    def _hand_over(self, item: WatchedHold) -> bool:
        """To the thread of the server that has its lock by now. False: it is this one, or there is no other thread."""
        if (server := item.server) == self._server:
            return False
        other = _watchdog_of(item.hold.store, server)
        self.remove([item])  # first: the other thread may hand it back before we go on
        try:
            other._take_on([item])
        except BaseException as error:
            self._keep([item])
            if isinstance(error, RuntimeError):
                return False
            raise
        return True

    def _tell_abandoned(self, item: WatchedHold) -> None:
        if item.when_abandoned is not None:
            fields = item.hold.log_fields("error", reason="release")
            what = "The release of a lock whose holder is gone"
            if not _releasing.begin((what, item.when_abandoned, fields)):  # it may take its time
                raise RuntimeError("no thread can be started to release it")  # it is tried again
        else:
            logger.warning(
                "Lock %s: nobody has its lease any more, and nobody released it; no longer renewed.",
                item.hold.name,
                extra=item.hold.log_fields("abandoned"),
            )

    def _renew(self, items: list[WatchedHold]) -> None:
        holds = [item.hold for item in items]
        store, claims = holds[0].store, [hold.claim for hold in holds]
        since = _asked_at(claims, holds)
        timeout = max(0.05, min(hold.deadline for hold in holds) - since)  # to the first deadline
        answers: Sequence[Loss | DistLockError | None]
        try:
            answers = drive(store.renewal_port().extend(claims, timeout))
        except DistLockError as error:
            answers = [error] * len(items)
        outages = _settle(holds, claims, since, answers)
        self.remove([item for item in items if item.hold.state == "lost"])
        for item in items:
            if item.due != AT_ONCE:  # as was said meanwhile
                item.schedule()
        for outage in dict.fromkeys(outages.values()):
            self._failed([item for item in items if outages.get(item.hold) is outage], outage)

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
            if item.due != AT_ONCE:
                item.due = min(moment + max(0.05, item.period / 4), max(item.hold.deadline, moment + 0.001))


#: Of each store, by its servers.
_watchdogs: weakref.WeakKeyDictionary[Store, dict[object, Watchdog]] = weakref.WeakKeyDictionary()


#: What is called, as a line of the log names it; itself; and the fields of such a line.
_Call: TypeAlias = tuple[str, Callable[[], object], dict[str, object]]


class _Aside(Workers[_Call]):
    """Threads for what takes its time where a watchdog has noticed it."""

    def __init__(self, name: str) -> None:
        super().__init__(name, AT_A_TIME, lambda call: _call(*call))
        self._told = False  #: that all of them are busy, since they were

    def begin(self, call: _Call) -> bool:
        """Have it called. False, and logged: there is no thread to do it."""
        are_busy = self.are_busy
        if are_busy and not self._told:
            text = "%s waits: each of the %d threads for such calls is busy. One that never ends keeps it for good."
            logger.warning(text, call[0], AT_A_TIME, extra=call[2])
        self._told = are_busy
        self.queue.append(call)
        if self.start():
            return True
        try:
            self.queue.remove(call)
        except ValueError:  # a thread has just taken it
            return True
        return False


_telling, _releasing = _Aside("distlock-on-lost"), _Aside("distlock-abandoned")


def _forked() -> None:
    global _watchdogs, _telling, _releasing
    _watchdogs = weakref.WeakKeyDictionary()  # the threads, and perhaps a lock they held, stayed in the parent
    _telling, _releasing = _Aside("distlock-on-lost"), _Aside("distlock-abandoned")


after_fork(_forked)


def _watchdogs_of(store: Store) -> dict[object, Watchdog]:
    found = _watchdogs.get(store)
    return found if found is not None else _watchdogs.setdefault(store, {})


def _watchdog_of(store: Store, server: object = None) -> Watchdog:
    known = _watchdogs_of(store)
    found = known.get(server)
    return found if found is not None else known.setdefault(server, Watchdog(server))


def _add(watched: Sequence[WatchedHold]) -> None:
    """Look after these, of one store. ``RuntimeError`` where the system has no thread more.

    At the end of the program they go on without: what runs then (``atexit``) has the time of its lease.
    """
    by_server: dict[object, list[WatchedHold]] = {}
    for item in watched:
        by_server.setdefault(item.server, []).append(item)
    try:
        for server, items in by_server.items():
            _watchdog_of(watched[0].hold.store, server).add(items)
    except RuntimeError:
        _remove(watched)
        if not program_ends():
            raise
        hold = watched[0].hold
        text = "Lock %s is not renewed: the program ends, and starts no thread any more. It has its lease."
        logger.warning(text, hold.name, extra=hold.log_fields("error", reason="renew"))


def _remove(watched: Sequence[WatchedHold]) -> None:
    """From whichever has them now, or is just given them."""
    for item in watched:
        item.stopped = True
    for watchdog in list(_watchdogs_of(watched[0].hold.store).values()):
        watchdog.remove(watched)


def _check_now(watched: Sequence[WatchedHold]) -> None:
    """See to it at once: whichever has them. It may be called while garbage is collected: it does not wait."""
    if not watched:  # of a call that was let through without its lock
        return
    for watchdog in list(_watchdogs_of(watched[0].hold.store).values()):
        watchdog.check_now(watched)


def register(scope: Scope) -> None:
    """Renew the scope's holds if it asked for that, and watch them where a loss is to be told at once."""
    spec = scope.spec
    if spec.on_lost == "cancel":
        scope.cancel_when_lost()
    elif callable(spec.on_lost):
        scope.notify_when_lost(partial(_call_aside, spec.on_lost))
    until = now() + spec.renew_for if spec.renew_for is not None else None
    alive = weakref.ref(scope)
    _watch(scope, [WatchedHold(hold, spec.renew, until, alive) for hold in scope.holds])


def renew_while(
    scope: Scope, max_seconds: float, *, alive: Callable[[], bool], when_abandoned: Callable[[], None]
) -> Callable[[], None]:
    """Renew the scope's holds from now on, for at most ``max_seconds``, while ``alive``; then call ``when_abandoned``.

    What it returns makes the watchdog check at once whether they are alive.
    """
    until = now() + max_seconds
    watched = [WatchedHold(hold, True, until, alive=alive, when_abandoned=when_abandoned) for hold in scope.holds]
    _watch(scope, watched)
    return partial(_check_now, watched)


def _watch(scope: Scope, watched: Sequence[WatchedHold]) -> None:
    if not watched:  # a call that was let through without its lock
        return
    stop = partial(_remove, watched)
    scope.watch(stop)  # first: who is interrupted here stops it
    if scope.why_lost is None:  # else it was gone before there was anything to stop
        _add(watched)


@contextmanager
def renewing(holds: Sequence[Hold]) -> Iterator[None]:
    """Keep the locks that are held already while the caller waits for a further one."""
    if not holds:
        yield
        return
    watched = [WatchedHold(hold, renew=True) for hold in holds]
    _add(watched)
    try:
        yield
    finally:
        _remove(watched)


def _call_aside(callback: Callable[[Scope], object], scope: Scope) -> None:
    """Call the user's ``on_lost``; where a watchdog noticed, in another thread, for it may take its time."""
    fields = scope.log_fields("error", reason="on_lost")
    call = "on_lost", partial(callback, scope), fields
    if not any(watchdog.is_running_here() for those in list(_watchdogs.values()) for watchdog in list(those.values())):
        _call(*call, failures=Exception)  # what is none of those is for the caller, whose thread it is
    elif not _telling.begin(call):  # renewals wait for it, but a loss that is not told is worse
        logger.warning("on_lost runs in the thread that renews leases: no other can be started", extra=fields)
        _call(*call)


def _call(
    what: str,
    work: Callable[[], object],
    fields: dict[str, object],
    failures: type[BaseException] = BaseException,
) -> None:
    """Call it; if it fails, log that with these fields. A ``sys.exit()`` of it would end a thread of ours."""
    try:
        work()
    except failures:
        logger.exception("%s failed", what, extra=fields)
