"""``leader(...)``: in every worker, and one of them leads: a scheduler, a listener, whatever may run once only.

A thread queues for the lock, and holds it while this process leads. ``stop`` is called when the lease is lost, and
sooner: when renewals have failed until a third of it is left. The lock is given back when ``stop`` has returned, so
two that can speak to the store are never at work at one time. One that cannot has the last third of its lease for
``stop``: if that takes longer, another one starts beside it.
"""

from __future__ import annotations

import atexit
import contextvars
import logging
import os
import sys
import threading
from collections.abc import Callable
from importlib import _bootstrap
from importlib.machinery import ModuleSpec
from types import FrameType

from ..core.errors import BackendUnavailable, ConfigurationError, DistLockError, LockBusy
from ..core.keys import whole_key
from ..core.process import after_fork, around_fork, check_process
from ..core.runtime import THREADS, ThreadParker, drive, now, refuse_in_event_loop
from ..core.setting import Duration, check_plain, refuse_coroutine
from ..core.worker import start_thread
from .call_site import call_site
from .events import log_fields
from .lease import Lease, scope_of
from .lock import Lock
from .options import LockOptions, options_of
from .request_context import request_scope
from .scope import Scope

logger = logging.getLogger("distlock_web")

#: Seconds from the end of the import that has called ``leader()`` to the campaign. A server that loads the app before
#: it forks does so in this time, and leaves the campaign to its workers.
GRACE = 2.0
#: Of a program that runs inside of an import for ever, the seconds until the campaign all the same.
LONGEST_IMPORT = 60.0
#: Whose children do not serve the app: commands, and pools that end their children without a word.
NOT_FOR_THE_APP = {"subprocess", "pty", "socketserver", "multiprocessing.popen_fork", "billiard.popen_fork"}
#: Seconds in the queue at a time: one that is closed there leaves at the end of them. Each end is an event ``busy``.
QUEUE = 60.0
#: Seconds until the next try when the store does not answer.
RETRY = 1.0
#: Seconds between two looks of a leader: its clock stands still while the machine sleeps, and no event tells of the end
#: of the main thread before other threads have ended.
LOOK_EVERY = 0.5

Function = Callable[[], object]


def leader(
    key: str,
    *,
    start: Function,
    stop: Function,
    expire: Duration | None = None,
    prefix: str | None = None,
    store: str | None = None,
) -> Candidate:
    """Let one of all processes that call this lead: ``leader("scheduler", start=start, stop=stop)``.

    ``start`` is called in the process that leads, in a thread of its own. ``stop`` is called before another process
    starts: when this process ends, when the lease is lost, and when it could not be renewed until a third of it was
    left. Then the next process in the queue starts. A process that is killed leads until its lease of ``expire``
    seconds is over.

    The lock is kept until ``stop`` has returned, or raised, as long as the store answers. If the store does not,
    ``stop`` has a third of ``expire`` to return before another process may start. The end of the program waits up to
    ``expire`` seconds for ``stop``.

    Call it in ``wsgi.py`` or ``asgi.py``, in every worker. Leading begins two seconds after the import is over; where
    the app is a script, or is loaded by ``loader.exec_module()`` without an import, two seconds after the call. A
    process that calls ``os.fork()`` before (``gunicorn --preload``) leaves it to its children, which is logged. A child
    of a later fork does not take part, nor does one of ``subprocess``, ``multiprocessing`` or Celery's pool.

    If ``start`` raises, the lock is released without ``stop``, and this process tries again after ``expire`` seconds.
    If ``start`` is still running when it is time to stop, ``stop`` is called beside it, and once more when it has
    returned. Both are plain functions.

    Raises ``ConfigurationError`` for a coroutine function, or an option that is not possible.
    """
    if not isinstance(key, str):
        raise ConfigurationError(f"leader({key!r}): the key is text that names what is led: leader('scheduler', ...).")
    for setting, function in (("start", start), ("stop", stop)):
        if not callable(function):
            raise ConfigurationError(f"leader({key!r}, {setting}={function!r}): it has to be a function.")
        check_plain(function, setting)
    candidate = Candidate(key, start, stop)
    options: LockOptions = {
        "expire": expire, "prefix": prefix, "store": store,
        "wait": QUEUE, "renew": True, "on_lost": candidate._look,
    }  # fmt: skip
    candidate._lock = Lock((whole_key(key),), options_of(options), call_site(sys._getframe(1)))
    candidate._enter()
    return candidate


