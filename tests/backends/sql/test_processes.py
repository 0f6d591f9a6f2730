"""Forks after use, a waiter that comes back, garbage inside of a transaction."""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from distlock_web import ConfigurationError, configure, lock
from distlock_web.backends.sql import verbs
from distlock_web.backends.sql.database import Locked
from distlock_web.backends.sql.verbs import SQLVerbs
from distlock_web.core.backend import Busy, Claim, Granted
from distlock_web.core.registry import Registry, registry
from distlock_web.core.runtime import drive, new_token, now
from tests.support.callers import unrelated
from tests.support.forking import Fork, beside_threads, both_forks, in_child
from tests.support.waiting import LONG, eventually

pytestmark = beside_threads


def contend() -> None:
    """One waits for the other, so that a thread listens or asks; and one is renewed."""
    claims = [Claim("disLock:contended", new_token(), LONG) for _ in range(2)]
    backend = registry().store("default").backend
    port = backend.sync_port()
    assert isinstance(drive(port.acquire(claims[0], 0)), Granted)
    answer = drive(port.acquire(claims[1], None))
    assert isinstance(answer, Busy)
    assert backend._news.ready()  # type: ignore[attr-defined]
    drive(port.release(claims[0]))
    assert isinstance(drive(port.wait(claims[1], answer, None)), Granted)
    drive(port.release(claims[1]))
    with lock("renewed", renew=True) as lease:
        lease.extend()


@both_forks
def test_a_child_begins_afresh_and_the_parent_goes_on(settings: dict[str, Any], fork: Fork) -> None:
    configured = configure({"default": settings})
    if fork is os.fork:  # else there must be no threads: see there
        contend()
    lease = unrelated("parent", expire=LONG)

    def child() -> None:
        contend()
        assert lock("parent").try_acquire() is None
        configured.close()

    in_child(child, fork)
    contend()
    lease.extend()
    lease.release()


def test_a_waiter_that_was_forgotten_stands_where_it_stood(settings: dict[str, Any]) -> None:
    """As one that was taken for dead, and was only slow: it says where it stood."""
    port = configure({"default": settings}).store("default").backend.sync_port()
    holder, first, second = (Claim("disLock:a", new_token(), LONG) for _ in range(3))
    drive(port.acquire(holder, 0))
    before, behind = drive(port.acquire(first, None)), drive(port.acquire(second, None))
    assert isinstance(before, Busy)
    assert isinstance(behind, Busy)
    assert before.memo < behind.memo
    drive(port.cancel(first))
    again = drive(port.wait(first, before._replace(recheck_after=0.001), None))
    assert isinstance(again, Busy)
    assert again.memo == before.memo
    drive(port.release(holder))
    assert isinstance(drive(port.acquire(first, 0)), Granted)


def test_a_lock_that_garbage_releases_inside_a_transaction_is_released_after_it(settings: dict[str, Any]) -> None:
    """On an SQLite it would wait for the transaction that it is in, and so would one for the same row elsewhere."""
    backend = configure({"default": settings}).store("default").backend
    lease, cancelled = unrelated("a"), Claim("disLock:b", new_token(), LONG)
    assert isinstance(drive(backend.sync_port().acquire(cancelled, 0)), Granted)

    def collects(transaction: Any) -> None:
        lease.release()
        drive(backend.sync_port().cancel(cancelled))

    backend._requests.run(collects)  # type: ignore[attr-defined]
    assert lease.state == "released"
    eventually(lambda: drive(backend.sync_port().inspect()) == [], "both are free")


def test_what_garbage_releases_inside_a_transaction_stays_taken_as_it_has_to(settings: dict[str, Any]) -> None:
    """It was cancelled: free at once, and what was done was done again."""
    backend = configure({"default": settings}).store("default").backend
    port = backend.sync_port()
    kept, done = (Claim(f"disLock:{name}", new_token(), LONG) for name in ("kept", "done"))
    for claim in (kept, done):
        assert isinstance(drive(port.acquire(claim, 0)), Granted)

    def collects(transaction: Any) -> None:
        drive(port.release(kept, LONG))
        drive(port.release(done, LONG, "a record"))

    backend._requests.run(collects)  # type: ignore[attr-defined]

    def stays() -> bool:
        lines = drive(port.inspect([kept.name, done.name]))
        return [line.state for line in sorted(lines, key=lambda line: line.name)] == ["done", "cooldown"]

    eventually(stays, "both are released")


