"""The last before a commit: the lease is extended, or the record stands in that very transaction."""

from __future__ import annotations

from typing import cast

import pytest

from distlock_web import lock
from distlock_web.core.backend import Backend, CallersTransaction
from distlock_web.core.registry import registry
from distlock_web.locks import commit
from distlock_web.locks.hooks import Asked
from distlock_web.locks.lease import scope_of
from tests.support.waiting import SOON


class Transaction:
    """In the database of the locks, if it has an address."""

    def __init__(self, address: str) -> None:
        self.address = address


HERE, ELSEWHERE = (cast(CallersTransaction, Transaction(address)) for address in ("here", ""))


@pytest.fixture
def backend(memory_store: None, monkeypatch: pytest.MonkeyPatch) -> type[Backend]:
    backend = type(registry().store("default").backend)
    monkeypatch.setattr(backend, "is_at", lambda self, address: bool(address))
    return backend


@pytest.mark.parametrize(
    ("transactions", "one_writer", "extends"),
    [
        ([ELSEWHERE], False, True),
        ([ELSEWHERE], True, True),
        ([ELSEWHERE, HERE], False, True),
        ([ELSEWHERE, HERE], True, False),  # it would wait for the end of this very transaction
    ],
)
def test_the_commit_has_a_full_lease_before_it(
    transactions: list[CallersTransaction],
    one_writer: bool,
    extends: bool,
    backend: type[Backend],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backend, "one_writer", one_writer)
    with lock("a", expire=2 * SOON) as lease:
        scope = scope_of(lease)
        scope.asked, scope.record = Asked("", ""), "done"
        (hold,) = scope.acquired
        hold.deadline -= SOON
        commit.before_commit(lease, transactions)
        assert (lease.remaining > SOON) is extends


@pytest.mark.parametrize(("keep", "records"), [(10.5, [0.5]), (10.0, []), (9.5, [])])
def test_a_record_lives_for_what_is_left_of_keep(
    keep: float, records: list[float], backend: type[Backend], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of work that took ten seconds. A record that has ended already is none."""
    written: list[float] = []
    monkeypatch.setattr(backend, "record_within", lambda self, *told: written.append(told[3]))
    with lock("a", expire=2 * SOON) as lease:
        scope = scope_of(lease)
        (hold,) = scope.acquired
        scope.record, scope.keep_for, hold.since = "done", keep, 1000.0
        monkeypatch.setattr(commit, "now", lambda: 1010.0)
        commit.record_within(scope, HERE)
        scope.record = None
    assert written == records
