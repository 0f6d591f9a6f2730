"""One thread, for as long as there is something to do."""

from __future__ import annotations

import atexit
import logging
import sys
import threading
from collections import deque
from collections.abc import Callable
from operator import attrgetter
from typing import Generic, TypeVar
from weakref import WeakSet

from .process import Process, check_process
from .runtime import ThreadParker, drive, now

T = TypeVar("T")

logger = logging.getLogger("distlock_web")

#: Seconds until the next step after one that has failed.
RETRY = 0.5
#: Seconds after which the end of the program waits for no further one.
MAX_EXIT_DELAY = 1.0

_warned = False
_ends = False


def program_ends() -> bool:
    """Whether no thread of ours starts any more because the program ends: since Python 3.12, before ``atexit``."""
    return _ends


def start_thread(name: str, work: Callable[..., object], *args: object) -> threading.Thread:
    """A thread for one piece of work. Raises ``RuntimeError`` where there is none to be had."""
    return _start(threading.Thread(target=work, args=args, name=name, daemon=True))


def _start(thread: threading.Thread) -> threading.Thread:
    """The one place where a thread of ours starts: where it would stand still that is said, once."""
    global _warned, _ends
    uwsgi = sys.modules.get("uwsgi")  # it exists inside of uWSGI only
    if uwsgi is not None and not _warned and not getattr(uwsgi, "has_threads", True):
        _warned = True
        logger.warning(
            "uWSGI runs no threads between two requests, so a lease with renew=True is not renewed and ends after "
            "its expire. Set enable-threads = true. docs/web-servers.md explains it."
        )
    try:
        thread.start()
    except RuntimeError as error:
        _ends = _ends or "interpreter shutdown" in str(error)
        raise
    return thread


class _Run:
    """A thread, and where it sleeps."""

    __slots__ = ("begun", "parker", "starter", "thread")

    def __init__(self, target: Callable[[_Run], None], name: str) -> None:
        self.parker = ThreadParker()  # no Event: a signal's exception inside of its set() would leave it locked
        self.thread = threading.Thread(target=target, args=(self,), name=name, daemon=True)
        self.begun = False
        self.starter: int | None = threading.get_ident()  #: who starts it; None: it is started

    @property
    def lasts(self) -> bool:
        return self.thread.ident is None or self.thread.is_alive()  # the first: it is being started


