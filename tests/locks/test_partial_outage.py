"""A store of several servers, of which one does not answer: its locks fail, and what the others said counts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import pytest

from distlock_web import BackendUnavailable, Lease, LeaseLost, lock
from distlock_web.core.backend import Claim, Loss
from distlock_web.core.registry import registry
from distlock_web.core.runtime import THREADS, drive
from distlock_web.locks import events, watchdog
from distlock_web.locks.lease import scope_of
from distlock_web.testing.fault_injector import FaultInjector
from tests.support.callers import Beside, unrelated
from tests.support.waiting import LONG, SOON

pytestmark = pytest.mark.usefixtures("memory_store")

OUTAGE = "The server of b does not answer."


class SeveralServers:
    """A port to a server for each name; that of b does not answer so many times."""

    def __init__(self, port: Any, failures: int) -> None:
        self._port = port
        self._failures = failures
        self.asked: list[list[str]] = []
        self.answering: Callable[[], object] = lambda: None

    def __getattr__(self, verb: str) -> Any:
        return getattr(self._port, verb)

    async def extend(
        self, claims: Sequence[Claim], timeout: float | None = None
    ) -> Sequence[Loss | BackendUnavailable | None]:
        self.asked.append([claim.name[-1] for claim in claims])
        losses: list[Loss | BackendUnavailable | None] = list(await self._port.extend(claims, timeout))
        self.answering()
        if self._failures:
            self._failures -= 1
            losses = [BackendUnavailable(OUTAGE) if claim.name[-1] == "b" else None for claim in claims]
            if all(losses):
                raise BackendUnavailable(OUTAGE)
        return losses


@pytest.fixture
def several(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], SeveralServers]:
    store = registry().store("default")

    def make(failures: int) -> SeveralServers:
        servers = SeveralServers(store.port(THREADS), failures)
        monkeypatch.setattr(store, "port", lambda _: servers)
        monkeypatch.setattr(store, "renewal_port", lambda: servers)
        return servers

    return make


@pytest.fixture
def told() -> Iterator[list[events.Event]]:
    """The events, in their order."""
    found: list[events.Event] = []
    listener = events.subscribe(found.append, inline=True)
    yield found
    events.unsubscribe(listener)


def deadlines(lease: Lease) -> dict[str, float]:
    return {hold.name[-1]: hold.deadline for hold in scope_of(lease).holds}


def test_one_that_did_not_answer_is_asked_again(several: Callable[[int], SeveralServers]) -> None:
    """Law 3: a connection that was closed while it was idle failed ``lease.extend()``, only because others answered."""
    servers = several(1)
    with lock(["a", "b"], expire=10) as lease:
        lease.extend(20)
        assert lease.remaining > 15
    assert servers.asked == [["a", "b"], ["b"]]


def test_one_that_is_gone_when_it_is_asked_again_is_lost(several: Callable[[int], SeveralServers]) -> None:
    """Its second answer counts as a first one does."""
    servers = several(1)
    with suppress(LeaseLost), lock(["a", "b"], expire=10) as lease:  # its end says so, too
        [fence] = [hold.fence for hold in scope_of(lease).holds if hold.name[-1] == "b"]
        assert fence is not None
        drive(servers.revoke("disLock:b", fence))
        with pytest.raises(LeaseLost):
            lease.extend(20)
    assert servers.asked == [["a", "b"], ["b"]]
    assert lease.reason == "revoked"


def test_what_the_others_have_extended_counts_and_the_failure_is_told(
    several: Callable[[int], SeveralServers], told: list[events.Event]
) -> None:
    several(2)
    with lock(["b", "a"], expire=10) as lease:
        before = deadlines(lease)
        with pytest.raises(BackendUnavailable, match=OUTAGE):
            lease.extend(20)
        after = deadlines(lease)
    assert after["a"] > before["a"] + 5
    assert after["b"] == before["b"]
    assert [(event.name[-1], event.reason) for event in told if event.kind == "error"] == [("b", "extend")]


def test_a_log_that_blocks_takes_no_time_from_those_that_were_renewed(
    several: Callable[[int], SeveralServers], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The failure of one was logged before the others' answers counted, and these came to nothing after a deadline."""
    several(1)
    with lock(["b", "a"], expire=10) as lease:
        before = deadlines(lease)
        logged: list[dict[str, float]] = []
        monkeypatch.setattr(watchdog.logger, "warning", lambda *_, **__: logged.append(deadlines(lease)))
        watchdog.Watchdog()._renew([watchdog.WatchedHold(hold, renew=True) for hold in scope_of(lease).holds])
    assert logged[0]["a"] > before["a"]
    assert logged[0]["b"] == before["b"]


@pytest.mark.timing
def test_a_renewal_that_comes_too_late_is_none(
    several: Callable[[int], SeveralServers], told: list[events.Event]
) -> None:
    """After "lost" nothing is told of a lease: metrics would count it as held again."""
    servers = several(0)
    with lock("a", expire=0.5, on_lost="warn") as lease:
        servers.answering = lambda: time.sleep(max(0.0, lease.remaining) + 0.01)
        watchdog.Watchdog()._renew([watchdog.WatchedHold(hold, renew=True) for hold in scope_of(lease).holds])
    assert [event.kind for event in told] == ["acquired", "lost"]


@pytest.mark.timing
def test_a_waiter_whom_the_store_refuses_at_once_asks_with_pauses(beside: Beside) -> None:
    """It asked thousands of times a second, for a whole lease; in an event loop nobody else ran meanwhile."""
    injector = FaultInjector(registry().store("default"))
    holder = unrelated("a")
    for _ in range(10_000):
        injector.lose("wait", "request")
    with pytest.raises(BackendUnavailable):
        beside(lock("a", expire=0.5, wait=LONG).acquire).result(SOON)
    assert 2 <= injector.calls.count("wait") <= 30
    holder.release()
