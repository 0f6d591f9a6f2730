"""What a lock costs: statements, connections and threads, whatever the number of those who wait."""

from __future__ import annotations

import contextvars
from threading import get_ident
from typing import Any

import pytest

from distlock_web import configure, lock
from distlock_web.backends.sql import database
from distlock_web.backends.sql.statement import execute
from distlock_web.core.backend import SHARED, Claim
from distlock_web.core.runtime import drive, new_token
from tests.support.callers import Beside, threads, unrelated
from tests.support.stores.sql import end, keep, somebody_elses
from tests.support.waiting import LONG, PATIENCE, eventually


@pytest.fixture
def store(settings: dict[str, Any]) -> Any:
    """The default store, with its tables made."""
    registry = configure({"default": settings})
    with lock("first"):
        pass
    return registry.store("default")


@pytest.fixture
def said(store: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What this thread says to databases from now on, by its first word. Old names are purged by another."""
    words: list[str] = []
    caller = get_ident()

    def heard(say: Any) -> Any:
        def saying(connection: Any, text: str, *rest: Any) -> Any:
            if get_ident() == caller:
                words.append(text.split()[0].upper())
            return say(connection, text, *rest)

        return saying

    for name in ("execute", "execute_many"):
        monkeypatch.setattr(database, name, heard(getattr(database, name)))
    return words


def test_a_lock_costs_two_short_transactions(said: list[str]) -> None:
    with lock("first"):
        taken = said.copy()
    released = said[len(taken) :]
    assert taken[1:] == released[1:] == ["SELECT", "UPDATE", "COMMIT"]
    assert {taken[0], released[0]} <= {"BEGIN", "START"}


def test_a_name_that_is_new_costs_one_request_more(said: list[str]) -> None:
    with lock("second"):
        assert said[1:] == ["SELECT", "SELECT", "INSERT", "COMMIT"]


def test_busy_costs_one_transaction_that_changes_nothing(said: list[str]) -> None:
    with lock("first"):
        del said[:]
        assert contextvars.Context().run(lock("first").try_acquire) is None
        assert said[1:] == ["SELECT", "COMMIT"]


def test_many_leases_are_renewed_in_one_transaction(store: Any, said: list[str]) -> None:
    with lock([f"many:{number}" for number in range(50)]) as lease:
        del said[:]
        lease.extend()
        assert said[1:] == ["SELECT", "UPDATE", "COMMIT"]


def test_a_place_among_several_costs_two_requests_more_and_its_release_as_many(said: list[str]) -> None:
    with lock("first", limit=3):
        assert said[1:] == ["SELECT", "SELECT", "INSERT", "UPDATE", "COMMIT"]
        del said[:]
    assert said[1:] == ["SELECT", "SELECT", "DELETE", "UPDATE", "COMMIT"]


def test_readers_that_enter_together_cost_less_than_a_request_each(store: Any, said: list[str]) -> None:
    """A release in front of a thousand took longer than a transaction may, and so did each that came after it."""
    writer, port, many = unrelated("first"), store.backend.sync_port(), 40
    for _ in range(many):
        drive(port.acquire(Claim("disLock:first", new_token().limited(SHARED), LONG), None))
    del said[:]
    writer.release()
    assert len(said) < many
    assert len(drive(port.inspect(["disLock:first"]))) == many


def test_a_look_at_one_lock_reads_of_no_other_and_waits_for_nobody(
    settings: dict[str, Any], store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that polls read all queues each time; on SQLite each look kept, and waited for, the file's write lock."""
    holder, port = unrelated("first"), store.backend.sync_port()
    drive(port.acquire(Claim("disLock:first", new_token(), LONG), None))
    with somebody_elses(settings) as other:
        keep(other, "disLock:first")
        asked: list[str] = []
        caller = get_ident()

        def heard(connection: Any, text: str, *rest: Any) -> Any:
            if get_ident() == caller:
                asked.append(text)
            return execute(connection, text, *rest)

        monkeypatch.setattr(database, "execute", heard)
        [line] = drive(port.inspect(["disLock:first"]))
        end(other)
    assert line.waiters == 1
    assert [text for text in asked if "name_key IN" not in text] == []
    assert len(asked) == 2
    monkeypatch.undo()
    holder.release()


def test_waiters_share_one_thread_and_keep_no_connection(store: Any, beside: Beside) -> None:
    assert threads("distlock-sql") == 0, "nobody has waited yet"
    holder, port = unrelated("first"), store.backend.sync_port()
    crowd = [beside(lambda: unrelated("first", wait=LONG).release()) for _ in range(6)]
    eventually(lambda: drive(port.inspect(["disLock:first"]))[0].waiters == 6, "six wait")
    assert threads("distlock-sql") == 1
    eventually(lambda: not store.backend._requests.connections.in_use, "they sleep without one")
    holder.release()
    for waiter in crowd:
        waiter.result(PATIENCE)
    assert drive(port.inspect()) == []
