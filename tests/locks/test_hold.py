"""A hold's states, and the gate inside it."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Any

import pytest

from distlock_web import BackendUnavailable, HolderInfo, LeaseLost
from distlock_web.core.backend import Claim, Granted
from distlock_web.core.process import Process
from distlock_web.core.registry import Registry
from distlock_web.core.runtime import THREADS, Token, drive, new_token, now
from distlock_web.locks import events
from distlock_web.locks import hold as module
from distlock_web.locks.hold import Hold
from distlock_web.locks.reentry.gate import ReentryGate, Turn, gate_of
from distlock_web.locks.scope import Scope, Spec
from distlock_web.locks.watchdog import extend_holds


@pytest.fixture
def hold() -> Hold:
    return hold_at_least(60.0)


def hold_at_least(expire: float, since: float | None = None) -> Hold:
    store = Registry({"default": {"BACKEND": "memory"}}).store("default")
    return Hold(store, Claim("a", Token("token"), expire), Granted(1, now() if since is None else since))


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
    hold.released("")
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
    hold.released("")
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


# What it says of itself ----------------------------------------------------------------------------------------------


def test_the_first_loss_is_the_one_that_is_told(hold: Hold) -> None:
    hold.lose("taken")
    hold.lose("revoked")
    error = hold.lost_error()
    assert (hold.reason, error.reason, error.name) == ("taken", "taken", "a")
    assert re.fullmatch(
        r"The lock 'a' is no longer held: the store dropped it, though its lease had \d\d\.\d s left "
        r"\(released by force, flushed, evicted or deleted\), and somebody else has it now\.",
        str(error),
    )


def test_a_record_in_the_transaction_of_the_work_keeps_it_whatever_the_store_says(hold: Hold) -> None:
    hold.keep_by_record(now(), 600)
    assert hold.remaining > 500
    hold.lose("taken")
    assert hold.state == "held", "whoever finds the record ends the lease"
    hold.deadline = now() - 1
    assert not hold.check()
    assert hold.reason == "expired"


def test_what_may_have_been_extended_is_cancelled_for_no_longer_than_that(hold: Hold) -> None:
    assert hold.claim_to_the_end is hold.claim
    hold.asks(now(), 600)
    assert 590 < hold.claim_to_the_end.expire < 600


def test_whoever_asks_to_be_called_after_the_end_is_called_at_once(hold: Hold) -> None:
    called: list[str] = []
    assert hold.begin_release()
    hold.on_end(lambda: called.append("before"))
    hold.released("")
    hold.on_end(lambda: called.append("after"))
    assert called == ["before", "after"]


def test_its_log_fields(hold: Hold) -> None:
    assert hold.log_fields("error", reason="renew") == {
        "lock_event": "error", "lock_store": "default", "lock_name": "a", "lock_template": "", "lock_reason": "renew",
        "lock_request_id": "", "lock_function": "", "lock_fence": 1,
    }  # fmt: skip


def test_its_events_say_how_long_it_was_held_and_for_how_long_it_is_renewed(hold: Hold) -> None:
    told: list[events.Event] = []
    listener = events.subscribe(told.append, inline=True)
    try:
        hold.since = now() - 20
        hold.claim = hold.claim._replace(token=new_token())
        hold.renewed(now(), 600)
        hold.tell("renewed")
        hold.tell("acquired")
        hold.since = now() + 20
        hold.tell("acquired")
        hold.lose("revoked")
        hold.claim = hold.claim._replace(holder=HolderInfo.current("function", 60.0, False, False))
        hold.tell_of_failure("renew", BackendUnavailable("away"))
    finally:
        events.unsubscribe(listener)
    assert [(event.kind, event.reason) for event in told] == [
        ("renewed", ""), ("acquired", ""), ("acquired", ""), ("lost", "revoked"), ("error", "renew")
    ]  # fmt: skip
    assert all(20 <= (event.held or 0) < 60 for event in told[:2])
    assert told[2].held == 0, "never less than nothing"
    assert 500 < told[0].expire <= 600
    assert told[1].expire == 60
    assert told[4].caller.function == "function"


def test_at_its_deadline_a_hold_is_lost(hold: Hold, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "now", lambda: hold.deadline)
    assert (hold.state, hold.reason, hold.check()) == ("lost", "expired", False)


@pytest.mark.parametrize("forks", [False, True])
def test_a_fork_has_not_what_its_parent_holds(hold: Hold, forks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread of the parent may have had the mutex: it is left to it, and there alone."""
    mutex = hold._lock
    if forks:
        monkeypatch.setattr(Process, "generation", Process.generation + 1)
    else:
        hold.deadline = now()
    assert not hold.check()
    assert hold.reason == ("forked" if forks else "expired")
    assert (hold._lock is mutex) is not forks


def test_what_the_store_did_not_answer_for_is_released_at_its_end(hold: Hold) -> None:
    hold.mark_unsure()
    assert hold.state == "unsure"
    assert hold.begin_release() == "begun"
    assert hold.begin_release() == "again"


@pytest.mark.parametrize(
    "end",
    [lambda scope, _: scope.close(THREADS), lambda scope, hold: scope.without(hold, "ended")],
    ids=["over", "without its lock"],
)
def test_a_gate_that_is_made_while_its_block_ends_lets_nobody_in(
    hold: Hold, end: Callable[[Scope, Hold], object]
) -> None:
    """The hold is not released yet: a block would be inside of it alone, and soon without it."""
    outer, block = (Scope(Spec(hold.store, ("a",), 60.0, None), THREADS) for _ in range(2))
    end(outer, hold)
    gate = gate_of(outer, hold)
    assert hold.check()
    assert gate.try_enter(Turn(gate, block)) == "closed"


def test_who_waits_at_the_gate_waits_for_its_time(hold: Hold) -> None:
    """It gave up a second before that was over, or would not have been let in by who left meanwhile."""
    gate, block = ReentryGate(hold), Scope(Spec(hold.store, ("a",), 60.0, None), THREADS)
    first, second = Turn(gate, block), Turn(gate, block)
    assert gate.try_enter(first) == "ours"
    slept: list[float | None] = []

    class Parker:
        def hears(self) -> bool:
            return True

        def unpark(self) -> bool:
            return True

        async def park(self, seconds: float | None) -> bool:
            slept.append(seconds)
            first.leave()
            return True

    class Runtime:
        def parker(self) -> Parker:
            return Parker()

    runtime: Any = Runtime()
    assert drive(gate.enter(second, runtime, 0.9, None)) == "ours"
    assert [seconds is not None and 0 < seconds <= 0.9 for seconds in slept] == [True]