class Worker:
    """Calls ``step`` again and again, each time after the seconds that the last one gave, until nothing ``is_left``.

    ``is_left`` is asked before each step, and takes no lock of its caller's. A caller with something to do makes that
    true, and then calls :meth:`start`: so it is done by the thread that runs, or by another. What a step raises is
    logged, and does not end the thread. One that has ended all the same, or is of the process that has forked, is
    replaced by the next ``start``.

    ``last``: what to do at the end of the program, which waits for it, if something is left then. It waits a second for
    all of them: those of an earlier ``turn`` come first.
    """

    def __init__(
        self,
        name: str,
        step: Callable[[], float],
        is_left: Callable[[], bool],
        last: Callable[[], object] | None = None,
        turn: int = 0,
    ) -> None:
        self._name = name
        self._step = step
        self._is_left = is_left
        # Reentrant: garbage that is collected inside may release a lock, and so have something to do.
        self._lock = threading.RLock()
        self._run: _Run | None = None  #: the one that is wanted; changed in one step
        self._failing = False
        self._last = last
        self.turn = turn
        self._generation = Process.generation
        if last is not None:
            _with_last.add(self)

    @property
    def runs(self) -> bool:
        """Whether there is a thread that sees what is to be done from now on."""
        run = self._run
        return run is not None and run.lasts

    def is_current(self) -> bool:
        """Called in a step: whether its thread is still the one that is wanted."""
        return self._run is not None and self._run.thread is threading.current_thread()

    def start(self) -> bool:
        """Have it done. False, and logged: there is no thread to do it, for the process has no more, or ends."""
        run = self._run
        if run is not None and not run.begun and threading.get_ident() in (run.starter, run.thread.ident):
            return True  # garbage that is collected in the start, or in the very thread, must not wait for that
        with self._lock:
            if self.runs:
                return True
            run = self._run = None
            try:
                run = self._run = _Run(self._work, self._name)
                _start(run.thread)
            except RuntimeError as error:
                self._tell(error)
            finally:
                if run is not None:
                    run.starter = None
                    if run.thread.ident is None and self._run is run:
                        self._run = None
            return self._run is not None

    def _tell(self, error: RuntimeError) -> None:
        # At the end of the program the caller does it, or says what is not done.
        level = logging.INFO if program_ends() else logging.WARNING
        logger.log(level, "The thread %s could not be started: %s", self._name, error)

    def wake(self) -> None:
        """The next step is due now; nothing, if no thread runs."""
        if (run := self._run) is not None:
            run.parker.unpark()

    def stop(self) -> None:
        """The thread ends after its step, whatever is left. The next ``start`` begins another."""
        with self._lock:
            run, self._run = self._run, None
        if run is not None:
            run.parker.unpark()

    def finish(self) -> None:
        """Do at the end of the program what is left: of this process, not of the one that has forked it."""
        if self._last is not None and self._generation == Process.generation and self._is_left():
            self._last()

    def _work(self, run: _Run) -> None:
        run.begun = True
        while self._goes_on():
            # A wake-up during the step is not lost: it makes another one.
            drive(run.parker.park(self._seconds_after_step()))

    def _goes_on(self) -> bool:
        """In one step with the end: what comes to be done is either seen here, or finds no thread and begins one."""
        with self._lock:
            if not self.is_current():
                return False
            mine, self._run = self._run, None
            # If garbage that is collected from here on has something to do, it begins another thread.
            if not self._is_left() or self._run is not None:
                return False
            self._run = mine
            return True

    def _seconds_after_step(self) -> float:
        try:
            seconds = self._step()
        except Exception:
            if not self._failing:  # once, not twice a second
                logger.exception("The thread %s has failed, and tries again", self._name)
            self._failing = True
            return RETRY
        self._failing = False
        return seconds


class Workers(Generic[T]):
    """Threads for a queue of work, so many at most: they start as work comes, and end when none is left."""

    def __init__(self, name: str, at_most: int, do: Callable[[T], object]) -> None:
        self.queue: deque[T] = deque()
        self._do = do
        self._workers = [Worker(name, self.step, lambda: bool(self.queue)) for _ in range(at_most)]
        self._refused = float("-inf")  #: when the process had no thread more, since the last one that could be started

    @property
    def runs(self) -> bool:
        return any(worker.runs for worker in self._workers)

    @property
    def are_busy(self) -> bool:
        """Whether what is queued now has to wait, for there are no more threads than run."""
        return all(worker.runs for worker in self._workers)

    def is_current(self) -> bool:
        """Called in a piece of the work: whether it is one of these threads."""
        return any(worker.is_current() for worker in self._workers)

    def start(self) -> bool:
        """Have done what is queued. False, and logged: there is no thread to do it."""
        idle = [worker for worker in self._workers if not worker.runs]
        done = len(idle) < len(self._workers)
        if done and now() < self._refused + RETRY:  # ten thousand calls do not ask, and log, ten thousand times
            return True
        for worker in idle[: len(self.queue)]:
            if not worker.start():  # the process has no thread more: not for the next ones either
                self._refused = now()
                break
            done, self._refused = True, float("-inf")
        return done or not self.queue  # else another thread has just taken the last

    def step(self) -> float:
        """Do the first of what is queued: in this thread, where there is no other."""
        try:
            work = self.queue.popleft()
        except IndexError:  # another one has just taken the last
            return 0.0
        self._do(work)
        return 0.0


_with_last: WeakSet[Worker] = WeakSet()


@atexit.register
def _finish() -> None:
    check_process()
    until = now() + MAX_EXIT_DELAY
    for worker in sorted(_with_last, key=attrgetter("turn")):
        if now() < until:
            try:
                worker.finish()
            except BaseException:  # also a listener's sys.exit(): the others are told all the same
                logger.exception("A library thread failed at the end of the program")
