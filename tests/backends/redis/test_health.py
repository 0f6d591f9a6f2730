"""What is kept for the time when a server answers again, and who asks whether it does."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import pytest

from distlock_web import BackendUnavailable, configure
from distlock_web.backends.redis.transport import health
from distlock_web.backends.redis.transport.health import FOR_EVER, Health
from distlock_web.core.registry import registry
from distlock_web.core.runtime import now
from tests.support.callers import no_thread
from tests.support.waiting import LONG, SOON, eventually


@pytest.fixture
def unanswered(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Health, threading.Event]]:
    """The health of a server that answers from the moment of the event on."""
    configure({"default": {"LOCATION": redis_url}})
    answers = threading.Event()
    monkeypatch.setattr(Health, "_answers", lambda self: answers.is_set())
    watched = Health(registry().store("default").backend._address)  # type: ignore[attr-defined]
    yield watched, answers
    watched.close()


def test_what_does_not_end_by_itself_is_kept_however_much_comes_after_it(
    unanswered: tuple[Health, threading.Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After 10,000 cancelled claims a node of a quorum was left out for ever."""
    monkeypatch.setattr(health, "MAX_POSTPONED", 5)
    watched, answers = unanswered
    done: list[int] = []
    watched.failed(TimeoutError("no answer"))
    watched.postpone(lambda: done.append(-1), after=0.0, within=FOR_EVER)
    for number in range(20):
        watched.postpone(lambda number=number: done.append(number), after=0.0, within=LONG)  # type: ignore[misc]
    answers.set()
    eventually(lambda: len(done) == 5, "what is left is done", SOON)
    assert done == [-1, 16, 17, 18, 19]


def test_one_that_fails_keeps_none_of_the_others(
    unanswered: tuple[Health, threading.Event], caplog: pytest.LogCaptureFixture
) -> None:
    watched, answers = unanswered
    done: list[str] = []

    def fail() -> None:
        raise LookupError("a bug")

    watched.postpone(fail, after=0.0, within=LONG)
    watched.postpone(lambda: done.append("the other"), after=0.0, within=LONG)
    answers.set()
    eventually(lambda: done, "the other is done", SOON)
    assert "a bug" in caplog.text


def test_without_a_thread_that_asks_nobody_is_refused(
    unanswered: tuple[Health, threading.Event], caplog: pytest.LogCaptureFixture
) -> None:
    """At the end of the interpreter, or where a system has no more threads, a finished block raised RuntimeError."""
    watched, _ = unanswered
    with no_thread("distlock-health"), caplog.at_level(logging.WARNING):
        watched.failed(TimeoutError("no answer"))
        watched.postpone(lambda: None, after=0.0, within=LONG)
    assert "can't start new thread" in caplog.text
    watched.refuse_if_silent()


def test_who_is_refused_sees_to_it_that_somebody_asks(unanswered: tuple[Health, threading.Event]) -> None:
    """A signal came while the thread was started: all were refused for ever, and nobody asked."""
    watched, answers = unanswered
    with no_thread("distlock-health", KeyboardInterrupt()), pytest.raises(KeyboardInterrupt):
        watched.failed(TimeoutError("no answer"))
    with pytest.raises(BackendUnavailable):
        watched.refuse_if_silent()
    answers.set()
    eventually(lambda: not watched.silent, "somebody has asked", SOON)
    watched.refuse_if_silent()


def test_a_server_that_answers_and_refuses_is_not_asked_without_a_pause(
    unanswered: tuple[Health, threading.Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A master that has become a replica was connected to some hundred times a second, until the lease had ended."""
    asked: list[int] = []

    def refuse() -> None:
        asked.append(len(asked))
        raise BackendUnavailable("READONLY")

    watched, answers = unanswered
    monkeypatch.setattr(health, "RETRY_AFTER", 60.0)
    answers.set()
    watched.postpone(refuse, after=0.0, within=LONG)
    eventually(lambda: asked, "it is asked", SOON)
    threading.Event().wait(0.1)
    assert asked == [0]


def test_a_silence_that_begins_while_the_thread_hears_an_answer_is_one(
    unanswered: tuple[Health, threading.Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server answered what was asked before; what was asked since waited in vain."""
    watched, answers = unanswered
    really_answers, begun_anew = watched._answers, threading.Event()

    def meanwhile() -> bool:
        if answers.is_set() and not begun_anew.is_set():
            watched._silent_since = now()
            begun_anew.set()
            answers.clear()
            return True
        return really_answers()

    monkeypatch.setattr(watched, "_answers", meanwhile)
    watched.failed(TimeoutError("no answer"))
    answers.set()
    assert begun_anew.wait(SOON)
    threading.Event().wait(0.05)
    assert watched.silent
    answers.set()
    eventually(lambda: not watched.silent, "it answers again", SOON)
