"""Locks with several holders, in a database: what they cost, who is taken for dead, and what comes late."""

from __future__ import annotations

import time
from random import Random
from typing import Any

import pytest

from distlock_web import BackendUnavailable, LockBusy, configure, lock
from distlock_web.backends.sql.statement import Statement
from distlock_web.core.backend import SHARED, Busy, Claim, Granted, Port
from distlock_web.core.runtime import drive, new_ident, new_token, now
from distlock_web.ops.held_locks import held_locks
from tests.support.callers import Beside, unrelated
from tests.support.stores.sql import end, keep, somebody_elses
from tests.support.waiting import LONG, PATIENCE, SOON, eventually

NAME = "disLock:a"


@pytest.fixture
def port(settings: dict[str, Any]) -> Port:
    """Of the default store, where the lock has been held before."""
    registry = configure({"default": {**settings, "OPTIONS": {"timeout": 3.0}}})
    with lock("a"):
        pass
    return registry.store("default").backend.sync_port()


def claim(limit: int = SHARED, *, ident: str = "", expire: float = LONG) -> Claim:
    token = new_token(ident or new_ident())
    return Claim(NAME, token if limit == 1 else token.limited(limit), expire)


def waiting() -> int:
    return sum(row.lock.waiters for row in held_locks())


def test_a_writer_that_died_in_the_queue_keeps_out_no_reader_for_long(
    port: Port, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("distlock_web.backends.sql.locked_row.GRACE", 300_000)
    unrelated("a", shared=True, expire=LONG)
    drive(port.acquire(claim(1, expire=0.5), None))  # and never asks again
    assert isinstance(drive(port.acquire(claim(), 0)), Busy)
    eventually(lambda: isinstance(drive(port.acquire(claim(), 0)), Granted), "a reader enters", SOON)


def test_one_who_never_hears_of_its_places_keeps_them_from_nobody_else_for_longer_than_a_lease(
    port: Port, beside: Beside
) -> None:
    """Its process is stopped: it is handed two places, but not two more after these have ended."""
    stopped, holder = new_ident(), unrelated("a")
    for _ in range(8):
        drive(port.acquire(claim(2, ident=stopped, expire=1.0), None))
    other = beside(lock("a", limit=2, expire=LONG, wait=LONG).acquire)
    eventually(lambda: waiting() == 9, "somebody waits behind it")
    holder.release()
    assert len(held_locks()) == 2, "both places are its"
    begun = now()
    other.result(PATIENCE).release()
    assert now() - begun < SOON
    assert waiting() == 0, "the others of the stopped process are gone"


@pytest.mark.parametrize("wait", [0, None])
def test_an_acquisition_that_comes_after_its_end_takes_no_place(port: Port, wait: int | None) -> None:
    others, late = claim(3), claim(3)
    drive(port.acquire(others, 0))
    drive(port.acquire(late, 0))
    drive(port.release(late))
    assert isinstance(drive(port.acquire(late, wait)), Busy)
    assert [(row.lock.holders, row.lock.waiters) for row in held_locks()] == [(1, 0)]


def test_the_dead_get_no_place_from_a_writer_that_gives_up(port: Port) -> None:
    dead, holder, writer = new_ident(), unrelated("a"), claim(1)
    drive(port.acquire(claim(ident=dead, expire=0.3), None))
    drive(port.acquire(writer, None))
    drive(port.acquire(claim(ident=dead), None))
    holder.release()
    eventually(lambda: not held_locks(), "the place that it never heard of has ended")
    drive(port.cancel(writer))
    assert isinstance(drive(port.acquire(claim(1), 0)), Granted)


@pytest.mark.parametrize("speaks", ["asks", "extends", "releases"])
def test_a_process_that_speaks_is_not_struck_for_a_place_that_it_did_not_hear_of(port: Port, speaks: str) -> None:
    """It had stood still. Those of it that waited slept outside of the queue, and others came in before them."""
    process, other = new_ident(), claim(2)
    keeping, unheard = claim(2, ident=process), claim(2, ident=process, expire=0.3)
    waiters = [claim(2, ident=process) for _ in range(2)]
    for one in (keeping, other):
        assert isinstance(drive(port.acquire(one, 0)), Granted)
    for one in (unheard, *waiters):
        drive(port.acquire(one, None))
    drive(port.release(other))
    eventually(lambda: len(held_locks()) == 1, "the place that it did not hear of has ended")
    if speaks == "asks":
        assert isinstance(drive(port.acquire(waiters[0], None)), Granted)
        assert (len(held_locks()), waiting()) == (2, 1)
    elif speaks == "extends":
        assert drive(port.extend([keeping])) == [None]
        assert (len(held_locks()), waiting()) == (1, 2)
    else:
        assert drive(port.release(keeping)) is None
        assert (len(held_locks()), waiting()) == (2, 0)


@pytest.mark.parametrize("asks", ["revoke", "detach"])
def test_the_dead_are_struck_once_though_nothing_else_is_done(port: Port, asks: str) -> None:
    holder = claim(2)
    drive(port.acquire(holder, 0))
    drive(port.acquire(claim(2), 0))
    drive(port.acquire(claim(2, expire=0.3), None))
    drive(port.release(holder))
    eventually(lambda: len(held_locks()) == 1, "the place that it never heard of has ended")
    if asks == "revoke":
        assert not drive(port.revoke(NAME, 7))
    else:
        assert drive(port.detach(claim(1), "transit", 60)) == "taken"
    verbs: Any = port
    database = verbs._verbs._database
    assert database.read(Statement("SELECT count(*) AS rows_left FROM distlock_holder"), {})[0].rows_left == 1


def test_a_release_that_is_asked_twice_is_one_whoever_has_released_since(port: Port) -> None:
    keeping, other = claim(), claim()
    for one in (keeping, other):
        drive(port.acquire(one, 0))
    assert drive(port.release(keeping, LONG)) is None
    assert drive(port.release(other)) is None
    assert drive(port.release(keeping, LONG)) is None


@pytest.mark.slow
@pytest.mark.parametrize("settings", ["postgres", "mariadb"], indirect=True)  # SQLite locks no rows
def test_a_row_that_somebody_keeps_locked_is_busy_only_where_there_is_no_place(
    port: Port, settings: dict[str, Any]
) -> None:
    unrelated("a", limit=2)
    with somebody_elses(settings) as connection:
        keep(connection, NAME)
        with pytest.raises(BackendUnavailable, match="keeps the row of the lock locked"):
            unrelated("a", limit=2, wait=0)
        with pytest.raises(LockBusy):
            unrelated("a", wait=0)
        end(connection)


def test_places_of_the_past_are_forgotten(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    """One whose lease has ended leaves its row when nobody asks for its lock any more."""
    verbs: Any = port
    drive(port.acquire(claim(expire=0.05), 0))
    drive(port.acquire(claim(expire=LONG)._replace(name="disLock:b"), 0))
    monkeypatch.setattr("distlock_web.backends.sql.verbs.FORGET_AFTER", 0.01)
    time.sleep(0.2)
    verbs._verbs._purge()
    database = verbs._verbs._database
    assert database.read(Statement("SELECT count(*) AS rows_left FROM distlock_holder"), {})[0].rows_left == 1


@pytest.mark.parametrize("seed", range(4))
def test_whatever_is_asked_the_answers_are_those_of_memory(sqlite_settings: dict[str, Any], seed: int) -> None:
    """The reference is short enough to be read. What a token is told after its end is not compared."""
    registry = configure({"default": {"BACKEND": "memory"}, "sql": sqlite_settings})
    ports: list[Port] = [registry.store(alias).backend.sync_port() for alias in ("default", "sql")]
    random, claims, over = Random(seed), list[Claim](), set[str]()

    def ask(verb: str, *args: object) -> Any:
        """What both answer, without what each counts by its own clock."""
        answers = [drive(getattr(port, verb)(*args)) for port in ports]
        alike = [type(answer) if isinstance(answer, (Granted, Busy)) else answer for answer in answers]
        assert alike[0] == alike[1], (verb, args)
        return alike[0]

    def lines(port: Port) -> list[tuple[Any, ...]]:
        """The holders in the order in which they came: their fences differ from store to store."""
        found = sorted(drive(port.inspect([NAME])), key=lambda line: line.fence or 0)
        waiters = sum(line.waiters for line in found)
        return [(line.state, line.holder, line.holders, line.limit, waiters) for line in found]

    for number in range(120):
        known = [claim for claim in claims if claim.token not in over]
        new = ["new"] * 8 if len(known) < 7 else []
        asked = random.choice([*new, "again", "extend", *["release", "cancel"] * 3, "cool", "revoke", "revoke"])
        one = random.choice(known) if known else None
        if asked == "new" or one is None:
            one = claim(random.choice([1, 2, 3, SHARED, SHARED]), expire=1000.0)._replace(holder=str(number))
            claims.append(one)
            ask("acquire", one, random.choice([0, None, None]))
        elif asked == "again":
            ask("acquire", one, None)
        elif asked in ("release", "cool"):
            if ask("release", one, 500.0 if asked == "cool" else 0.0) is None:
                over.add(one.token)
        elif asked == "cancel":
            one = random.choice([*known, *claims[-3:]])
            ask("cancel", one)
            over.add(one.token)
        elif asked == "extend":
            ask("extend", [one, random.choice(known)])
        elif held := drive(ports[0].inspect([NAME])):
            which = random.randrange(len(held))
            for port in ports:
                fences = sorted(line.fence or 0 for line in drive(port.inspect([NAME])))
                assert drive(port.revoke(NAME, fences[which]))
            over |= {claim.token for claim in known if drive(ports[0].extend([claim])) == ["revoked"]}
        assert lines(ports[0]) == lines(ports[1])
