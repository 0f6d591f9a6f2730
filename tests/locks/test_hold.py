"""A hold's states, and the gate inside it."""

from __future__ import annotations

import threading

import pytest

from distlock_web import LeaseLost
from distlock_web.core.backend import Claim, Granted
from distlock_web.core.registry import Registry
from distlock_web.core.runtime import THREADS, drive, now
from distlock_web.locks.hold import Hold, ReentryGate, Turn
from distlock_web.locks.scope import Scope, Spec
from distlock_web.locks.watchdog import extend_holds


@pytest.fixture
def hold() -> Hold:
    return hold_at_least(60.0)


def hold_at_least(expire: float, since: float | None = None) -> Hold:
    store = Registry({"default": {"BACKEND": "memory"}}).store("default")
    return Hold(store, Claim("a", "token", expire), Granted(1, now() if since is None else since))


def test_a_look_changes_nothing_and_calls_nobody(hold: Hold) -> None:
    """The property ``state`` ran the user's callbacks, in whichever thread happened to look."""
    told: list[str] = []
    hold.on_end(lambda: told.append("lost"))
    deadline, hold.deadline = hold.deadline, now() - 1
    assert (hold.state, hold.reason, hold.remaining, told) == ("lost", "expired", 0.0, [])
    hold.deadline = deadline
    assert (hold.state, hold.reason, told) == ("held", None, [])
    hold.deadline = now() - 1
    assert not hold.check()
    assert (hold.state, told) == ("lost", ["lost"])


def test_a_late_renewal_does_not_touch_a_lease_that_is_being_given_back(hold: Hold) -> None:
    deadline = hold.deadline
    assert hold.begin_release()
    hold.renewed(now(), 600)
    hold.mark_unsure()
    assert (hold.state, hold.deadline) == ("releasing", deadline)
    assert hold.begin_release(), "it was interrupted, and goes on"
    hold.released()
    hold.lose("expired")
    assert hold.state == "released"
    assert not hold.begin_release()


def test_an_extension_that_a_release_overtakes_does_not_make_a_loss_of_it(hold: Hold) -> None:
    """Its answer is that the lock is nobody's any more: the block that had given it back was told of a loss."""
    port = hold.store.port(THREADS)
    drive(port.acquire(hold.claim, 0))
    assert hold.begin_release()
    assert drive(port.release(hold.claim)) is None
    with pytest.raises(LeaseLost, match="the block that took it has ended"):
        drive(extend_holds(port, [hold], 90.0))
    assert hold.state == "releasing"
    hold.released()
    assert (hold.state, hold.reason) == ("released", None)


def test_callbacks_are_called_once_and_a_failing_one_harms_no_other(
    hold: Hold, caplog: pytest.LogCaptureFixture
) -> None:
    called: list[str] = []

    def fail() -> None:
        raise LookupError("a callback of the user's")

    def forgotten() -> None:
        called.append("forgotten")

    hold.on_end(fail)
    hold.on_end(forgotten)
    hold.on_end(lambda: called.append("one"))
    hold.forget_callback(forgotten)
    hold.lose("taken")
    hold.lose("taken")
    hold.on_end(lambda: called.append("after"))
    assert called == ["one", "after"]
    assert "a callback of the user's" in caplog.text


def test_a_gate_admits_those_who_wait_in_their_order(hold: Hold) -> None:
    gate, order, block = ReentryGate(hold), list[int](), Scope(Spec(hold.store, ("a",), 60.0, None), THREADS)
    first = Turn(gate, block)
    assert gate.try_enter(first) == "ours"

    def sit(number: int) -> None:
        turn = Turn(gate, block)
        assert drive(gate.enter(turn, THREADS, None, None)) == "ours"
        order.append(number)
        turn.leave()

    threads = []
    for number in range(5):
        threads.append(threading.Thread(target=sit, args=(number,)))
        threads[-1].start()
        while len(gate._waiting) <= number:
            pass
    first.leave()
    for thread in threads:
        thread.join(10)
    assert order == [0, 1, 2, 3, 4]
    assert hold.depth == 1
