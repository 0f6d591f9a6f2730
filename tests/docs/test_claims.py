"""What the pages say in words alone."""

from __future__ import annotations

import re
import threading
import time

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session
from sqlalchemy.pool import StaticPool

import distlock_web.sqlalchemy  # noqa: F401 - it installs its transactions
from distlock_web import (
    KeyUnavailable,
    Lease,
    LeaseLost,
    configure,
    distributed_lockable,
    held_locks,
    lock,
)
from distlock_web.locks.lease import OnLost
from tests.support.revoking import revoke_the_lock
from tests.support.source import PROJECT
from tests.support.waiting import eventually

TTL = 0.4


@pytest.fixture(autouse=True)
def memory() -> None:
    configure({"default": {"BACKEND": "memory"}})


def told(lease: Lease) -> None:
    """An ``on_lost`` of a project's own."""


@pytest.mark.timing
@pytest.mark.parametrize("on_lost", ["raise", "warn", told])
def test_nothing_is_committed_under_a_lost_lock(on_lost: OnLost) -> None:
    engine = create_engine("sqlite://", poolclass=StaticPool)
    with Session(engine) as session:
        session.execute(text("CREATE TABLE sale (item TEXT)"))
        session.commit()

        @distributed_lockable(key="a", expire=TTL, on_lost=on_lost, until="commit", database=session)
        def late() -> None:
            session.execute(text("INSERT INTO sale VALUES ('bicycle')"))
            time.sleep(2 * TTL)

        with pytest.raises(LeaseLost):
            late()
        assert session.execute(text("SELECT count(*) FROM sale")).scalar() == 0
    engine.dispose()


@pytest.mark.timing
def test_who_notices_a_loss_is_told_there() -> None:
    """By the thread that watches the lease, or in the block's own."""
    told_in: list[threading.Thread] = []
    for expire in (TTL, 10.0):
        # Each a lock of its own: the holder takes its lease for over a moment before the store does.
        with lock(str(expire), expire=expire, on_lost=lambda _: told_in.append(threading.current_thread())) as lease:
            if expire == TTL:
                eventually(lambda: told_in, "the loss is told")
                eventually(lambda: not held_locks(), "the store has seen it, too")
            else:
                revoke_the_lock()
                with pytest.raises(LeaseLost):
                    lease.extend()
    assert [thread is threading.current_thread() for thread in told_in] == [False, True]


def test_the_pages_name_the_same_as_public_for_authors_of_integrations() -> None:
    docs = PROJECT / "docs"
    rest = (docs / "integrations.md").read_text("utf-8").partition("## The rest of a web framework")[2]
    used = {"distlock_web." + path.replace("/", ".") for path in re.findall(r"`(\w+/\w+)\.py`", rest)}
    public = (docs / "architecture.md").read_text("utf-8").partition("| authors of stores and integrations |")[2]
    shared = set(re.findall(r"`(distlock_web\.(?:web|cli)\.\w+)`", public.partition("\n")[0]))
    assert used == shared != set()


def test_an_empty_value_is_a_value() -> None:
    @distributed_lockable(key="search:{q|other}")
    def search(q: str | None, other: str | None) -> str:
        [row] = held_locks()
        return row.lock.name

    assert search("", "x") == "disLock:search:"
    assert search(None, "x") == "disLock:search:|x"
    with pytest.raises(KeyUnavailable):
        search(None, None)
