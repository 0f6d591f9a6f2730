"""Claims that are cancelled later: none is forgotten, whatever happens to the others."""

from __future__ import annotations

import pytest

from distlock_web.backends.sql import postponed as module
from distlock_web.backends.sql.postponed import Postponed
from distlock_web.core.backend import Claim
from distlock_web.core.errors import BackendUnavailable
from distlock_web.core.runtime import new_token
from tests.support.callers import no_thread, threads
from tests.support.waiting import LONG, eventually


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY", 0.01)
    monkeypatch.setattr(module, "MAX_DELAY", 0.05)


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
    assert sorted(cancelled.claims) == sorted(claims)
    eventually(lambda: threads("distlock-sql-cancel") == 0, "nothing is left to do")


def test_one_whose_row_is_locked_is_in_nobodys_way() -> None:
    """It was tried for its whole lease, and all that came after it stayed until then."""
    stuck, cancelled = a_claim(), Cancelled()

    def cancel(claim: Claim) -> None:
        if claim is stuck:
            raise BackendUnavailable("keeps the row of the lock locked")
        cancelled(claim)

    postponed = Postponed(cancel)
    others = [a_claim() for _ in range(3)]
    for claim in [stuck, *others]:
        postponed.add(claim)
    eventually(lambda: cancelled.claims == others, "the others are cancelled")
    postponed.close()


def test_what_has_ended_by_itself_is_forgotten_wherever_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the database is silent nobody asks it for the sake of what is over."""
    monkeypatch.setattr(module, "PLACE_OUTLIVES", 0.0)
    tried: list[str] = []

    def cancel(claim: Claim) -> None:
        tried.append(claim.token)
        raise BackendUnavailable("away")

    postponed = Postponed(cancel)
    long, short = a_claim(), a_claim()._replace(expire=0.05)
    for claim in (long, short):
        postponed.add(claim)
    eventually(lambda: list(postponed._claims) == [long.token], "the short one")
    tries = tried.count(short.token)
    eventually(lambda: tried.count(long.token) >= tries + 5, "the long one is tried on")
    assert tried.count(short.token) == tries
    postponed.close()


def test_a_thread_that_cannot_be_started_fails_no_release() -> None:
    cancelled = Cancelled()
    postponed, claims = Postponed(cancelled), [a_claim(), a_claim()]
    with no_thread("distlock-sql-cancel"):
        postponed.add(claims[0])
    postponed.add(claims[1])
    eventually(lambda: cancelled.claims == claims, "both are cancelled by the next thread")


def test_it_goes_on_after_a_close() -> None:
    cancelled = Cancelled(*[BackendUnavailable("away")] * 100)
    postponed = Postponed(cancelled)
    postponed.add(a_claim())
    postponed.close()
    later = a_claim()
    postponed.add(later)
    eventually(lambda: cancelled.claims == [later], "what came after the close is cancelled, and nothing else")


def test_a_place_in_the_queue_is_cancelled_as_long_as_it_may_be_there() -> None:
    """After an outage longer than the lease the place was there still, of one whom nobody knew any more."""
    claim = a_claim()._replace(expire=0.05)
    cancelled = Cancelled(*[BackendUnavailable("away")] * 50)
    postponed = Postponed(cancelled)
    postponed.add(claim)
    eventually(lambda: cancelled.claims == [claim], "it is cancelled, some leases later")


def test_a_close_cancels_what_can_be_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    """It dropped them: the lock was taken for the rest of its lease."""
    cancelled, claims = Cancelled(BackendUnavailable("away")), [a_claim(), a_claim()]
    postponed = Postponed(cancelled)
    with no_thread("distlock-sql-cancel"):
        for claim in claims:
            postponed.add(claim)
        postponed.close()
    assert sorted(cancelled.claims) == sorted(claims)