@pytest.fixture
def postponed(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> list[tuple[Callable[[], object], float]]:
    """What the store has put off, and for how long at least: for the test to do."""
    noted: list[tuple[Callable[[], object], float]] = []
    monkeypatch.setattr(verbs, "PURGE_ONE_IN", 10**9)  # a purge is put off, too, by chance
    outage = configure({"default": settings}).store("default").backend.sync_port()._verbs._outage  # type: ignore[attr-defined]

    def postpone(work: Callable[[], object], *, after: float, within: float) -> None:
        noted.append((work, after))

    monkeypatch.setattr(outage, "postpone", postpone)
    return noted


def released_by_garbage(cooldown: float, record: str | None, *, revoked: bool = False) -> str:
    """The name of a lock that was released inside of a transaction of ours."""
    backend = registry().store("default").backend
    port, claim = backend.sync_port(), Claim("disLock:by_garbage", new_token(), LONG)
    granted = drive(port.acquire(claim, 0))
    assert isinstance(granted, Granted)
    assert granted.fence
    if revoked:
        drive(port.revoke(claim.name, granted.fence))
    backend._requests.run(lambda transaction: drive(port.release(claim, cooldown, record)))  # type: ignore[attr-defined]
    return claim.name


@pytest.mark.parametrize("record", [None, "a record"])
def test_what_garbage_releases_stays_taken_for_what_is_left_of_its_time(
    postponed: list[Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, record: str | None
) -> None:
    """It was counted from when the database answered again."""
    name, port = released_by_garbage(LONG, record), registry().store("default").backend.sync_port()
    [(work, _)] = postponed
    monkeypatch.setattr(verbs, "now", lambda: now() + 0.75 * LONG)
    work()
    work()  # a second copy: the answer of the first was lost
    [line] = drive(port.inspect([name]))
    assert (line.state, line.remaining <= 0.25 * LONG) == ("cooldown" if record is None else "done", True)
    assert ours(caplog) == []


@pytest.mark.parametrize("record", [None, "a record"])
def test_what_garbage_releases_is_free_when_its_time_is_over(
    postponed: list[Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, record: str | None
) -> None:
    name, port = released_by_garbage(LONG, record), registry().store("default").backend.sync_port()
    [(work, _)] = postponed
    monkeypatch.setattr(verbs, "now", lambda: now() + 2 * LONG)
    work()
    assert drive(port.inspect([name])) == []
    assert ours(caplog) == []


@pytest.mark.parametrize("record", [None, "a record"])
@pytest.mark.parametrize("error", [None, ConfigurationError("The table is not there.")], ids=["lost", "refused"])
def test_what_garbage_releases_too_late_is_said(
    postponed: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception | None,
    record: str | None,
) -> None:
    """Its caller was told that it is released; then its work is done again, and nobody reads why."""
    released_by_garbage(LONG, record, revoked=error is None)
    [(work, _)] = postponed
    if error is not None:
        monkeypatch.setattr(SQLVerbs, "_run_for_holder", Mock(side_effect=error))
    work()
    [said] = ours(caplog)
    why = error or "its lease was over (revoked)."
    again = "" if record is None else " Its run is not recorded as done: the next call runs again."
    assert re.sub(r"\d+\.\d s", "? s", said) == (
        f"Lock disLock:by_garbage could not be kept for another ? s after its release: {why}{again}"
    )


def test_a_row_that_others_keep_locked_keeps_no_other_that_was_put_off(
    postponed: list[Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its error said that the database does not answer: all the others waited, too."""
    name, port = released_by_garbage(LONG, None), registry().store("default").backend.sync_port()
    [(work, _)] = postponed
    with monkeypatch.context() as patched:
        patched.setattr(SQLVerbs, "_run_for_holder", Mock(side_effect=Locked("Others have it.")))
        work()
    [_, (again, after)] = postponed
    assert after == verbs.TRY_AGAIN
    again()
    assert [line.state for line in drive(port.inspect([name]))] == ["cooldown"]
    assert ours(caplog) == []


def ours(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        line.getMessage()
        for line in caplog.records
        if line.levelname == "WARNING" and "disLock:by_garbage" in line.getMessage()
    ]


def deleted(file: Path, backup: Path) -> None:
    for end in ("", "-wal", "-shm"):
        Path(f"{file}{end}").unlink(missing_ok=True)


def replaced(file: Path, backup: Path) -> None:
    deleted(file, backup)
    backup.replace(file)


@pytest.mark.parametrize("kind", ["sqlite", "sqlite_django"])
@pytest.mark.parametrize("change", [deleted, replaced])
def test_who_runs_while_the_file_is_changed_goes_on_in_the_new_one(
    kind: str, change: Callable[[Path, Path], None], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """It stayed in the one that nobody else opened any more: two held one lock, for as long as both processes lived."""
    settings = {"default": request.getfixturevalue(f"{kind}_settings")}
    running = configure(settings).store("default").backend
    running.prepare()
    file = Path(running._requests.address.way.place.name)  # type: ignore[attr-defined]
    with closing(sqlite3.connect(file)) as source, closing(sqlite3.connect(tmp_path / "backup")) as copy:
        source.backup(copy)
    mine = [Claim("disLock:a", new_token(), LONG) for _ in range(3)]
    port = running.sync_port()
    assert isinstance(drive(port.acquire(mine[0], 0)), Granted)
    change(file, tmp_path / "backup")
    other = Registry(settings)
    try:
        assert isinstance(drive(other.store("default").backend.sync_port().acquire(mine[1], 0)), Granted), "it is new"
        assert isinstance(drive(port.acquire(mine[2], 0)), Busy), "both are in one file"
        assert drive(port.extend([mine[0]])) != [None], "the first is told"
    finally:
        other.close()


@pytest.mark.parametrize(("kind", "name"), [("sqlite", "locks.sqlite3"), ("sqlite_django", "project.sqlite3")])
def test_who_runs_while_a_link_is_pointed_elsewhere_goes_on_there(
    kind: str, name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """By Django's settings it stayed in the file beside the old one."""
    settings, link = {"default": request.getfixturevalue(f"{kind}_settings")}, tmp_path / name
    for file in (tmp_path / "one", tmp_path / "two"):
        file.touch()
    link.unlink(missing_ok=True)
    link.symlink_to(tmp_path / "one")
    port = configure(settings).store("default").backend.sync_port()
    mine = [Claim("disLock:a", new_token(), LONG) for _ in range(3)]
    registry().store("default").backend.prepare()
    assert isinstance(drive(port.acquire(mine[0], 0)), Granted)
    drive(port.release(mine[0]))
    link.unlink()
    link.symlink_to(tmp_path / "two")
    other = Registry(settings)
    try:
        other.store("default").backend.prepare()
        assert isinstance(drive(other.store("default").backend.sync_port().acquire(mine[1], 0)), Granted)
        assert isinstance(drive(port.acquire(mine[2], 0)), Busy), "both are in one file"
    finally:
        other.close()


def test_no_other_thread_goes_on_in_the_old_file(
    sqlite_settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new file was known before the connections to the old one were let go of: another thread was lent one."""
    backend: Any = configure({"default": sqlite_settings}).store("default").backend
    backend.prepare()
    database, others = backend._requests, []
    database._borrow().end()  # it knows the file from now on
    deleted(Path(database.address.way.place.name), tmp_path / "none")
    with monkeypatch.context() as patch:

        def drop() -> None:
            patch.undo()
            others.append(database._borrow())  # another thread, which comes now
            database.connections.drop()

        patch.setattr(database.connections, "drop", drop)
        lent = [database._borrow(), *others]
    assert [each.was_idle for each in lent] == [False, False]
    for each in lent:
        each.end()
