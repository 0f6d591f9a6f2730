"""Whether the database is known to be silent, and for how long: not longer than it is."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

from distlock_web.backends.sql import silence as module
from distlock_web.backends.sql.address import address
from distlock_web.backends.sql.silence import Silence
from distlock_web.core.config import parse
from distlock_web.core.errors import BackendUnavailable
from tests.support.callers import no_thread, threads
from tests.support.waiting import SOON, eventually


def silence_of(ask: Callable[[], object]) -> Silence:
    settings: dict[str, Any] = {"default": {"BACKEND": "sql", "LOCATION": "postgresql://127.0.0.1:1/db"}}
    return Silence(address(parse(settings)["default"]), ask)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_AFTER", 0.01)


def is_over(silence: Silence) -> bool:
    try:
        silence.refuse()
    except BackendUnavailable:
        return False
    return True


@pytest.mark.parametrize("error", [ValueError("a driver's own exception"), MemoryError()])
def test_an_error_that_nobody_expects_does_not_keep_it_silent(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """The thread that asks died of it, and the store was refused for ever."""

    def ask() -> None:
        raise error

    silence = silence_of(ask)
    with caplog.at_level(logging.ERROR, "distlock_web"):
        for _ in range(2):
            silence.begin()
            eventually(lambda: is_over(silence), "whoever asks next hears of it")
    assert caplog.text.count("Traceback") == 2


def test_it_is_asked_until_it_answers() -> None:
    failures = [BackendUnavailable("still away") for _ in range(3)]
    refused = threading.Event()  # or three failures might be over before anybody is refused

    def ask() -> None:
        assert refused.wait(SOON)
        if failures:
            raise failures.pop()

    silence = silence_of(ask)
    silence.begin()
    with pytest.raises(BackendUnavailable, match="asked again meanwhile"):
        silence.refuse()
    refused.set()
    eventually(lambda: is_over(silence), "it answers")
    assert not failures


def test_one_thread_asks_however_often_it_ends_and_begins() -> None:
    asked, may_answer = threading.Event(), threading.Event()

    def ask() -> None:
        asked.set()
        may_answer.wait()

    silence = silence_of(ask)
    for _ in range(5):
        silence.begin()
        assert asked.wait(5)
        silence.end()
    assert threads("distlock-sql-silent") == 1
    silence.begin()
    may_answer.set()
    eventually(lambda: is_over(silence), "it answers")
    eventually(lambda: threads("distlock-sql-silent") == 0, "nobody asks any more")


def test_where_no_thread_can_be_started_the_next_request_asks() -> None:
    silence = silence_of(lambda: None)
    with no_thread("distlock-sql-silent"):
        silence.begin()
    silence.refuse()


def test_who_is_refused_sees_to_it_that_somebody_asks() -> None:
    """A signal came while the thread was started: all were refused until the process ended, and nobody asked."""
    may_answer = threading.Event()
    silence = silence_of(lambda: may_answer.wait(SOON))
    with no_thread("distlock-sql-silent", KeyboardInterrupt()), pytest.raises(KeyboardInterrupt):
        silence.begin()
    assert not is_over(silence)
    may_answer.set()
    eventually(lambda: is_over(silence), "somebody has asked")
