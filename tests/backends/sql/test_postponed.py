"""Claims that are cancelled later: none is forgotten, whatever happens to the others."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from distlock_web.backends.sql import postponed as module
from distlock_web.backends.sql.postponed import Postponed
from distlock_web.core.backend import Claim
from distlock_web.core.errors import BackendUnavailable
from distlock_web.core.runtime import new_token
from tests.support.callers import threads
from tests.support.waiting import LONG, eventually


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY", 0.01)


def a_claim() -> Claim:
    return Claim("a", new_token(), LONG)


class Cancelled:
    """What was cancelled; the first tries fail."""

    def __init__(self, *failures: Exception) -> None:
        self.claims: list[Claim] = []
        self._failures = list(failures)

    def __call__(self, claim: Claim) -> None:
        if self._failures:
            raise self._failures.pop(0)
        self.claims.append(claim)


@pytest.mark.parametrize("failure", [BackendUnavailable("away"), RuntimeError("a driver's own")])
def test_a_failure_ends_nothing(failure: Exception) -> None:
    cancelled = Cancelled(failure, failure)
    postponed = Postponed(cancelled)
    claims = [a_claim() for _ in range(3)]
    for claim in claims:
        postponed.add(claim)
    eventually(lambda: len(cancelled.claims) == 3, "all are cancelled")
    assert cancelled.claims == claims
    eventually(lambda: threads("distlock-sql-cancel") == 0, "nothing is left to do")


def test_a_claim_that_comes_when_the_thread_ends_is_cancelled() -> None:
    cancelled = Cancelled()
    postponed = Postponed(cancelled)
    late = a_claim()

    class Window:
        """In the moment after the thread has seen that there is nothing left to do."""

        def __init__(self, lock: Any) -> None:
            self._lock, self._open = lock, True

        def __enter__(self) -> None:
            self._lock.acquire()

        def __exit__(self, *error: object) -> None:
            ends = self._open and cancelled.claims and threading.current_thread() is not threading.main_thread()
            self._lock.release()
            if ends:
                self._open = False
                postponed.add(late)

    postponed._lock = Window(postponed._lock)  # type: ignore[assignment]
    postponed.add(a_claim())
    eventually(lambda: late in cancelled.claims, "it is cancelled, too")


def test_it_goes_on_after_a_close() -> None:
    cancelled = Cancelled(*[BackendUnavailable("away")] * 3)
    postponed = Postponed(cancelled)
    postponed.add(a_claim())
    postponed.close()
    later = a_claim()
    postponed.add(later)
    eventually(lambda: cancelled.claims == [later], "what came after the close is cancelled, and nothing else")
