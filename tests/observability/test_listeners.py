"""Nobody who listens can break a lock, hold it up, or cost anything while he does not listen."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from functools import partial
from typing import Any
from weakref import WeakSet

import pytest

from distlock_web import events, lock
from distlock_web.core import worker
from distlock_web.locks import events as stream
from distlock_web.locks.events import Event
from distlock_web.testing.harness import Harness
from tests.support.callers import no_thread
from tests.support.modes import in_both_modes
from tests.support.renewals import renewed_now
from tests.support.source import PROJECT
from tests.support.waiting import LONG, PATIENCE

pytestmark = pytest.mark.usefixtures("memory_store")

#: What Python 3.12 says where a thread would start at the end of the program.
AT_EXIT = "can't create new thread at interpreter shutdown"

LAST = """
import atexit
from distlock_web import configure, events, lock

configure({"default": {"BACKEND": "memory"}})
events.subscribe(lambda event: print(f"{event.kind}\\n", end="", flush=True))  # one write: two threads print

def last():
    with lock("a", renew=True, expire=60):
        print("inside\\n", end="", flush=True)

atexit.register(last)
"""


def take() -> None:
    with lock("a"):
        pass


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]


@in_both_modes
async def test_while_nobody_listens_no_event_is_made(
    harness: Harness, memory_store: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[object] = []
    monkeypatch.setattr(stream, "Event", lambda *args, **known: made.append(args))
    assert events.listeners == ()
    async with harness.inside(lock("a")) as lease:
        await harness.extend(lease)
    assert made == []
    events.subscribe(lambda event: None, inline=True)
    async with harness.inside(lock("a")):
        pass
    assert len(made) == 2


@pytest.mark.parametrize(("inline", "error"), [(True, LookupError), (False, LookupError), (False, SystemExit)])
def test_a_listener_that_fails_is_logged_once_and_goes_on(
    inline: bool, error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    """``sys.exit()`` ended the thread silently, and nobody was told of anything any more."""
    told: list[Event] = []

    def fail(event: Event) -> None:
        told.append(event)
        raise error("of the listener")

    after: list[Event] = []
    events.subscribe(fail, inline=inline)
    events.subscribe(after.append, inline=True)
    take()
    take()
    events.flush(PATIENCE)
    assert len(told) == len(after) == 4
    [message] = errors(caplog)
    assert "fail" in message
    assert "of the listener" in caplog.text


def test_a_listener_that_blocks_holds_up_no_lock() -> None:
    go_on, begun = threading.Event(), threading.Event()
    told: list[str] = []

    def block(event: Event) -> None:
        begun.set()
        assert go_on.wait(PATIENCE)
        told.append(event.kind)

    events.subscribe(block)
    take()
    assert begun.wait(PATIENCE)
    take()  # while the first event is not done with
    assert told == []
    go_on.set()
    events.flush(PATIENCE)
    assert told == ["acquired", "released"] * 2


def test_what_does_not_fit_is_dropped_and_said_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "MAX_QUEUED", 3)
    go_on, begun = threading.Event(), threading.Event()
    told: list[Event] = []

    def block(event: Event) -> None:
        begun.set()
        assert go_on.wait(PATIENCE)
        told.append(event)

    events.subscribe(block)
    take()
    assert begun.wait(PATIENCE)
    for _ in range(10):
        take()
    go_on.set()
    events.flush(PATIENCE)
    assert len(told) == 4
    assert len(errors(caplog)) == 1
    assert "cannot keep up" in caplog.text


@in_both_modes
async def test_an_inline_listener_does_not_hold_up_the_watchdog(harness: Harness, memory_store: None) -> None:
    """It renews the leases of others: who is told by it is told in a thread beside it."""
    go_on, told = threading.Event(), []

    def block(event: Event) -> None:
        if event.kind == "renewed":
            told.append(threading.current_thread().name)
            assert go_on.wait(PATIENCE)

    events.subscribe(block, inline=True)

    async def blocked() -> bool:
        return bool(told)

    async with harness.inside(lock("a", expire=LONG, renew=True)) as lease:
        await harness.until(blocked)
        for _ in range(2):
            renewed_now(lease)
        go_on.set()
    assert set(told) == {"distlock-events"}


@pytest.mark.parametrize("inline", [True, False])
def test_a_listener_is_not_told_of_its_own_locks(inline: bool) -> None:
    told: list[str] = []
    other: list[str] = []

    def take_another(event: Event) -> None:
        told.append(event.name)
        with lock("log"):
            pass

    events.subscribe(take_another, inline=inline)
    events.subscribe(lambda event: other.append(event.name), inline=True)
    take()
    events.flush(PATIENCE)
    assert told == ["disLock:a"] * 2
    assert sorted(other) == ["disLock:a"] * 2 + ["disLock:log"] * 4


def test_to_subscribe_twice_is_to_subscribe() -> None:
    told: list[Event] = []
    listener = told.append
    assert events.subscribe(listener, inline=True) is listener
    events.subscribe(listener, inline=True)
    take()
    assert len(told) == 2
    events.unsubscribe(listener)
    events.unsubscribe(listener)
    take()
    assert len(told) == 2
    assert events.listeners == ()


def test_no_thread_to_be_had_is_no_reason_for_a_lock_to_fail(caplog: pytest.LogCaptureFixture) -> None:
    told: list[str] = []
    events.subscribe(lambda event: told.append(event.kind))
    with no_thread("distlock-events"):
        take()
    assert "can't start new thread" in caplog.text
    take()
    events.flush(PATIENCE)
    assert told == ["acquired", "released"] * 2


@pytest.mark.parametrize("why", ["can't start new thread", AT_EXIT])
def test_a_flush_without_a_thread_tells_them_itself(
    why: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It returned at once, and at the end of the program nobody was told."""
    monkeypatch.setattr(worker, "_ends", False)
    told: list[str] = []

    def tell(event: Event) -> None:
        told.append(event.kind)
        if len(told) < 4:
            take()  # what it does itself is told next time: else for ever

    events.subscribe(tell)
    with no_thread("distlock-events", RuntimeError(why)), caplog.at_level(logging.INFO, "distlock_web"):
        take()
        events.flush(PATIENCE)
        assert told == ["acquired", "released"]
        events.flush(PATIENCE)
        assert told == ["acquired", "released"] * 3
    levels = {record.levelno for record in caplog.records if "could not be started" in record.getMessage()}
    assert levels == {logging.INFO if why == AT_EXIT else logging.WARNING}


