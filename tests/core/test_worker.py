"""One thread while there is something to do: whatever happens to it, what is to be done is done."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any
from weakref import WeakSet

import pytest

from distlock_web.core import worker as module
from distlock_web.core.worker import Worker, Workers
from tests.support.callers import no_thread, threads
from tests.support.waiting import LONG, PATIENCE, SOON, eventually

NAME = "distlock-test"


class Tasks:
    """What is to be done; the first steps fail."""

    def __init__(self, *failures: BaseException) -> None:
        self.left: list[int] = []
        self.done: list[int] = []
        self.failures = list(failures)
        self.seconds = 0.0
        self.worker = Worker(NAME, self.step, lambda: bool(self.left))

    def step(self) -> float:
        if self.failures:
            raise self.failures.pop(0)
        self.done.append(self.left.pop(0))
        return self.seconds

    def add(self, *numbers: int) -> bool:
        self.left += numbers
        return self.worker.start()


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(module, "RETRY", 0.01)
    yield
    eventually(lambda: threads(NAME) == 0, "no thread stays")


def test_the_thread_ends_with_what_is_to_be_done_and_begins_anew() -> None:
    tasks = Tasks()
    for numbers in ([1, 2], [3]):
        assert tasks.add(*numbers)
        eventually(lambda: not tasks.worker.runs, "all is done")
    assert tasks.done == [1, 2, 3]


def test_what_a_step_raises_is_logged_once_and_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    tasks = Tasks(MemoryError("no room"), ValueError("a driver's own"), KeyError("another"))
    with caplog.at_level(logging.ERROR, "distlock_web"):
        tasks.add(1)
        eventually(lambda: tasks.done == [1], "it is tried again")
    (line,) = caplog.records
    assert line.exc_info is not None
    assert line.exc_info[0] is MemoryError


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_has_died_is_replaced() -> None:
    tasks = Tasks(SystemExit())
    tasks.add(1)
    eventually(lambda: threads(NAME) == 0, "it has ended in mid-step")
    assert not tasks.worker.runs
    tasks.add(2)
    eventually(lambda: tasks.done == [1, 2], "another does it")


def test_a_thread_that_cannot_be_started_is_missed_by_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """It was taken for one that runs, and nothing was ever done any more."""
    tasks = Tasks()
    with no_thread(NAME):
        assert not tasks.add(1)
    assert "can't start new thread" in caplog.text
    assert tasks.add(2)
    eventually(lambda: tasks.done == [1, 2], "the next start does it")


def test_nor_is_one_that_cannot_even_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sub-interpreter may have no daemon threads: ``start`` raised, where it has to say that there is none."""

    def refused(*args: object, **options: object) -> None:
        raise RuntimeError("daemon threads are disabled in this (sub)interpreter")

    tasks = Tasks()
    assert tasks.add(1)
    eventually(lambda: tasks.done == [1] and not tasks.worker.runs, "all is done")
    with monkeypatch.context() as patched:
        patched.setattr(threading, "Thread", refused)
        assert not tasks.add(2)
    assert tasks.add(3)
    eventually(lambda: tasks.done == [1, 2, 3], "the next start does it")


def test_nor_is_one_whose_start_was_interrupted() -> None:
    tasks = Tasks()
    with no_thread(NAME, KeyboardInterrupt()), pytest.raises(KeyboardInterrupt):
        tasks.add(1)
    assert tasks.add(2)
    eventually(lambda: tasks.done == [1, 2], "the next start does it")


def test_who_comes_during_a_start_that_fails_starts_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was told that a thread runs, and there was none."""
    tasks, start, beside = Tasks(), threading.Thread.start, list[threading.Thread]()

    def fail_once(thread: threading.Thread) -> None:
        if thread.name == NAME and not beside:
            beside.append(threading.Thread(target=tasks.add, args=(2,), daemon=True))
            start(beside[0])
            beside[0].join(0.2)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", fail_once)
    assert not tasks.add(1)
    eventually(lambda: tasks.done == [1, 2], "the other's thread does both")
    beside[0].join(SOON)


def test_garbage_that_is_collected_in_a_start_starts_no_second(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks, start, within = Tasks(), threading.Thread.start, []

    def collect(thread: threading.Thread) -> None:
        if thread.name == NAME:
            within.append(tasks.add(2))
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", collect)
    tasks.add(1)
    eventually(lambda: tasks.done == [1, 2], "one thread does both")
    assert within == [True]


def test_garbage_that_is_collected_in_the_very_thread_that_is_started_waits_for_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It waited for whoever started the thread, who waited for the thread: no lock of the process went on."""
    tasks, start, within = Tasks(), threading.Thread.start, []

    def collect(thread: threading.Thread) -> None:
        """Before it has told that it has started."""
        thread._ident = threading.get_ident()  # type: ignore[attr-defined]
        within.append(tasks.add(2))

    def begin(thread: threading.Thread) -> None:
        if thread.name == NAME:
            beginning = threading.Thread(target=collect, args=(thread,), daemon=True)
            start(beginning)
            beginning.join(SOON)
            thread._ident = None  # type: ignore[attr-defined]
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", begin)
    tasks.add(1)
    assert within == [True]
    eventually(lambda: tasks.done == [1, 2], "one thread does both")


