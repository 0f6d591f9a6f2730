"""What the memory store says, to the moment: its clock stands still, and who sleeps moves it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from distlock_web.backends import memory
from distlock_web.backends.memory import PLACE, REMEMBERED, MemoryBackend, MemoryPort
from distlock_web.core.backend import SHARED, Busy, Claim, Granted, LockInfo, WaiterInfo
from distlock_web.core.config import StoreConfig
from distlock_web.core.errors import ConfigurationError
from distlock_web.core.runtime import Runtime, Token, drive, new_token

#: By the wall clock, when the other one begins.
EPOCH = 1_000_000.0


class World:
    """A store, its clock, and one place to sleep, for all."""

    def __init__(self) -> None:
        self.moment = 100.0
        self.clock_set_back = 0.0
        #: How long each slept who asked for it, and what woke it.
        self.sleeps: list[float | None] = []
        self.woken = False
        self.unparked = 0
        self.port: MemoryPort

    def wall(self) -> float:
        return EPOCH + self.moment - self.clock_set_back

    async def park(self, seconds: float | None) -> bool:
        self.sleeps.append(seconds)
        self.moment += seconds or 0.0
        return self.woken

    def unpark(self) -> bool:
        self.unparked += 1
        return True

    def hears(self) -> bool:
        return True

    def ask(self, claim: Claim, wait: float | None = None) -> Granted | Busy:
        return drive(self.port.acquire(claim, wait))

    def take(self, claim: Claim) -> int:
        granted = self.ask(claim)
        assert isinstance(granted, Granted)
        assert granted.since == self.moment
        assert granted.fence is not None
        return granted.fence

    def left(self, name: str = "a") -> list[tuple[float, str]]:
        """What is left of each lease on it, and its state."""
        return [(round(line.remaining, 3), line.state) for line in drive(self.port.inspect([name]))]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    world = World()
    monkeypatch.setattr(memory, "now", lambda: world.moment)
    clock = SimpleNamespace(time=lambda: world.wall(), time_ns=lambda: int(world.wall() * 1e9))
    monkeypatch.setattr(memory, "time", clock)
    world.port = MemoryPort(memory._Table(), cast(Runtime, SimpleNamespace(parker=lambda: world)))
    return world


def claim(expire: float = 60.0, limit: int = 1, name: str = "a", **more: Any) -> Claim:
    return Claim(name, new_token().limited(limit), expire, **more)


def test_who_comes_is_told_whose_it_is_and_when_to_ask_again(world: World) -> None:
    world.take(claim(holder="h"))
    world.moment += 10
    told = Busy(50, 50, holder="h", held_for=10)
    assert world.ask(claim(), wait=0) == told
    first, third = claim(20), claim(100)
    assert world.ask(first) == told._replace(recheck_after=20)
    assert world.ask(claim(20)) == told._replace(recheck_after=20 + PLACE)
    assert world.ask(third) == told._replace(recheck_after=50 + 2 * PLACE)
    assert world.ask(first) == told._replace(recheck_after=20), "it has its place"
    assert world.ask(claim(max_waiters=3)) == told._replace(full=True)
    assert world.ask(third._replace(max_waiters=3)) == told._replace(recheck_after=50 + 2 * PLACE)
    [line] = drive(world.port.inspect())
    assert (line.waiters, line.waiting_since) == (3, EPOCH + 110)
    world.clock_set_back = 3600
    assert world.ask(claim(), wait=0) == told._replace(held_for=0)
    world.moment += 49.9999
    assert world.ask(claim(), wait=0).remaining == 0.001


def test_of_several_the_next_that_ends_is_told(world: World) -> None:
    world.take(claim(60, limit=2, holder="late"))
    world.moment += 10
    world.take(claim(20, limit=2, holder="soon"))
    world.moment += 5
    assert world.ask(claim(limit=2), wait=0) == Busy(15, 15, holder="soon", held_for=5)
    assert world.ask(claim(), wait=0) == Busy(45, 45, holder="soon", held_for=5), "who wants to be alone waits for both"


def test_a_lease_ends_at_its_end(world: World) -> None:
    mine = claim(60)
    world.take(mine)
    world.moment += 59.9
    assert isinstance(world.ask(claim(), wait=0), Busy)
    world.moment = 160.0
    assert drive(world.port.extend([mine])) == ["expired"]
    assert world.left() == []
    world.take(claim())


@pytest.mark.parametrize("verb", ["acquire", "extend", "attach"])
@pytest.mark.parametrize(("expire", "left"), [(5, 50), (100, 100)])
def test_a_second_copy_lengthens_a_lease_and_shortens_none(world: World, verb: str, expire: float, left: float) -> None:
    mine = claim(60, holder="h")
    fence = world.take(mine)
    world.moment += 10
    again = mine._replace(expire=expire)
    if verb == "extend":
        assert drive(world.port.extend([again])) == [None]
    else:
        answer = world.ask(again, wait=0) if verb == "acquire" else drive(world.port.attach(again, "no such"))
        assert answer == Granted(fence, 110)
    assert world.left() == [(left, "held")]


def test_a_lease_is_on_its_way_and_then_the_receivers(world: World) -> None:
    mine, theirs = claim(60, holder="h"), claim(40, holder="other")
    fence = world.take(mine)
    since = world.wall()
    world.moment += 10
    assert [drive(world.port.detach(mine, "ticket", 30)) for _ in range(2)] == [None, None]
    assert world.left() == [(30, "transit")]
    assert drive(world.port.detach(mine, "another", 30)) == "taken"
    world.moment += 5
    assert drive(world.port.attach(claim(), "no such")) is None
    assert [drive(world.port.attach(theirs, "ticket")) for _ in range(2)] == [Granted(fence, 115)] * 2
    assert drive(world.port.attach(claim(), theirs.token)) is None, "who holds it is no ticket"
    assert drive(world.port.inspect()) == [LockInfo("a", fence, "other", since, 40, 0, "held")]
    assert drive(world.port.detach(theirs, "late", 30)) is None
    world.moment += 30
    assert drive(world.port.attach(claim(), "late")) is None
    assert world.left() == []


def test_who_has_the_ticket_gives_it_back(world: World) -> None:
    mine = claim()
    world.take(mine)
    drive(world.port.detach(mine, "ticket", 30))
    drive(world.port.cancel(mine))
    assert world.left() == [(30, "transit")], "it is not this one's any more"
    drive(world.port.cancel(mine._replace(token=Token("ticket"))))
    assert world.left() == []


@pytest.mark.parametrize(
    ("cooldown", "record", "left"),
    [(0, None, []), (0, "r", []), (20, None, [(20, "cooldown")]), (20, "r", [(20, "done")])],
)
def test_what_a_release_leaves(world: World, cooldown: float, record: str | None, left: list[Any]) -> None:
    mine = claim(holder="h")
    fence = world.take(mine)
    world.moment += 10
    waiting = claim(7)
    assert isinstance(world.ask(waiting), Busy)
    assert [drive(world.port.release(mine, cooldown, record)) for _ in range(2)] == [None, None]
    if not left:
        assert world.left() == [(7, "held")], "the waiter has it"
        return
    assert world.left() == left
    drive(world.port.cancel(mine))
    assert world.left() == left, "it is not given back"
    done = left[0][1] == "done"
    assert [line.waiters for line in drive(world.port.inspect(["a"]))] == [0 if done else 1]
    assert world.unparked == 1, "it may ask sooner than it knew, or hears that it is done"
    told = Busy(20, 20, holder="h", held_for=10, record=record)
    assert world.ask(claim(30), wait=0) == told
    assert world.ask(claim(30)) == (told if done else told._replace(recheck_after=20 + PLACE))
    assert (drive(world.port.revoke("a", fence)), drive(world.port.forget("a", fence))) == (not done, done)


@pytest.mark.parametrize(("cooldown", "woken"), [(49, 1), (50, 0), (51, 0)])
def test_who_may_enter_no_sooner_than_it_knows_is_not_woken(world: World, cooldown: float, woken: int) -> None:
    world.take(mine := claim(60))
    world.moment += 10
    assert isinstance(world.ask(claim(200)), Busy)
    drive(world.port.release(mine, cooldown))
    assert world.unparked == woken


def test_who_waits_for_all_to_end_is_woken_when_the_last_of_them_ends_sooner(world: World) -> None:
    world.take(late := claim(60, limit=2))
    world.take(claim(20, limit=2))
    assert isinstance(world.ask(claim(200)), Busy)
    drive(world.port.release(late))
    assert world.unparked == 1
    assert world.left() == [(20, "held")], "it may not enter yet"


@pytest.mark.parametrize(
    ("seconds", "woken", "slept", "answer"),
    [
        (None, False, 20, Busy(20, 40, holder="h", held_for=20)),
        (20, False, 20, Busy(20, 40, holder="h", held_for=20)),
        (5, False, 5, Busy(20, 55, holder="h", held_for=0)),  # what it was told, less its sleep
        (5, True, 5, Busy(20, 55, holder="h", held_for=5)),
        (30, False, 20, Busy(20, 40, holder="h", held_for=20)),
    ],
)
def test_a_waiter_asks_again_when_it_is_woken_or_has_slept(
    world: World, seconds: float | None, woken: bool, slept: float, answer: Busy
) -> None:
    world.take(claim(holder="h"))
    waiting = claim(20)
    busy = world.ask(waiting)
    assert isinstance(busy, Busy)
    world.woken = woken
    assert drive(world.port.wait(waiting, busy, seconds)) == answer
    assert world.sleeps == [slept]


def test_a_sleep_that_was_too_long_leaves_a_moment(world: World) -> None:
    world.take(claim(holder="h"))
    waiting = claim(200)
    busy = world.ask(waiting)
    assert isinstance(busy, Busy)
    world.moment += 1
    assert drive(world.port.wait(waiting, busy._replace(remaining=1.0), 2)) == busy._replace(remaining=0.001)


@pytest.mark.parametrize("what", ["handed over", "free", "done"])
def test_who_has_it_or_may_ask_does_not_sleep(world: World, what: str) -> None:
    mine, waiting = claim(), claim(20)
    world.take(mine)
    busy = world.ask(waiting)
    assert isinstance(busy, Busy)
    if what == "free":
        world.moment += 60
    else:
        drive(world.port.release(mine, *((30, "r") if what == "done" else ())))
    answer = drive(world.port.wait(waiting, busy, None))
    assert world.sleeps == []
    assert isinstance(answer, Busy if what == "done" else Granted)
    assert world.left()[0] == (30, "done") if what == "done" else (20, "held")


def test_what_a_page_shows(world: World) -> None:
    one, other, alone = claim(60, 3, holder="one"), claim(20, 2, holder="other"), claim(30, name="b", holder="alone")
    first = world.take(one)
    world.moment += 10
    second, third = world.take(other), world.take(alone)
    world.take(done := claim(name="c"))
    world.moment += 1
    world.take(later := claim(name="d"))
    waiting = [claim(holder=f"w{number}") for number in range(3)]
    for each in waiting:
        world.moment += 1
        assert isinstance(world.ask(each), Busy)
    for each in (done, later):
        drive(world.port.release(each, 500, "record"))
    held = [
        LockInfo("a", second, "other", EPOCH + 110, 16, 0, "held", None, 2, 2),
        LockInfo("b", third, "alone", EPOCH + 110, 26, 0, "held"),
        LockInfo("a", first, "one", EPOCH + 100, 46, 3, "held", EPOCH + 112, 2, 2),
    ]
    assert drive(world.port.inspect()) == held
    assert drive(world.port.inspect(["a", "no such"])) == [held[0], held[2]]
    assert drive(world.port.inspect([])) == []
    assert [(line.name, line.state) for line in drive(world.port.inspect(["c"]))] == [("c", "done")]
    assert drive(world.port.names()) == (2, ["a", "b"])
    assert drive(world.port.names(1)) == (2, ["a"])
    waits = [WaiterInfo(f"w{number}", EPOCH + 112 + number) for number in range(3)]
    assert drive(world.port.waiters("a", 2)) == waits[:2]
    assert drive(world.port.waiters("b", 2)) == drive(world.port.waiters("no such", 2)) == []
    assert [line.name for line in drive(world.port.done(2))] == ["d", "c"]
    assert [line.name for line in drive(world.port.done(1))] == ["d"]


def test_without_a_limit_any_number_reads(world: World) -> None:
    for _ in range(3):
        world.take(claim(limit=SHARED))
    assert {(line.holders, line.limit) for line in drive(world.port.inspect())} == {(3, SHARED)}


@pytest.mark.parametrize("others", [REMEMBERED - 1, REMEMBERED])
def test_the_last_that_had_it_are_told_the_truth(world: World, others: int) -> None:
    world.take(mine := claim())
    for each in (mine, *(claim() for _ in range(others))):
        world.take(each)
        drive(world.port.release(each))
    assert drive(world.port.release(mine)) == (None if others < REMEMBERED else "expired")


def test_what_is_forgotten_is_older_than_a_minute_and_is_looked_for_once_in_one(world: World) -> None:
    def names() -> list[str]:
        drive(world.port.extend([claim(name="looks")]))
        return sorted(world.port._table.locks.keys() - {"looks"})

    world.take(claim(600, name="held"))
    for name in ("queue", "old"):
        world.take(claim(1, name=name))
    world.ask(claim(name="queue"))
    world.moment = 100 + 0.5
    world.take(claim(1, name="of its age"))
    world.moment = 150
    world.take(claim(1, name="young"))
    assert names() == ["held", "of its age", "old", "queue", "young"]
    world.moment = 160
    assert "old" in names(), "it is not a minute yet"
    world.moment = 160.5
    assert names() == ["held", "of its age", "queue", "young"]
    world.moment = 220.5
    assert names() == ["held", "of its age", "queue", "young"]
    world.moment = 220.6
    assert names() == ["held", "queue"]


def test_a_fence_is_the_time_in_microseconds_and_grows(world: World) -> None:
    fences = []
    for _ in range(2):
        fences.append(world.take(mine := claim()))
        drive(world.port.release(mine))
    assert fences == [int(world.wall() * 1e6), int(world.wall() * 1e6) + 1]


@pytest.mark.parametrize("location", ["", "memory://", "nats://:secret@host"])
def test_locks_in_memory_are_nowhere_else(location: str) -> None:
    config = StoreConfig("jobs", location=location)
    if location in ("", "memory://"):
        backend = MemoryBackend(config)
        assert backend.renewal_port() is backend.sync_port()
        assert backend.sync_port()._table is backend.async_port()._table
    else:
        with pytest.raises(ConfigurationError, match=r"'jobs'\W+LOCATION\W+ is '[^']*host'; locks in memory") as caught:
            MemoryBackend(config)
        assert "secret" not in str(caught.value)
