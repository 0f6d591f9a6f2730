"""One name is one lock on every database, whatever it is made of; one that nobody uses leaves nothing behind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, text

from distlock_web import configure, lock
from distlock_web.backends.sql.locked_row import purge
from distlock_web.backends.sql.tables import from_ascii, key_of
from distlock_web.core.backend import Busy, Claim, Granted
from distlock_web.core.registry import Registry
from distlock_web.core.runtime import drive, new_token
from tests.support.databases import Kind, new_database
from tests.support.stores.sql import somebody_elses
from tests.support.waiting import eventually

#: Each is another lock than every other: what databases take for the same, or cannot store.
APART = [
    "name", "Name", "NAME", "name ", "name  ", " name", "näme", "nàme", "na\u0308me", "straße", "strasse", "ſ", "s",
    "İ", "i", "ı", "I", "\U0001f512", "\U0001f513", "日本", "日本 ", "a\\b", "a\\\\b", "a'b", 'a"b', "a`b", "a%b",
    "a_b", "n" * 255, "n" * 256, "n" * 5000, "n" * 5000 + " ", "\ud800", "\x00", "", "name\n", "\ufeffname",
    "\u00c5", "\u212b",
]  # fmt: skip


@pytest.fixture
def backend(settings: dict[str, Any]) -> Any:
    return configure({"default": settings}).store("default").backend


@pytest.fixture(autouse=True)
def _no_purge_by_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distlock_web.backends.sql.verbs.PURGE_ONE_IN", 10**9)


@pytest.fixture
def database(settings: dict[str, Any], backend: Any) -> Iterator[Connection]:
    """The store's database, with its tables."""
    backend.prepare()
    with somebody_elses(settings) as connection:
        yield connection


def test_each_name_is_one_lock(backend: Any) -> None:
    port = backend.sync_port()
    assert len(set(APART)) == len(APART)
    for name in APART:
        assert isinstance(drive(port.acquire(Claim(name, new_token(), 60.0, "wer – \U0001f512"), 0)), Granted), repr(
            name
        )
        assert isinstance(drive(port.acquire(Claim(name, new_token(), 60.0), 0)), Busy), repr(name)
    assert sorted(line.name for line in drive(port.inspect())) == sorted(APART)
    assert [line.name for line in drive(port.inspect(["Name"]))] == ["Name"]
    assert {line.holder for line in drive(port.inspect())} == {"wer – \U0001f512"}


@pytest.mark.parametrize(
    ("kind", "having"),
    [
        ("postgres", "ENCODING 'SQL_ASCII' TEMPLATE template0"),  # its text came as bytes
        ("postgres", "ENCODING 'LATIN1' TEMPLATE template0"),
        ("postgres", "ENCODING 'EUC_JP' TEMPLATE template0"),
        ("mariadb", "CHARACTER SET ascii"),
        ("mariadb", "CHARACTER SET latin1 COLLATE latin1_german2_ci"),
        ("mariadb", "CHARACTER SET utf16"),
    ],
)
def test_a_database_may_have_any_character_set(
    kind: Kind, having: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    server = request.getfixturevalue(f"{kind}_server")
    with new_database(kind, server.port, tmp_path, having) as made:
        registry = Registry({"default": {"LOCATION": made.sqlalchemy}})
        port = registry.store("default").backend.sync_port()
        first, second = (Claim("straße \U0001f512", new_token(), 60.0, "wer – 日本") for _ in range(2))
        assert isinstance(drive(port.acquire(first, 0)), Granted)
        answer = drive(port.acquire(second, 30.0))
        assert isinstance(answer, Busy)
        assert answer.holder == first.holder
        assert [(line.name, line.holder) for line in drive(port.inspect())] == [(first.name, first.holder)]
        assert drive(port.release(first)) is None
        assert isinstance(drive(port.acquire(second, 30.0)), Granted), "it was handed over"
        registry.close()


def rows(database: Connection) -> set[str]:
    return set(database.execute(text("SELECT name_key FROM distlock_lease")).scalars())


@contextmanager
def aged(database: Connection, microseconds: int) -> Iterator[None]:
    for table, column in (("lease", "expires_at"), ("waiter", "deadline")):
        database.execute(text(f"UPDATE distlock_{table} SET {column} = {column} - {microseconds}"))
    yield


def test_names_that_nobody_uses_are_forgotten_and_their_fences_are_not(backend: Any, database: Connection) -> None:
    """Not even if the clock was set back by an hour before they are used again."""
    with lock("old") as lease:
        assert lease.fence is not None
        ahead = lease.fence + 3_600_000_000
    database.execute(text(f"UPDATE distlock_lease SET fence = {ahead}"))
    with lock("young"), aged(database, 700_000_000):
        database.execute(
            text("UPDATE distlock_lease SET expires_at = expires_at + 800000000 WHERE name_key = :key"),
            {"key": key_of("disLock:young")},
        )
        assert backend._requests.run(lambda transaction: purge(transaction, 600.0)) == 1
        assert rows(database) == {key_of("disLock:young"), "floor"}
        assert backend._requests.run(lambda transaction: purge(transaction, 600.0)) == 0, "the floor stays"
    with lock("old") as lease:
        assert lease.fence == ahead + 1


def test_a_name_that_is_new_may_pay_for_those_that_are_old(
    backend: Any, database: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("distlock_web.backends.sql.verbs.PURGE_ONE_IN", 1)
    with lock("old"):
        pass
    with aged(database, 700_000_000), lock("new"):
        eventually(lambda: rows(database) == {key_of("disLock:new"), "floor"}, "the old one is forgotten")


@pytest.mark.parametrize(
    ("table", "key", "ends", "others"),
    [
        ("lease", "name_key", "expires_at", "name, token, state, fence, since, holder, released, revoked, queued"),
        ("waiter", "token", "deadline", "name_key, place, expire, holder, wake"),
        ("holder", "token", "expires_at", "name_key, state, fence, since, holder"),
        ("record", "name_key", "expires_at", "fence, record"),
    ],
)
def test_what_has_ended_is_deleted_in_portions(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch, table: str, key: str, ends: str, others: str
) -> None:
    """400,000 receipts in one statement took longer than an answer may: none was ever deleted, locks were refused."""
    monkeypatch.setattr("distlock_web.backends.sql.tables.MAX_PURGED", 5)
    backend: Any = configure({"default": settings}).store("default").backend
    backend.prepare()
    with somebody_elses(settings) as database:
        columns, zeros = f"{key}, {ends}, {others}", ", ".join("0" for _ in others.split(","))
        for number in range(12):
            values = f"'{number}', {1 if number else 2**62}, {zeros}"
            database.execute(text(f"INSERT INTO distlock_{table} ({columns}) VALUES ({values})"))
        left = []
        for _ in range(4):
            backend.sync_port()._verbs._purge()
            count = text(f"SELECT count(*) FROM distlock_{table} WHERE {key} <> 'floor'")
            left.append(database.execute(count).scalar())
    assert left == [7, 2, 1, 1], "the one that has not ended stays"


@pytest.mark.parametrize("written", ["\\x", "a\\", "\\u12", "é\\x41", "\\N{no such character}"])
def test_what_another_program_has_written_can_be_read(written: str) -> None:
    """One such row was a 500 of the whole page, and of every lock that it kept busy."""
    assert isinstance(from_ascii(written), str)