class Candidate:
    """What ``leader(...)`` gives: whether this process leads, and the way to end that."""

    _lock: Lock

    def __init__(self, name: str, start: Function, stop: Function) -> None:
        self._name = name
        self._start, self._stop = start, stop
        # What a framework has in its context (the app of Flask) names the stores. The locks in it are not ours.
        self._context = contextvars.copy_context()
        self._begin_anew()
        self._begun = False  #: the campaign; a fork before leaves it to the child
        self._closed = False

    def _begin_anew(self) -> None:
        self._mutex = threading.RLock()  # a signal's handler may close it, too
        self._parker = ThreadParker()
        self._term: _Term | None = None
        self._left = False  #: to the children
        main = threading.main_thread()
        self._main = main if main.is_alive() else None  # an embedded interpreter may have none that lives

    def __repr__(self) -> str:
        return f"<Candidate {self._name!r}: {'leader' if self.is_leader() else 'not leader'}>"

    def _log_fields(self) -> dict[str, object]:
        made = self._lock
        try:
            spec = made._options.spec(made._keys, THREADS, template=made._line)
            return Scope(spec, THREADS).log_fields("leader")
        except ConfigurationError:  # there are no stores, or not this one: what is wrong says the line itself
            return log_fields("leader", made._options.store, "", self._name)

    def is_leader(self) -> bool:
        """Whether this process leads: from before ``start`` is called until before ``stop`` is.

        The lease's deadline decides, by the clock of this process and without a request. In a forked child it is False.
        """
        check_process()
        term = self._term
        return term is not None and term.leads()

    def close(self) -> None:
        """Lead no more, for good: ``stop`` is called if this process leads, and another one starts.

        Returns when ``stop`` has returned; at once, if ``start`` or ``stop`` calls it. The end of the program does the
        same by itself. In async code: ``await asyncio.to_thread(candidate.close)``.
        """
        refuse_in_event_loop("`await asyncio.to_thread(candidate.close)`")
        check_process()
        if (term := self._resign()) is not None and threading.current_thread() not in term.threads:
            term.over.wait()

    def _resign(self) -> _Term | None:
        """No term begins from here on. The one that runs is about to end."""
        with self._mutex:
            self._closed = True
        _candidates.discard(self)
        self._look()
        return self._term

    # The campaign ---------------------------------------------------------------------------------------------------

    def _enter(self) -> None:
        """Take part from now on. The caller is perhaps importing the app."""
        _candidates.add(self)
        start_thread("distlock-leader", self._context.copy().run, self._run, _imports_around())

    def _run(self, imports: list[ModuleSpec]) -> None:
        until = now() + LONGEST_IMPORT
        while not self._is_over and any(map(_is_running, imports)) and now() < until:
            self._pause(0.05)
        if not self._is_over:
            self._pause(GRACE)
        if self._is_over:
            if self._left and not self._closed:
                logger.warning(
                    "leader(%r): process %d has forked before it took part, and leaves that to its children for good. "
                    "A server that loads the app and then forks its workers should do so. Any other program has to "
                    "fork before it calls leader(), or %g s after that.",
                    self._name,
                    os.getpid(),
                    GRACE,
                    extra=self._log_fields(),
                )
            return
        self._begun = True
        failing = False
        while not self._is_over:
            pause = 0.0
            try:
                with request_scope(path=f"leader {self._name}"):
                    pause = self._lead(self._lock.acquire())
                failing = False
            except LockBusy:
                failing = False
            except Exception as error:
                if not failing:  # once, not each second
                    known = isinstance(error, BackendUnavailable)
                    text = "leader(%r) could not ask for its lock, and tries again: %s"
                    logger.warning(text, self._name, error, exc_info=not known, extra=self._log_fields())
                failing, pause = True, RETRY
            until = now() + pause
            while not self._is_over and (left := until - now()) > 0:  # a wake-up of before does not end it
                self._pause(left)

    @property
    def _is_over(self) -> bool:
        """Also where the interpreter ends: it waits for other threads first, which perhaps ``stop`` ends."""
        return self._closed or self._left or (self._main is not None and not self._main.is_alive())

    def _look(self, lease: Lease | None = None) -> None:
        """The thread looks at once; also ``on_lost``."""
        self._parker.unpark()

    def _pause(self, seconds: float) -> None:
        drive(self._parker.park(seconds))

    def _lead(self, lease: Lease) -> float:
        """Lead from here to the end of the lease; the seconds until this process may try again."""
        term = _Term(self, lease)
        with self._mutex:
            begins = not self._is_over and term.has_time()
            if begins:
                self._term = term
        try:
            if begins:
                term.serve()
        finally:
            try:
                _give_back(lease, self._name)
            finally:
                self._term = None
                term.over.set()
        return term.expire if term.failed else 0.0

    # Forks ----------------------------------------------------------------------------------------------------------

    def _leave_to_children(self) -> None:
        """In a parent: the app was loaded before the fork, and is served by the children."""
        if not self._begun and not self._left:
            self._left = True
            self._look()

    def _forked(self) -> None:
        """In a child: the campaign is its own if the parent has left it, else it has no part in it."""
        takes_part = not self._begun and _forks_for_the_app()
        self._begin_anew()
        if not takes_part:
            self._closed = True
            _candidates.discard(self)
        else:
            try:
                self._enter()
            except RuntimeError:
                text = "leader(%r) has no thread in this process, which never leads"
                logger.exception(text, self._name, extra=self._log_fields())


