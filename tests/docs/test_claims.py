"""What the pages say in words alone."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from django.contrib.auth.models import Group
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session
from sqlalchemy.pool import StaticPool

import distlock_web.sqlalchemy  # noqa: F401 - it installs its transactions
from distlock_web import (
    KeyUnavailable,
    Lease,
    LeaseLost,
    NotHeld,
    configure,
    distributed_lockable,
    held_locks,
    lock,
)
from distlock_web.locks.lease import OnLost

TTL = 0.05


@pytest.fixture(autouse=True)
def memory() -> None:
    configure({"default": {"BACKEND": "memory"}})


def told(lease: Lease) -> None:
    """An ``on_lost`` of a project's own."""


@pytest.mark.parametrize("on_lost", ["warn", told])
def test_a_loss_that_is_not_raised_leaves_the_answer_and_a_line_in_the_log(
    on_lost: OnLost, caplog: pytest.LogCaptureFixture
) -> None:
    @distributed_lockable(key="a", expire=TTL, on_lost=on_lost)
    def late() -> str:
        time.sleep(2 * TTL)
        return "done"

    assert late() == "done"
    assert "has finished all the same" in caplog.text


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


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("on_lost", ["raise", "warn", told])
def test_nothing_is_committed_under_a_lost_lock_in_django(on_lost: OnLost) -> None:
    @distributed_lockable(key="a", expire=TTL, on_lost=on_lost, until="commit")
    def late() -> None:
        Group.objects.create(name="bicycle")
        time.sleep(2 * TTL)

    with pytest.raises(LeaseLost):
        late()
    assert not Group.objects.exists()


def test_a_second_release_by_hand_has_nothing_to_release() -> None:
    lease = lock("a").acquire()
    lease.release()
    with pytest.raises(NotHeld):
        lease.release()


def test_a_lost_lease_is_no_way_in_until_it_is_released() -> None:
    late = lock("a", expire=TTL).acquire()
    time.sleep(2 * TTL)
    with pytest.raises(LeaseLost):
        lock("a").acquire()
    with pytest.raises(LeaseLost):
        late.release()
    lock("a").acquire().release()


@pytest.mark.parametrize("given", [Lease.extend, Lease.detach])
def test_what_is_over_cannot_be_extended_or_handed_over(given: Callable[[Lease], object]) -> None:
    lease = lock("a").acquire()
    lease.release()
    with pytest.raises(NotHeld):
        given(lease)


def test_an_empty_value_is_a_value() -> None:
    @distributed_lockable(key="search:{q|other}")
    def search(q: str | None, other: str | None) -> str:
        [row] = held_locks()
        return row.lock.name

    assert search("", "x") == "disLock:search:"
    assert search(None, "x") == "disLock:search:|x"
    with pytest.raises(KeyUnavailable):
        search(None, None)
