"""When leases are renewed, together with which, and for how long: to the tenth of a second, where time can be known."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import pytest

from distlock_web import BackendUnavailable, Lease, LeaseLost, lock
from distlock_web.core.backend import DRIFT_RATIO, DRIFT_SECONDS, Claim, drift
from distlock_web.core.runtime import now
from distlock_web.locks import events, watchdog
from distlock_web.locks.lease import scope_of
from distlock_web.testing.contract.base import Cases, case
from distlock_web.testing.harness import AsyncHarness, Harness

#: A third of it, less the margin for drift, is ten seconds.
EXPIRE = (10 + DRIFT_SECONDS) / (1 / 3 - DRIFT_RATIO)
#: Seconds after which its holder does not believe in it any more.
BELIEVED = EXPIRE - drift(EXPIRE)
#: A quarter of a third: how long after one that has failed it is renewed again.
AGAIN = EXPIRE / 12


class Renewals:
    """What the watchdog asks of the store: when, of which locks, and for how long it would wait for the answer."""

    def __init__(self, harness: Harness) -> None:
        self._port: Any = harness.store.renewal_port()
        self._begun = now()
        self.asked: list[tuple[float, str]] = []
        self.patience: list[float] = []
        #: What is to go wrong: nothing, or an error, at the next of them.
        self.errors: list[Exception | None] = []
        harness.store.renewal_port = lambda: self  # type: ignore[method-assign, assignment, return-value]

    @property
    def time(self) -> float:
        return round(now() - self._begun, 1)

    async def extend(self, claims: Sequence[Claim], patience: float | None = None) -> Any:
        self.asked.append((self.time, "".join(sorted(claim.name.removeprefix("disLock:") for claim in claims))))
        assert patience is not None
        self.patience.append(round(patience, 1))
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            raise error
        return await self._port.extend(claims, patience)


class RenewalCases(Cases):
    """In a world whose time takes none: it would be minutes."""

    @case
    async def test_at_once_and_then_at_each_third(self, harness: Harness) -> None:
        renewals = Renewals(harness)
        async with harness.inside(lock("a", expire=EXPIRE, renew=True)) as lease:
            for _ in range(45):
                await harness.sleep(1)
                assert lease.remaining > EXPIRE * 0.6
        await harness.sleep(2 * EXPIRE)
        assert renewals.asked == [(time, "a") for time in (0, 10, 20, 30, 40)]
        assert renewals.patience == [round(BELIEVED, 1)] + [round(BELIEVED - 10, 1)] * 4, "to the end of the lease"

    @pytest.mark.parametrize(
        ("later", "asked"),
        [
            (4, [(0, "a"), (10, "ab"), (20, "ab"), (30, "ab")]),
            (6, [(0, "a"), (10, "a"), (16, "ab"), (26, "ab")]),
        ],
    )
    @case
    async def test_what_is_due_within_half_a_period_comes_along(
        self, harness: Harness, later: float, asked: list[tuple[float, str]]
    ) -> None:
        renewals = Renewals(harness)
        one = await harness.acquire(lock("a", expire=EXPIRE, renew=True))
        await harness.sleep(later)
        other = await harness.acquire(lock("b", expire=EXPIRE, renew=True))
        await harness.sleep(35 - later)
        await harness.release(one)
        await harness.release(other)
        assert renewals.asked == asked

    @case
    async def test_one_that_is_only_watched_is_not_renewed_with_the_others(self, harness: Harness) -> None:
        """It is told of at its deadline, and not a moment before."""
        renewals = Renewals(harness)
        told: list[float] = []
        async with harness.inside(lock("a", expire=EXPIRE, renew=True)):
            watched = await harness.acquire(lock("b", expire=12, on_lost=lambda lease: told.append(renewals.time)))
            await harness.sleep(11)
            assert not told
            await harness.sleep(2)
            assert told == [11.9]
            assert watched.state == "lost"
        assert renewals.asked == [(0, "a"), (10, "a")]

    @pytest.mark.parametrize(("renew_for", "last"), [(5, 0), (25, 20), (35, 30)])
    @case
    async def test_renew_for_ends_the_renewal(self, harness: Harness, renew_for: float, last: int) -> None:
        renewals = Renewals(harness)
        with pytest.raises(LeaseLost):
            async with harness.inside(lock("a", expire=EXPIRE, renew=True, renew_for=renew_for)) as lease:
                await harness.sleep(last + BELIEVED - 0.1)
                assert lease.state == "held"
                await harness.sleep(0.2)
                assert lease.state == "lost"
        assert renewals.asked == [(time, "a") for time in range(0, last + 1, 10)]

    @case
    async def test_what_has_no_answer_is_asked_again_after_a_quarter_of_the_period(
        self, harness: Harness, caplog: pytest.LogCaptureFixture
    ) -> None:
        renewals = Renewals(harness)
        heard: list[tuple[str, str]] = []
        listener = events.subscribe(lambda event: heard.append((event.kind, event.reason)), inline=True)
        renewals.errors = [None, *[BackendUnavailable("The test has lost it.")] * 2]
        with caplog.at_level(logging.WARNING):
            async with harness.inside(lock("a", expire=EXPIRE, renew=True)) as lease:
                await harness.sleep(11)
                assert lease.state == "unsure"
                await harness.sleep(24)
                assert lease.state == "held"
        await harness.sleep(1)  # in a world, one thread's events are deferred as the watchdog's are
        events.unsubscribe(listener)
        assert renewals.asked == [
            (round(time, 1), "a") for time in (0, 10, 10 + AGAIN, *(10 + 2 * AGAIN + step for step in (0, 10)))
        ]
        assert [reason for kind, reason in heard if kind == "error"] == ["renew", "renew"]
        assert [kind for kind, _ in heard if kind not in ("renewed", "error")] == ["acquired", "released"]
        assert caplog.text.count("could not be renewed") == 2

    @case
    async def test_a_bug_of_a_store_ends_no_renewal(self, harness: Harness, caplog: pytest.LogCaptureFixture) -> None:
        renewals = Renewals(harness)
        renewals.errors = [LookupError("a bug of a store")]
        async with harness.inside(lock("a", expire=EXPIRE, renew=True)) as lease:
            await harness.sleep(5)
            lease.raise_if_lost()
        assert renewals.asked == [(0, "a"), (round(AGAIN, 1), "a")]
        assert "a bug of a store" in caplog.text

    @case
    async def test_what_nobody_answers_for_is_tried_until_the_deadline_and_lost_then(self, harness: Harness) -> None:
        renewals = Renewals(harness)
        told: list[float] = []
        renewals.errors = [None, *[BackendUnavailable("The test has lost it.")] * 99]
        on_lost = lambda lease: told.append(renewals.time)  # noqa: E731
        async with harness.inside(lock("a", expire=EXPIRE, renew=True, on_lost=on_lost)) as lease:
            await harness.sleep(EXPIRE + 20)
            assert lease.reason == "unreachable"
        assert [time for time, _ in renewals.asked[1:]] == [round(10 + AGAIN * step, 1) for step in range(8)]
        assert told == [round(BELIEVED, 1)]

    @case
    async def test_a_lease_that_nobody_has_is_renewed_no_more(
        self, harness: Harness, caplog: pytest.LogCaptureFixture
    ) -> None:
        renewals = Renewals(harness)
        lease: Lease | None = await harness.acquire(lock("a", expire=EXPIRE, renew=True))
        await harness.sleep(12)
        assert lease is not None
        lease = None
        with caplog.at_level(logging.WARNING):
            await harness.sleep(2 * EXPIRE)
        assert renewals.asked == [(0, "a"), (10, "a")]
        assert caplog.text.count("nobody has its lease any more") == 1
        assert await harness.port.inspect() == []

    @pytest.mark.parametrize("looks", [False, True])
    @case
    async def test_it_is_renewed_while_somebody_is_alive_who_is_asked_for(self, harness: Harness, looks: bool) -> None:
        """A client: when the next third is over, or at once."""
        renewals = Renewals(harness)
        alive, gone = [True], list[float]()
        lease = await harness.acquire(lock("a", expire=EXPIRE))
        look = watchdog.renew_while(
            scope_of(lease), 1000, alive=lambda: alive[0], when_abandoned=lambda: gone.append(renewals.time)
        )
        await harness.sleep(14)
        alive[0] = False
        if looks:
            look()
        await harness.sleep(1)
        assert gone == ([14.0] if looks else [])
        await harness.sleep(10)
        assert gone == ([14.0] if looks else [20.0]), "and once"
        assert renewals.asked == [(0, "a"), (10, "a")]
        await harness.release(lease)

    @case
    async def test_a_client_is_waited_for_so_long(self, harness: Harness) -> None:
        renewals = Renewals(harness)
        lease = await harness.acquire(lock("a", expire=EXPIRE))
        watchdog.renew_while(scope_of(lease), 25, alive=lambda: True, when_abandoned=lambda: None)
        await harness.sleep(25 + EXPIRE)
        assert lease.state == "lost"
        assert renewals.asked == [(time, "a") for time in (0, 10, 20)]

    @case
    async def test_very_many_go_in_several_requests(self, harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
        renewals = Renewals(harness)
        monkeypatch.setattr(watchdog, "MAX_BATCH_LEASES", 3)
        keys = list("abcdefg")
        async with harness.inside(lock(keys, expire=EXPIRE, renew=True)):
            await harness.sleep(12)
        for time in (0, 10):
            batches = [names for at, names in renewals.asked if at == time]
            assert sorted("".join(batches)) == keys
            assert sorted(map(len, batches)) == [1, 3, 3]

    @case
    async def test_what_is_held_already_is_kept_while_its_owner_waits_for_more(self, harness: Harness) -> None:
        renewals = Renewals(harness)

        async def both() -> None:
            async with harness.inside(lock(["a", "b"], expire=EXPIRE, wait=100)) as lease:
                assert lease.remaining > 5

        async with harness.inside(lock("b", expire=200)):
            actor = harness.unrelated(both)
            await harness.sleep(45)
        await actor.result()
        await harness.sleep(EXPIRE)
        assert renewals.asked == [(time, "a") for time in (0, 10, 20, 30, 40)]

    @case
    async def test_on_lost_is_called_by_a_thread_that_renews_nothing(self, harness: Harness) -> None:
        """It may take its time."""
        told, said = harness.event(), list[bool]()
        loop = asyncio.get_running_loop() if isinstance(harness, AsyncHarness) else None

        def hear(lease: Lease) -> None:
            said.append(watchdog._watchdog_of(harness.store).is_running_here())
            loop.call_soon_threadsafe(told.set) if loop else told.set()

        lease = await harness.acquire(lock("b", expire=12, on_lost=hear))
        await told.wait()
        assert said == [False]
        assert lease.state == "lost"