@pytest.mark.slow
def test_at_the_end_of_the_program_a_lock_is_taken_and_told_of() -> None:
    """Python 3.12 starts no thread in ``atexit``: a renewed lock was an error there, and its events were dropped."""
    done = subprocess.run(
        [sys.executable, "-c", LAST], cwd=PROJECT, capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    told = done.stdout.split()
    assert "inside" in told, done.stderr
    assert [kind for kind in told if kind in ("acquired", "released")] == ["acquired", "released"], done.stderr


def test_at_the_end_of_the_program_all_are_told_of_what_was_put_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who was asked first had nothing yet: what a thread that waits for nobody had seen was still to come to it."""
    monkeypatch.setattr(worker, "MAX_EXIT_DELAY", PATIENCE)
    monkeypatch.setattr(stream, "MAX_EXIT_DELAY", PATIENCE)
    monkeypatch.setattr(worker, "_with_last", WeakSet([stream._deferred._worker]))
    told = list[int]()

    def tell(number: int, event: Event) -> None:
        told.append(number)

    for number in range(20):
        events.subscribe(partial(tell, number))
    with no_thread("distlock-events"):
        stream._deferred(Event("acquired", "default", "a", "a", 0.0))
        worker._finish()
    assert sorted(told) == list(range(20))


def test_a_signal_in_a_listener_leaves_nothing_held(seen: list[Event]) -> None:
    """What is no ``Exception`` ends the program, or the task: it is not a listener's failure, and passes."""

    def interrupt(event: Event) -> None:
        if event.kind == "acquired":
            raise KeyboardInterrupt

    events.subscribe(interrupt, inline=True)
    with pytest.raises(KeyboardInterrupt):
        take()
    events.unsubscribe(interrupt)
    assert [event.kind for event in seen] == ["acquired", "released"]
    assert not lock("a").locked()


@pytest.mark.slow
def test_a_forked_child_tells_its_own_listener() -> None:
    read, write = os.pipe()
    parent = os.getpid()

    @events.subscribe
    def listener(event: Event) -> None:
        os.write(write, b"p" if os.getpid() == parent else b"c")

    take()
    events.flush(PATIENCE)
    pid = os.fork()
    if pid == 0:  # the thread that listens is not here
        try:
            take()
            events.flush(PATIENCE)
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    os.close(write)
    assert os.read(read, 100) == b"ppcc"
    os.close(read)


@pytest.mark.slow
def test_a_child_that_is_forked_while_another_thread_subscribes_can_subscribe() -> None:
    inside, leave = threading.Event(), threading.Event()

    def subscribing() -> None:
        with stream._changing:
            inside.set()
            leave.wait(PATIENCE)

    thread = threading.Thread(target=subscribing)
    thread.start()
    inside.wait(PATIENCE)
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(5)
        events.subscribe(lambda event: None)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    leave.set()
    thread.join()


@pytest.mark.slow
def test_the_end_of_the_program_tells_what_is_queued(tmp_path: Any) -> None:
    import subprocess

    program = tmp_path / "nightly.py"
    program.write_text(
        "from distlock_web import configure, events, lock\n"
        "configure({'default': {'BACKEND': 'memory'}})\n"
        "events.subscribe(lambda event: print(event.kind, event.template))\n"
        "with lock('a'):\n    pass\n"
    )
    said = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=60, check=True)
    assert said.stdout.split("\n")[:2] == ["acquired nightly.py:4", "released nightly.py:4"]
    assert said.stderr == ""