class _Term:
    """Of one leader: from the grant of its lock until that is given back."""

    def __init__(self, candidate: Candidate, lease: Lease) -> None:
        self.expire = scope_of(lease).spec.expire
        self.threads: list[threading.Thread] = []  #: of ``start`` and ``stop``
        self.failed = False  #: ``start`` has raised
        self.over = threading.Event()
        self._candidate = candidate
        self._name = candidate._name
        self._lease = lease
        self._fields = scope_of(lease).log_fields("leader")
        self._resigned = False
        self._started, self._stopped = threading.Event(), threading.Event()

    def leads(self) -> bool:
        return not self._resigned and self._lease.remaining > 0

    def has_time(self) -> bool:
        """Whether more than a third of the lease is left: what is below is for ``stop``."""
        return self._lease.remaining > self.expire / 3

    def serve(self) -> None:
        """Call ``start``, and ``stop`` when it is time."""
        logger.info("This process is the leader %r", self._name, extra=self._fields)
        try:
            try:
                self._begin_thread("start", self._call_start)
            except RuntimeError as error:  # too many threads, or the interpreter ends: others may have more
                logger.warning("leader(%r) has no thread for start: %s", self._name, error, extra=self._fields)
                self.failed = True
            while not (self.failed or self._candidate._is_over) and self.has_time():
                self._candidate._pause(min(LOOK_EVERY, self._lease.remaining - self.expire / 3))
        finally:
            self._resigned = True
            if not self.failed:
                self._end()

    def _end(self) -> None:
        why = f"the lease is lost ({self._lease.reason})" if self._lease.lost else "it gives up in time"
        logger.info("This process is no longer the leader %r: %s", self._name, why, extra=self._fields)
        try:
            self._begin_thread("stop", self._call_stop)
        except RuntimeError:  # the interpreter ends: from Python 3.12 on it starts none any more
            self._candidate._context.copy().run(self._in_request, "stop", self._call_stop)
        if not self._stopped.wait(self.expire):
            logger.error(
                "leader(%r): stop has not returned for %g s. Until it has, this process keeps the lock, as long as the "
                "store answers, and nobody else starts.",
                self._name,
                self.expire,
                extra=self._fields,
            )
            self._stopped.wait()

    def _begin_thread(self, what: str, call: Function) -> None:
        start_thread(f"distlock-leader-{what}", self._candidate._context.copy().run, self._in_request, what, call)

    def _in_request(self, what: str, call: Function) -> None:
        self.threads.append(threading.current_thread())
        with request_scope(path=f"leader {self._name}: {what}"):  # inside of no lock
            call()

    def _call_start(self) -> None:
        try:
            _call(self._candidate._start)
        except BaseException:  # also a sys.exit()
            text = "leader(%r): start failed, and another process may try"
            logger.exception(text, self._name, extra=self._fields)
            self.failed = self._resigned = True
        finally:
            self._started.set()
            self._candidate._look()

    def _call_stop(self) -> None:
        try:
            late = not self._started.is_set()
            self._stop_once()
            if late:
                self._started.wait()
                if not self.failed:
                    self._stop_once()  # what was started beside the first
        finally:
            self._stopped.set()

    def _stop_once(self) -> None:
        try:
            _call(self._candidate._stop)
        except BaseException:
            text = "leader(%r): stop failed. The lock is released all the same."
            logger.exception(text, self._name, extra=self._fields)


