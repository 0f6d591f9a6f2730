"""The whole lock against a model of a few lines, on every backend that runs here (hypothesis).

Three call chains and any number of queued claims take, enter again, give back, queue, give up, extend, pass on and
revoke; time jumps. The model says for each step what has to come of it.
"""

from __future__ import annotations

import contextvars
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from types import SimpleNamespace
from typing import ClassVar

import hypothesis.strategies as st
import pytest
import redis
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from distlock_web import Lease, LeaseLost, LockBusy, NotHeld, attach, configure, lock
from distlock_web.core import runtime
from distlock_web.core.backend import Busy, Claim, Granted
from distlock_web.core.registry import registry
from distlock_web.core.runtime import THREADS, drive, new_token
from tests.support.callers import threads
from tests.support.waiting import eventually

EXPIRE = 10.0
KEY = "model"
NAME = f"disLock:{KEY}"
GRACE = 15.0  #: seconds that a queue is kept after the next question of its waiters was due

#: Seconds that a step may jump. Every sum of them is far from the end of a lease or of a waiter's patience that comes
#: next, so that the milliseconds that pass on a server meanwhile decide nothing.
JUMPS = (4.4, 10.8)


@dataclass
class Model:
    """One lock, as it has to be."""

    owner: object = None
    until: float = 0.0
    queue: dict[object, None] = field(default_factory=dict)  #: who waits, in order
    queue_until: float = 0.0
    time: float = 0.0
    owners: int = 0  #: how many have had it: where a fence has to grow

    def free(self) -> bool:
        return self.owner is None or self.until <= self.time

    def owns(self, who: object) -> bool:
        return self.owner == who and not self.free()

    def give(self, who: object) -> None:
        self.queue.pop(who, None)
        self.owner, self.until = who, self.time + EXPIRE
        self.owners += 1

    def drop_late(self) -> None:
        if self.queue_until <= self.time:
            self.queue.clear()

    def in_front(self) -> bool:
        """Whether somebody waits whom the free lock is for."""
        self.drop_late()
        return bool(self.queue)

    def ask(self, who: object, *, queue: bool) -> bool:
        """Take it, or be in the queue: a free lock is for the head."""
        if self.owns(who):
            self.until = max(self.until, self.time + EXPIRE)
            return True
        if self.free():
            self.hand_over(who)
            if self.owns(who):
                return True
        if queue:
            self.drop_late()
            self.queue.setdefault(who)
            self.queue_until = max(self.queue_until, self.time + min(self.until - self.time, EXPIRE) + GRACE)
        return False

    def hand_over(self, taker: object = None) -> None:
        self.owner = None
        if self.in_front():
            head = next(iter(self.queue))
            self.give(head)
        elif taker is not None:
            self.give(taker)

    def let_go(self, who: object) -> None:
        self.queue.pop(who, None)
        if self.owns(who):
            self.hand_over()


class Clock:
    """Our clock and the store's: they stand still, and jump together."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ahead = 1000.0
        fake = SimpleNamespace(CLOCK_BOOTTIME=0, clock_gettime=lambda _: self.ahead)
        monkeypatch.setattr(runtime, "time", fake)

    def jump(self, seconds: float) -> None:
        self.ahead += seconds


class RedisClock(Clock):
    """Redis has no clock to set: what is left of every key is set back instead."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, client: redis.Redis) -> None:
        super().__init__(monkeypatch)
        self._client = client

    def jump(self, seconds: float) -> None:
        super().jump(seconds)
        client, ms = self._client, round(seconds * 1000)
        for key in client.scan_iter():
            if (left := client.pttl(key)) > 0:
                client.pexpire(key, left - ms) if left > ms else client.delete(key)


