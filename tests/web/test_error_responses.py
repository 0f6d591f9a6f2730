"""What a client is told."""

from __future__ import annotations

import json
import logging
import pickle

import pytest

from distlock_web import BackendUnavailable, KeyReused, KeyUnavailable, LockBusy, distributed_lockable, lock
from distlock_web.core.backend import SHARED
from distlock_web.testing.plugin import hold_lock
from distlock_web.web.error_responses import Refusal, error_response, log_refused
from tests.support.callers import unrelated

BUSY = LockBusy("Somebody holds 'salary:alice'.", name="salary:alice", retry_after=2.3)


@pytest.mark.parametrize(("remaining", "said"), [(0.0, 1), (0.001, 1), (1.0, 1), (1.01, 2)])
def test_retry_after_is_never_zero(remaining: float, said: int) -> None:
    assert error_response(LockBusy(retry_after=remaining), "r").retry_after == said


@pytest.mark.parametrize(
    ("error", "status", "event"),
    [
        (BUSY, 409, "distlock:busy"),
        (BackendUnavailable(), 503, "distlock:unavailable"),
        (KeyUnavailable(), 400, "distlock:key_unavailable"),
        (KeyReused(), 422, "distlock:key_reused"),
    ],
)
def test_each_refusal_has_a_status_and_an_event_of_htmx(error: Refusal, status: int, event: str) -> None:
    answer = error_response(error, "r")
    assert (answer.status, list(json.loads(answer.htmx_headers["HX-Trigger"]))) == (status, [event])


@pytest.mark.parametrize(
    ("error", "title", "begins"),
    [
        (LockBusy(retry_after=2), "Already in progress", "The same thing is being done"),
        (LockBusy(retry_after=2, limit=3), "All places are taken", "All places are taken at this moment"),
        (LockBusy(retry_after=2, limit=SHARED), "Already in progress", "The same thing is being done"),
        (LockBusy(retry_after=2, full=True), "Too many are waiting", "Too many others are waiting"),
        (LockBusy(retry_after=2, full=True, limit=3), "Too many are waiting", "Too many others are waiting"),
    ],
)
def test_a_busy_lock_is_told_in_words_that_are_true(error: LockBusy, title: str, begins: str) -> None:
    answer = error_response(error, "r-1")
    assert (answer.status, answer.title) == (409, title)
    assert answer.detail.startswith(begins)
    assert answer.detail.endswith("in 2 seconds.")


def test_the_words_are_those_of_the_lock_that_was_asked_for(memory_store: None) -> None:
    with hold_lock("full"), pytest.raises(LockBusy) as busy:
        lock("full", limit=3, wait=0).acquire()
    assert (busy.value.limit, busy.value.full) == (3, False)


def test_the_line_of_a_refused_request_says_which_lock(memory_store: None, caplog: pytest.LogCaptureFixture) -> None:
    unrelated("order:7")
    with caplog.at_level(logging.INFO, "distlock_web"):
        with pytest.raises(LockBusy) as caught:
            distributed_lockable(key="order:{number}")(lambda number: None)(7)
        log_refused(pickle.loads(pickle.dumps(caught.value)), "POST", "/pay")
        log_refused(BUSY, "POST", "/pay")
    known, unknown = map(vars, caplog.records)
    assert (known["lock_event"], known["lock_store"], known["lock_name"]) == ("busy", "default", "disLock:order:7")
    assert known["lock_template"] == "order:{number}"
    assert (unknown["lock_event"], unknown["lock_name"]) == ("busy", "salary:alice")


def test_the_line_of_a_refused_request_steers_no_terminal(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "distlock_web"):
        log_refused(BUSY, "PO\x1b[31mST", "/pay\r\n")
        log_refused(BUSY, "GET", "/" + "a" * 100_000)
    replaced = "\N{REPLACEMENT CHARACTER}"
    assert caplog.messages == [f"PO{replaced}[31mST /pay{replaced}{replaced}: {BUSY}", f"GET /{'a' * 195}: {BUSY}"]


def test_html_shows_a_clients_words_as_text() -> None:
    _, text = error_response(BUSY, "<script>alert(1)</script>").body("text/html")
    assert "<script>" not in text
    assert "&lt;script&gt;" in text
