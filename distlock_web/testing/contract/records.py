"""What is done: a release leaves a record, and callers within its time are told so (for stores with ``records``)."""

from __future__ import annotations

from typing import Any

from distlock_web.core.backend import Busy, Claim, Granted, LockInfo

from ..harness import Harness
from .base import NAME, Cases, case, claim, needs

RECORD = '{"asked": "", "kept": null, "result": "\\u00e4\\n{1} 2"}'
LONG = 60.0


async def finish(harness: Harness, record: str = RECORD, keep: float = LONG) -> Claim:
    """The lock is taken, and done."""
    mine = claim()
    assert isinstance(await harness.port.acquire(mine, 0), Granted)
    assert await harness.port.release(mine, keep, record) is None
    return mine


async def shown(harness: Harness) -> LockInfo | None:
    """What is known of the lock, also where it is done."""
    return next(iter(await harness.port.inspect([NAME])), None)


async def done(harness: Harness, limit: int = 10) -> list[str]:
    port: Any = harness.port
    return [info.name for info in await port.done(limit)]


async def forget(harness: Harness, name: str, fence: int) -> bool:
    port: Any = harness.port
    return bool(await port.forget(name, fence))


def record_of(answer: Granted | Busy) -> str | None:
    assert isinstance(answer, Busy), answer
    return answer.record


class RecordCases(Cases):
    @needs("records")
    @case
    async def test_who_asks_is_told_what_is_done_and_nobody_changes_it(self, harness: Harness) -> None:
        mine, port = await finish(harness), harness.port
        assert await port.release(mine, LONG, RECORD) is None
        assert await port.release(mine) is None
        assert await port.release(claim()) == "taken"
        await port.cancel(mine)
        assert await port.extend([mine]) == ["expired"]
        for asked, wait in ((claim(), 0), (claim(), None), (mine, 0)):
            answer = await port.acquire(asked, wait)
            assert record_of(answer) == RECORD
            assert isinstance(answer, Busy)
            assert answer.holder == "a holder"
            assert 0 < answer.remaining <= LONG
        info = await shown(harness)
        assert info is not None
        assert (info.state, info.waiters, info.holder) == ("done", 0, "a holder")

    @needs("records")
    @case
    async def test_it_is_listed_apart_from_what_is_held_the_newest_first(self, harness: Harness) -> None:
        names = [f"{NAME}:{number}" for number in range(3)]
        for name in names:
            mine = claim(name=name)
            await harness.port.acquire(mine, 0)
            await harness.port.release(mine, LONG, RECORD)
            await harness.sleep(0.002)
            await harness.port.acquire(claim(name=name), 0)  # to ask lists nothing either
        assert await harness.port.inspect() == []
        assert await done(harness) == names[::-1]
        assert await done(harness, 2) == names[:0:-1]
        assert await done(harness, 1) == names[:1:-1]

    @needs("records")
    @case
    async def test_after_its_time_it_is_free_and_nothing_of_it_is_left(self, harness: Harness) -> None:
        await finish(harness, keep=self.ttl)
        other = claim()
        answer = await harness.port.acquire(other, 0)
        while isinstance(answer, Busy):
            assert answer.record == RECORD
            await harness.sleep(min(answer.remaining, 0.05))
            answer = await harness.port.acquire(other, 0)
        assert record_of(await harness.port.acquire(claim(), 0)) is None
        assert await harness.port.release(other, LONG) is None
        assert record_of(await harness.port.acquire(claim(), 0)) is None
        assert await done(harness) == []

    @needs("records")
    @case
    async def test_all_who_wait_are_woken_and_leave(self, harness: Harness) -> None:
        mine = claim()
        await harness.port.acquire(mine, 0)
        waiting = [claim() for _ in range(4)]

        async def wait(asked: Claim) -> str | None:
            answer = await harness.port.acquire(asked, None)
            while isinstance(answer, Busy) and answer.record is None:
                answer = await harness.port.wait(asked, answer, None)
            return record_of(answer)

        actors = [harness.unrelated(lambda asked=asked: wait(asked)) for asked in waiting]  # type: ignore[misc]
        await harness.waiters(NAME, 4)
        assert await harness.port.release(mine, LONG, RECORD) is None
        assert [await actor.result() for actor in actors] == [RECORD] * 4
        info = await shown(harness)
        assert info is not None
        assert info.waiters == 0
        assert info.fence is not None
        assert await forget(harness, NAME, info.fence)
        assert await harness.line(NAME) is None, "nobody was in the queue"

    @needs("records")
    @case
    async def test_what_is_forgotten_is_free(self, harness: Harness) -> None:
        await finish(harness)
        info = await shown(harness)
        assert info is not None
        assert info.fence is not None
        assert not await harness.port.revoke(NAME, info.fence), "it came late: the work is done"
        assert not await forget(harness, NAME, info.fence - 1)
        assert len(await done(harness)) == 1
        assert await forget(harness, NAME, info.fence)
        assert await done(harness) == []
        answer = await harness.port.acquire(claim(), 0)
        assert isinstance(answer, Granted)
        assert answer.fence is not None
        assert not await forget(harness, NAME, answer.fence), "it is held"

    @needs("records")
    @case
    async def test_a_lease_that_is_lost_leaves_no_record(self, harness: Harness) -> None:
        mine = claim()
        answer = await harness.port.acquire(mine, 0)
        assert isinstance(answer, Granted)
        assert answer.fence is not None
        assert await harness.port.revoke(NAME, answer.fence)
        assert await harness.port.release(mine, LONG, RECORD) == "revoked"
        assert await done(harness) == []
        assert isinstance(await harness.port.acquire(claim(), 0), Granted)

    @needs("records")
    @case
    async def test_a_record_for_no_time_is_none(self, harness: Harness) -> None:
        for _ in range(20):
            mine = claim()
            assert isinstance(await harness.port.acquire(mine, 0), Granted), "it is free at once"
            assert await harness.port.release(mine, 0.0, RECORD) is None
        assert await done(harness) == []

    @needs("records")
    @case
    async def test_a_record_may_be_long(self, harness: Harness) -> None:
        record = '{"result": "' + "x" * 400_000 + '"}'
        await finish(harness, record)
        assert record_of(await harness.port.acquire(claim(), 0)) == record