def _call(function: Function) -> None:
    refuse_coroutine(function(), "It returned a coroutine, which nobody awaits: start and stop are plain functions.")


def _give_back(lease: Lease, name: str) -> None:
    try:
        lease.release()
    except DistLockError as error:  # lost, or the store does not answer: it ends by itself
        logger.warning("leader(%r): %s", name, error, extra=scope_of(lease).log_fields("leader"))


def _imports_around() -> list[ModuleSpec]:
    """Those that the running code is inside of: of an app that is not complete yet.

    Its own thread looks, once. CPython 3.11 breaks, or ends the process, where another one goes through its frames.
    """
    frame: FrameType | None = sys._getframe(1)
    found = list[ModuleSpec]()
    while frame is not None:
        spec = _imported_by(frame)
        if spec is not None and _is_running(spec):
            found.append(spec)
        frame = frame.f_back
    return found


def _imported_by(frame: FrameType) -> ModuleSpec | None:
    """What is imported here: said by ``importlib`` itself, for a compiled module has no frame of its own."""
    at_work = frame.f_globals is vars(_bootstrap) and frame.f_code.co_name == "_load_unlocked"
    return frame.f_locals.get("spec") if at_work else None


def _is_running(spec: ModuleSpec) -> bool:
    """Whether this import has not ended yet. ``importlib`` itself asks so, where a module is imported in a circle."""
    return bool(getattr(spec, "_initializing", False))


def _forks_for_the_app() -> bool:
    """Whether the fork that runs here, in either process, may be that of a server that has loaded the app."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _module(frame).partition(".")[0] in ("distlock_web", "gevent"):
        frame = frame.f_back
    return frame is None or _module(frame) not in NOT_FOR_THE_APP


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__"))


#: Those of this process that have not been closed. They live without anybody who has them.
_candidates: set[Candidate] = set()


def _leave_to_children() -> None:
    if _forks_for_the_app():
        for candidate in list(_candidates):
            candidate._leave_to_children()


def _forked() -> None:
    for candidate in list(_candidates):
        candidate._forked()


after_fork(_forked)
around_fork(lambda: None, _leave_to_children)


@atexit.register
def _finish() -> None:
    """The end of the program waits for ``stop``, for the time of one lease: that is what a killed leader takes."""
    check_process()
    until = now()
    for term in [candidate._resign() for candidate in list(_candidates)]:
        if term is not None:
            term.over.wait(max(0.0, until + term.expire - now()))
