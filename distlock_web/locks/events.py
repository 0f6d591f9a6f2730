"""One stream of events about locks. Metrics, traces, signals and logs are made of it.

    waited        the lock was not free: the caller queued for ``waited`` seconds, and then got it or was refused
    acquired      the caller has the lock; ``reason`` is ``attached`` if the lock was handed over
    busy          the caller was refused: ``holder`` has the lock
    renewed       the lease was extended
    released      the lease is over. ``reason``: ``detached`` (handed over), ``unreachable`` (the store did not answer;
                  the lease ends by itself), else empty
    lost          the lease was over before its block ended; ``reason`` as in ``lease.reason``
    error         the store failed; ``reason``: acquire, release, renew, extend or transfer; ``detail`` in words
    let_through   ``on_backend_error="open"``: the function runs without its lock
    revoked       a lock was released by force, in this process; ``reason``: by whom
    unsent        ``unique(task)`` has not sent the task, for it is queued, or running

``acquired`` is followed by one ``released`` or ``lost`` with the same ``lease``, unless the program forgets the lease
(``live_leases.py``) or ends.

A listener cannot break or delay a lock: it runs in its own thread, behind a bounded queue, and its exceptions are
logged. ``subscribe(..., inline=True)`` is for short listeners that need the caller's context. An event is published
after the lock has done its own work. Without listeners no event is made: publishers check ``listeners`` first.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias

from ..core.process import after_fork
from ..core.request_id import HolderInfo
from ..core.runtime import now
from ..core.setting import Duration, check_plain, check_timeout
from ..core.worker import MAX_EXIT_DELAY, Worker

__all__ = ["Event", "Kind", "Listener", "flush", "log", "subscribe", "unsubscribe"]

logger = logging.getLogger("distlock_web")
_event_logger = logging.getLogger("distlock_web.events")

Kind: TypeAlias = Literal[
    "waited",
    "acquired",
    "busy",
    "renewed",
    "released",
    "lost",
    "error",
    "let_through",
    "revoked",
    "unsent",
]

_SERIOUS = ("lost", "error", "let_through", "revoked")

#: Events that may wait for one listener; what comes on top of them is dropped.
MAX_QUEUED = 10_000
#: Seconds that a listener's idle thread stays before it ends.
IDLE_TIMEOUT = 1.0


class Event(NamedTuple):
    """What has happened to one lock. All durations are seconds."""

    kind: Kind
    store: str  #: its alias
    name: str
    #: What names of this kind are made of: the decorator's ``key=``; for ``lock(...)`` its line, ``module:line``.
    template: str
    at: float  #: seconds since the epoch
    #: A number that the events of one acquisition share, in this process; 0: it never came to one.
    lease: int = 0
    fence: int | None = None
    expire: float = 0.0  #: how long the lease was asked for; of ``renewed``: what is left of it now
    waited: float = 0.0  #: how long it was queued for
    held: float | None = None  #: how long it is, or was, ours; of one that is busy: its holder's
    reason: str = ""
    detail: str = ""
    claimant: str = ""  #: who took it or asked for it, as it stands in the store; ``caller`` has read it
    other: HolderInfo | None = None

    @property
    def caller(self) -> HolderInfo:
        """Who took it, or asked for it."""
        return HolderInfo.loads(self.claimant)

    @property
    def holder(self) -> HolderInfo | None:
        """Who has it, as far as that is known: of a lock that is ``busy``, the other caller."""
        return self.other if self.kind in ("busy", "revoked") else self.caller

    @property
    def request_id(self) -> str:
        """That of the caller; empty outside of a request."""
        return self.caller.request_id

    def log_fields(self) -> dict[str, object]:
        """For ``extra=`` of a log record: what is known, each under a name that begins with ``lock_``."""
        known = {
            "waited": self.waited, "held": self.held, "reason": self.reason, "detail": self.detail,
            "fence": self.fence, "lease": self.lease, "request_id": self.request_id, "function": self.caller.function,
        }  # fmt: skip
        if self.other is not None:
            known["holder"] = self.other.describe()
        known = {name: value for name, value in known.items() if value}
        return log_fields(self.kind, self.store, self.name, self.template, **known)


def log_fields(event: str, store: str, name: str, template: str, **known: object) -> dict[str, object]:
    """``extra=`` for a log record that is made without an event. ``event``: what happened; ``known``: more fields."""
    fields = {"event": event, "store": store, "name": name, "template": template, **known}
    return {f"lock_{key}": value for key, value in fields.items()}


class Background:
    """``Background(function)(*args)`` calls ``function(*args)`` soon, in a thread of its own: its caller never waits.

    What the function raises is logged, once. It may be called while garbage is collected, anywhere.
    """

    def __init__(self, function: Callable[..., object], turn: int = 1) -> None:
        self._function = function
        self._turn = turn
        self._dropping = self._failed = False
        self.begin_anew()
        _in_background.add(self)

    def __repr__(self) -> str:
        return f"<Background {self._function!r}>"

    def begin_anew(self) -> None:
        """In a forked child: what is queued is done in the parent."""
        self._queue: deque[tuple[Any, ...] | threading.Event] = deque()
        self._idle_since = float("-inf")
        self._worker = Worker(
            "distlock-events", self._step, self._is_left, lambda: self.flush(MAX_EXIT_DELAY), self._turn
        )

    def __call__(self, *args: Any) -> None:
        if self._worker.is_current():
            return  # the function itself takes locks, and would be called for ever
        if len(self._queue) >= MAX_QUEUED:
            if not self._dropping:
                self._dropping = True
                logger.error("%r cannot keep up with the events of locks: some events are dropped.", self._function)
            return
        self._dropping = False
        self._queue.append(args)
        if self._worker.runs or self._worker.start():
            self._worker.wake()

    def flush(self, timeout: float) -> None:
        """Wait, for so many seconds, until all that was queued before has been done."""
        if self._worker.is_current() or not (self._queue or self._worker.runs):
            return
        done = threading.Event()
        self._queue.append(done)
        until = now() + timeout
        if self._worker.start():
            self._worker.wake()
            done.wait(max(0.0, timeout))
        else:  # the program ends, or has no thread more: what is queued is done here
            while not done.is_set() and now() < until:
                self._do_next()

    def _is_left(self) -> bool:
        return bool(self._queue) or now() - self._idle_since < IDLE_TIMEOUT

    def _step(self) -> float:
        while self._queue:
            self._do_next()
        self._idle_since = now()
        return IDLE_TIMEOUT

    def _do_next(self) -> None:
        try:
            queued = self._queue.popleft()
        except IndexError:  # two callers of ``flush`` have no thread
            return
        if isinstance(queued, threading.Event):
            queued.set()
            return
        try:
            self._function(*queued)
        except BaseException as error:  # also a sys.exit(): without the thread no listener would be told any more
            if not self._failed:
                self._failed = True
                logger.exception("The listener %r to the events of locks failed; logged once.", self._function)
            if not isinstance(error, Exception) and not self._worker.is_current():
                raise  # in the caller of ``flush`` it is that one's


_in_background: weakref.WeakSet[Background] = weakref.WeakSet()

Listener: TypeAlias = Callable[[Event], object]

#: Whom to call, in the thread where it happens. The tuple is replaced, never changed: it is read without a mutex.
listeners: tuple[Listener, ...] = ()

_by_subscriber: dict[Listener, Listener] = {}
_changing = threading.RLock()


def subscribe(listener: Listener, *, inline: bool = False) -> Listener:
    """Tell ``listener`` of every event from now on: ``subscribe(print)``; also a decorator.

    It is called in a thread of its own, one event after the other. If it cannot keep up, events are dropped, and that
    is logged. With ``inline`` it is called in the thread, the context and the event loop of the lock, which waits for
    it: it must be quick. Either way what it raises is logged, once, and goes no further. Subscribing twice changes
    nothing. ``ConfigurationError`` for a coroutine function, which would not be awaited.
    """
    global listeners
    check_plain(listener, "A listener")
    with _changing:
        if listener not in _by_subscriber:
            target: Listener = listener if inline else Background(listener)
            _by_subscriber[listener] = target
            listeners = (*listeners, target)
    return listener


def unsubscribe(listener: Listener) -> None:
    """Tell ``listener`` no more. What happened before is told still, to one with a thread of its own."""
    global listeners
    with _changing:
        target = _by_subscriber.pop(listener, None)
        listeners = tuple(each for each in listeners if each is not target)
        _reported.discard(id(target))


def log(event: Event) -> None:
    """A listener, ``subscribe(log)``: each event is a line of the logger ``distlock_web.events``, and has fields."""
    level = logging.WARNING if event.kind in _SERIOUS else logging.INFO
    if _event_logger.isEnabledFor(level):
        why = f" ({event.reason or event.detail})" if event.reason or event.detail else ""
        text = "Lock %r in the store %r: %s%s"
        _event_logger.log(level, text, event.name, event.store, event.kind, why, extra=event.log_fields())


def flush(timeout: Duration = 1.0) -> None:
    """Wait until everybody has been told of what has happened so far, so long in all."""
    until = now() + check_timeout(timeout)
    _deferred.flush(until - now())
    for listener in listeners:
        if isinstance(listener, Background):
            listener.flush(until - now())


class _ThisThread(threading.local):
    deferring = False
    running: tuple[Listener, ...] = ()


_this_thread = _ThisThread()


def never_wait_here() -> None:
    """From now on this thread waits for no listener, not even an inline one: the watchdog has leases to renew."""
    _this_thread.deferring = True


def publish(
    kind: Kind,
    store: str,
    name: str,
    template: str,
    *,
    other: HolderInfo | None = None,
    **known: object,
) -> None:
    """If anybody listens, make an ``Event`` and tell them. ``known`` are further fields of it."""
    if listeners:
        event = Event(kind, store, name, template, time.time(), other=other, **known)  # type: ignore[arg-type]
        if _this_thread.deferring:
            _deferred(event)
        else:
            _tell(event)


def failed(
    operation: str,
    store: str,
    name: str,
    template: str,
    error: BaseException,
    *,
    claimant: str = "",
) -> None:
    """The store failed in this: acquire, release, renew, extend or transfer."""
    publish("error", store, name, template, reason=operation, detail=str(error), claimant=claimant)


def _tell(event: Event) -> None:
    running = _this_thread.running
    for listener in listeners:
        if listener in running:
            continue  # a lock that it takes itself: it would be told of that for ever
        _this_thread.running = (*running, listener)
        try:
            listener(event)
        except Exception:
            _report_once(listener)
        finally:
            _this_thread.running = running


_deferred = Background(_tell, turn=0)  # at the end of the program before the listeners, whom it tells
_reported: set[int] = set()


def _forked() -> None:
    global _changing
    _changing = threading.RLock()  # another thread of the parent may have had it
    for each in list(_in_background):
        each.begin_anew()


after_fork(_forked)


def _report_once(listener: Listener) -> None:
    if id(listener) not in _reported:
        _reported.add(id(listener))
        logger.exception("The listener %r to the events of locks failed; it is not logged again.", listener)