class TheLock(RuleBasedStateMachine):
    """The real lock and the model, step by step."""

    fresh: ClassVar[Callable[[], Clock]]

    def __init__(self) -> None:
        super().__init__()
        self.clock = type(self).fresh()
        self.model = Model()
        self.store = registry().store("default")
        self.port = self.store.port(THREADS)
        self.chains = [contextvars.Context() for _ in range(3)]
        self.stacks: list[list[Lease]] = [[], [], []]
        self.waiters: list[Claim] = []
        self.tickets: list[str] = []
        self.fences: dict[int, int] = {}

    actors = st.integers(0, 2)

    def has(self, actor: int) -> bool:
        """Whether this call chain's own lease is still good, by the model."""
        stack = self.stacks[actor]
        return bool(stack) and self.model.owns(stack[0])

    @rule(actor=actors)
    def take(self, actor: int) -> None:
        stack = self.stacks[actor]
        the_lock = lock(KEY, expire=EXPIRE)
        if stack and stack[0].state == "lost":
            with pytest.raises(LeaseLost):
                self.chains[actor].run(the_lock.acquire)
        elif stack:
            # Revoked perhaps, which it learns at its next round trip: entering again is none.
            stack.append(self.chains[actor].run(the_lock.acquire))
            assert stack[-1].fence == stack[0].fence
            assert stack[0].depth == len(stack)
        elif self.model.free() and not self.model.in_front():
            stack.append(self.chains[actor].run(the_lock.acquire))
            self.model.ask(stack[0], queue=False)
            assert self.model.owns(stack[0])
        else:
            self.model.ask(object(), queue=False)
            with pytest.raises(LockBusy) as caught:
                self.chains[actor].run(the_lock.acquire)
            assert 0 < caught.value.retry_after < EXPIRE + 0.1

    @rule(actor=actors)
    def release_all(self, actor: int) -> None:
        stack = self.stacks[actor]
        if not stack:
            return
        lease, outermost = stack.pop(), not stack
        lost = lease.state == "lost" or (outermost and not self.model.owns(lease))
        if lost:
            with pytest.raises(LeaseLost):
                self.chains[actor].run(lease.release)
        else:
            self.chains[actor].run(lease.release)
        with pytest.raises(NotHeld):
            self.chains[actor].run(lease.release)
        if outermost:
            self.model.let_go(lease)

    @rule(actor=actors)
    def extend(self, actor: int) -> None:
        stack = self.stacks[actor]
        if not stack:
            return
        if self.has(actor):
            self.chains[actor].run(stack[-1].extend)
            self.model.until = max(self.model.until, self.model.time + EXPIRE)
            assert stack[-1].remaining > EXPIRE * 0.9
        else:
            with pytest.raises(LeaseLost):
                self.chains[actor].run(stack[-1].extend)

    @rule(actor=actors)
    def detach(self, actor: int) -> None:
        stack = self.stacks[actor]
        if len(stack) != 1:
            return
        if not self.has(actor):
            known = stack[0].state == "lost"
            with pytest.raises(LeaseLost):
                self.chains[actor].run(stack[0].detach)
            if not known:
                stack.clear()  # it was revoked: found out on the way, and over
            return
        ticket = self.chains[actor].run(stack.pop().detach, EXPIRE)
        self.tickets.append(ticket)
        self.model.owner, self.model.until = ticket, self.model.time + EXPIRE

    @precondition(lambda self: self.tickets)
    @rule(actor=actors, data=st.data())
    def attach(self, actor: int, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(self.tickets))
        if self.stacks[actor]:
            return
        if self.model.owns(ticket):
            lease = self.chains[actor].run(attach, ticket)
            self.stacks[actor].append(lease)
            self.model.owner, self.model.until = lease, self.model.time + EXPIRE
        else:
            with pytest.raises(NotHeld):
                self.chains[actor].run(attach, ticket)

    @precondition(lambda self: len(self.waiters) < 4)
    @rule()
    def queue(self) -> None:
        self.waiters.append(Claim(NAME, new_token(self.store.ident), EXPIRE))
        self._ask(self.waiters[-1])

    @precondition(lambda self: self.waiters)
    @rule(data=st.data())
    def ask_again(self, data: st.DataObject) -> None:
        self._ask(data.draw(st.sampled_from(self.waiters)))

    def _ask(self, claim: Claim) -> None:
        mine = self.model.ask(claim.token, queue=True)
        answer = drive(self.port.acquire(claim, 60.0))
        assert isinstance(answer, Granted if mine else Busy)
        if isinstance(answer, Busy):
            assert answer.recheck_after > 0

    @precondition(lambda self: self.waiters)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        claim = data.draw(st.sampled_from(self.waiters))
        self.waiters.remove(claim)
        for _ in range(data.draw(st.integers(1, 2))):
            drive(self.port.cancel(claim))
        self.model.let_go(claim.token)

    @precondition(lambda self: self.waiters)
    @rule(data=st.data())
    def release_by_token(self, data: st.DataObject) -> None:
        """What a waiter does that was handed the lock; sent twice, as after a lost answer."""
        owned = [claim for claim in self.waiters if self.model.owns(claim.token)]
        if not owned:
            return
        self.waiters.remove(owned[0])
        assert drive(self.port.release(owned[0])) is None
        assert drive(self.port.release(owned[0])) is None
        self.model.let_go(owned[0].token)

    @rule()
    def revoke(self) -> None:
        line = next(iter(drive(self.port.inspect())), None)
        if line is None:
            return
        assert line.fence is not None
        assert drive(self.port.revoke(NAME, line.fence - 1)) is False
        assert drive(self.port.revoke(NAME, line.fence)) is True
        self._drop(self.model.owner)
        self.model.let_go(self.model.owner)

    def _drop(self, token: object) -> None:
        """Its claim is over: nobody asks with it again."""
        for claim in [claim for claim in self.waiters if claim.token == token]:
            self.waiters.remove(claim)
            drive(self.port.cancel(claim))

    @rule(seconds=st.sampled_from(JUMPS))
    def time_passes(self, seconds: float) -> None:
        self.clock.jump(seconds)
        self.model.time += seconds

    @invariant()
    def one_owner_with_a_fence_that_grows(self) -> None:
        held = drive(self.port.inspect())
        assert len(held) == (0 if self.model.free() else 1)
        for line in held:
            assert line.fence is not None
            assert self.fences.setdefault(self.model.owners, line.fence) == line.fence
        order = [self.fences[number] for number in sorted(self.fences)]
        assert all(earlier < later for earlier, later in pairwise(order))

    @invariant()
    def nobody_believes_in_a_lock_that_is_not_there(self) -> None:
        for stack in self.stacks:
            for lease in stack:
                # Revoked by hand is what a holder learns at its next round trip; all else it knows by itself.
                assert lease.state in ("held", "lost")
                if self.model.owner is stack[0] and not self.model.free():
                    assert lease.state == "held"
                    assert lease.remaining <= self.model.until - self.model.time

    def teardown(self) -> None:
        for claim in self.waiters:
            drive(self.port.cancel(claim))
        for chain, stack in zip(self.chains, self.stacks, strict=True):
            for lease in reversed(stack):
                try:
                    chain.run(lease.release)
                except LeaseLost:
                    pass
        left = [line for line in drive(self.port.inspect()) if line.state != "transit"]
        assert left == []
        assert all(line.waiters == 0 for line in drive(self.port.inspect()))


#: How many times as long the search is: ``DISTLOCK_FUZZ=60`` takes some ten minutes for each store.
LONGER = int(os.environ.get("DISTLOCK_FUZZ", "1"))


def run(machine: type[TheLock], examples: int) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples * LONGER,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.fixture
def patched() -> Iterator[pytest.MonkeyPatch]:
    # An earlier test's watchdog would fall asleep by the model's clock, and be late for the next test's leases.
    eventually(lambda: threads("distlock-watchdog") == 0, "it ends")
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.mark.nightly
def test_the_memory_backend_is_the_model(patched: pytest.MonkeyPatch) -> None:
    def fresh() -> Clock:
        configure({"default": {"BACKEND": "memory"}})
        return Clock(patched)

    run(type("MemoryLock", (TheLock,), {"fresh": staticmethod(fresh)}), 500)


@pytest.mark.nightly
def test_the_redis_backend_is_the_model(
    patched: pytest.MonkeyPatch, redis_store: str, redis_client: redis.Redis
) -> None:
    def fresh() -> Clock:
        redis_client.flushall()
        return RedisClock(patched, redis_client)

    run(type("RedisLock", (TheLock,), {"fresh": staticmethod(fresh)}), 300)