def test_what_garbage_brings_in_the_moment_of_the_end_is_done() -> None:
    """Nothing was left when the thread looked, and it had not yet said that it ends."""
    tasks = Tasks()
    is_left, late = tasks.worker._is_left, [2]

    def look() -> bool:
        found = is_left()
        if not found and late:
            tasks.add(late.pop())
        return found

    tasks.worker._is_left = look
    tasks.add(1)
    eventually(lambda: tasks.done == [1, 2], "another thread does it")


def test_what_comes_when_the_thread_ends_is_done() -> None:
    tasks = Tasks()

    class Window:
        """In the moment after the thread has seen that there is nothing left to do."""

        def __init__(self, lock: Any) -> None:
            self._lock, self._open = lock, True

        def __enter__(self) -> None:
            self._lock.acquire()

        def __exit__(self, *error: object) -> None:
            ends = self._open and tasks.done and threading.current_thread() is not threading.main_thread()
            self._lock.release()
            if ends:
                self._open = False
                tasks.add(2)

    tasks.worker._lock = Window(tasks.worker._lock)  # type: ignore[assignment]
    tasks.add(1)
    eventually(lambda: tasks.done == [1, 2], "it is done, too")


def test_it_sleeps_until_it_is_woken_or_stopped() -> None:
    tasks = Tasks()
    tasks.seconds = PATIENCE * 100
    tasks.add(1, 2, 3)
    eventually(lambda: tasks.done == [1], "the first")
    tasks.worker.wake()
    eventually(lambda: tasks.done == [1, 2], "the second")
    tasks.worker.stop()
    eventually(lambda: threads(NAME) == 0, "it ends, whatever is left")
    tasks.add()
    eventually(lambda: tasks.done == [1, 2, 3], "a start after the stop")
    tasks.worker.wake()


def test_a_wake_up_during_a_step_makes_another() -> None:
    tasks = Tasks()
    entered, may_end = threading.Event(), threading.Event()

    def step() -> float:
        if not tasks.done:
            entered.set()
            assert may_end.wait(PATIENCE)
        tasks.done.append(tasks.left.pop())
        return PATIENCE * 100 if tasks.left else 0.0

    tasks.worker = Worker(NAME, step, lambda: bool(tasks.left))
    tasks.add(1, 2)
    assert entered.wait(PATIENCE)
    tasks.worker.wake()
    may_end.set()
    eventually(lambda: len(tasks.done) == 2, "nobody sleeps over it")


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_forked_child_has_a_thread_of_its_own() -> None:
    tasks = Tasks()
    tasks.seconds = 60.0
    tasks.add(1, 2)
    eventually(lambda: tasks.done == [1], "it sleeps")
    child = os.fork()
    if child == 0:
        try:
            assert not tasks.worker.runs
            tasks.add(3)
            eventually(lambda: tasks.done[:2] == [1, 2], "the child's does it")
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    tasks.worker.stop()


# Several threads ----------------------------------------------------------------------------------------------------


def refused(caplog: pytest.LogCaptureFixture) -> int:
    return sum("could not be started" in record.getMessage() for record in caplog.records)


def test_of_several_threads_those_that_are_not_to_be_had_are_asked_for_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """For each of ten thousand calls each thread that the process did not have was tried again, and logged."""
    monkeypatch.setattr(module, "RETRY", LONG)
    done, begun, go_on = list[int](), threading.Event(), threading.Event()

    def do(number: int) -> None:
        begun.set()
        assert go_on.wait(PATIENCE)
        done.append(number)

    workers = Workers(NAME, 8, do)
    workers.queue.append(0)
    assert workers.start()
    assert begun.wait(PATIENCE)
    with no_thread(NAME):
        workers.queue.extend(range(1, 9))
        assert workers.start()
        assert workers.start()
        go_on.set()
        eventually(lambda: sorted(done) == list(range(9)) and not workers.runs, "the thread that runs does it")
        assert refused(caplog) == 1
        workers.queue.append(9)
        assert not workers.start()
    assert workers.start()
    eventually(lambda: done[9:] == [9], "where none runs it is tried again at once")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_of_several_that_has_died_is_replaced() -> None:
    done = list[int]()

    def do(number: int) -> None:
        if not number:
            raise SystemExit
        done.append(number)

    workers = Workers(NAME, 1, do)
    for number in range(2):
        workers.queue.append(number)
        assert workers.start()
        eventually(lambda: not workers.queue and not workers.runs, "it has ended")
    assert done == [1]


def test_nobody_is_missed_where_nothing_is_left_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread took the last while its own could not be started, which was said to be undone."""
    workers, start = Workers[int](NAME, 2, int), threading.Thread.start

    def take_the_last(thread: threading.Thread) -> None:
        if thread.name == NAME:
            workers.step()
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", take_the_last)
    workers.queue.append(1)
    assert workers.start()
    assert workers.start()


def test_at_the_end_of_the_program_each_does_what_is_left_in_its_turn(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One's ``sys.exit()`` ended it for the others, and a server that did not answer took the time of a listener."""
    monkeypatch.setattr(module, "_with_last", WeakSet())
    monkeypatch.setattr(module, "MAX_EXIT_DELAY", PATIENCE)
    told, turns = list[int](), [3, 1, 4, 0, 5, 2, 7, 6]

    def last(turn: int) -> None:
        told.append(turn)
        raise SystemExit(1)

    workers = [Worker(NAME, lambda: 0.0, lambda: True, partial(last, turn), turn) for turn in turns]
    module._finish()
    assert told == sorted(turns)
    assert len(workers) == caplog.text.count("A library thread failed at the end of the program")
