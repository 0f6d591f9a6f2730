"""Who is told of a block's loss: also who comes after it, and nobody who has gone. And who ends it: no fork."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from distlock_web import HolderInfo, LeaseLost, NotHeld, lock
from distlock_web.core.process import Process
from distlock_web.core.runtime import THREADS
from distlock_web.locks import scope as module
from distlock_web.locks.lease import scope_of

pytestmark = pytest.mark.usefixtures("memory_store")


def test_of_a_block_that_outlives_the_one_around_it_all_are_told_who_listen() -> None:
    told: list[str] = []
    with lock("a") as outer, pytest.raises(LeaseLost), lock("a") as nested:
        scope = scope_of(nested)
        for who in ("early", "gone"):
            scope.on_end(lambda who=who: told.append(who))  # type: ignore[misc]
        gone = scope._callbacks[-1]
        scope.forget_callback(gone)
        scope.forget_callback(gone)  # he may have been told just now
        assert told == []
        outer.release()
        scope.on_end(lambda: told.append("late"))
        assert set(told) == {"early", "late"}


@pytest.mark.parametrize("names", [["a"], ["a", "b"]])
def test_a_block_that_ends_reads_lost_throughout_if_it_is(names: list[str]) -> None:
    """Between two steps of its end another thread read "released"."""
    with pytest.raises(LeaseLost), lock("a") as outer:
        scope = scope_of(lock(names).acquire())
        scope_of(outer).holds[0].lose("revoked")
        states = [scope.state]
        for step in (lambda: scope.close(THREADS), scope.let_go):
            step()
            states.append(scope.state)
        assert states == ["lost"] * 3
        for hold in scope.acquired:
            hold.lose("revoked")


def test_a_fork_does_not_end_what_its_parent_took(monkeypatch: pytest.MonkeyPatch) -> None:
    scope = scope_of(lock("a").acquire())
    with monkeypatch.context() as forked:
        forked.setattr(Process, "generation", Process.generation + 1)
        assert not scope.close(THREADS)
    assert not scope.over
    assert scope.close(THREADS)


def test_a_fork_in_c_is_noticed_where_a_block_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python says nothing of it: it released the lock of its parent."""
    scope = scope_of(lock("a").acquire())
    with monkeypatch.context() as forked:
        forked.setattr(module, "os", SimpleNamespace(getpid=lambda: -1))
        forked.setattr(module, "check_process", lambda: forked.setattr(Process, "generation", Process.generation + 1))
        assert not scope.close(THREADS)
    assert scope.close(THREADS)


def test_what_is_asked_of_a_block_of_two_locks_that_is_over_names_both() -> None:
    with lock(["a", "b"]) as lease:
        pass
    with pytest.raises(NotHeld, match="The lease of 'disLock:a', 'disLock:b' is over") as caught:
        lease.extend()
    assert caught.value.name == "disLock:a, disLock:b"


@pytest.mark.parametrize("renew", [False, True])
def test_who_asks_what_is_held_reads_whether_it_is_renewed(renew: bool) -> None:
    with lock("a", renew=renew) as lease:
        assert HolderInfo.loads(scope_of(lease).holds[0].claim.holder).renews is renew
