"""The checker finds what it is there to find: each kind of violation, planted."""

from __future__ import annotations

from typing import TypeAlias

import pytest

from distlock_web.core.backend import SHARED
from tests.support.history import Event, History
from tests.support.storm import overtaken

#: Actor, kind, moment; value and limit where they matter.
Said: TypeAlias = tuple[str, str, float] | tuple[str, str, float, int | None] | tuple[str, str, float, int | None, int]


def history(*said: Said) -> History:
    return History(Event(*each) for each in said)


#: Two sections as they should be: b joins while a holds, and begins after a has ended.
WELL: tuple[Said, ...] = (
    ("a", "wanted", 0.0), ("a", "acquired", 1.0, 10), ("b", "wanted", 1.1), ("b", "joined", 1.2, 100),
    ("a", "read", 1.3, 0), ("a", "wrote", 1.4, 1), ("a", "released", 2.0), ("b", "acquired", 2.1, 11),
    ("b", "read", 2.2, 1), ("b", "wrote", 2.3, 2), ("b", "released", 3.0),
)  # fmt: skip


def test_a_good_history_has_no_violations_in_whatever_order_its_events_arrive() -> None:
    for said in (WELL, WELL[::-1]):
        assert history(*said).violations(counter=2, fifo=True) == []
    assert [round(wait, 1) for wait in history(*WELL).waits()] == [1.0, 1.0]


BY_B: tuple[Said, ...] = ("b", "acquired", 1.9, 11), ("b", "released", 3.0)


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ([("a", "acquired", 1.0, 10), *BY_B, ("a", "released", 2.0)], ["overlap: b (fence 11) began 0.1"]),
        ([("a", "acquired", 1.0, 10), *BY_B], ["overlap"]),
        ([("a", "acquired", 1.0, 10), *BY_B, ("a", "lost", 1.8)], []),
        ([("a", "acquired", 1.0, 10), *BY_B, ("a", "lost", 2.1)], ["overlap"]),
        (  # behind a short one
            [
                ("a", "acquired", 1.0, 10), ("b", "acquired", 1.1, 11), ("b", "released", 1.2),
                ("c", "acquired", 1.3, 12), ("c", "released", 1.4), ("a", "released", 9.0),
            ],
            ["overlap: b", "overlap: c"],
        ),
        *[
            ([("a", "acquired", 1.0, fence), ("a", "released", 1.5), *BY_B], ["fence: b got 11, after a had got"])
            for fence in (11, 12)
        ],
    ],
)  # fmt: skip
def test_an_overlap_and_a_fence_that_does_not_grow_are_found(said: list[Said], found: list[str]) -> None:
    violations = history(*said).violations()
    assert len(violations) == len(found)
    assert all(one.startswith(expected) for one, expected in zip(violations, found, strict=True))


def test_a_lost_update_is_found() -> None:
    sections: tuple[Said, ...] = (
        ("a", "acquired", 1.0, 10), ("a", "read", 1.1, 0), ("a", "wrote", 1.2, 1), ("a", "released", 2.0),
        ("b", "acquired", 3.0, 11), ("b", "read", 3.1, 0), ("b", "wrote", 3.2, 1), ("b", "released", 4.0),
    )  # fmt: skip
    assert history(*sections).violations(counter=1) == [
        "lost update: the counter says 1 after 2 sections (and 0 that were killed in it)",
    ]
    killed = history(("a", "acquired", 1.0, 10), ("a", "read", 1.1, 0), ("a", "killed", 2.0))
    assert killed.violations(counter=0) == killed.violations(counter=1) == []
    assert len(killed.violations(counter=2)) == 1


def test_an_overtaking_is_found() -> None:
    overtaken = history(
        ("a", "joined", 1.0, 100), ("b", "joined", 1.1, 200), ("b", "acquired", 2.0, 10), ("b", "released", 3.0),
        ("a", "acquired", 3.1, 11), ("a", "released", 4.0),
    )  # fmt: skip
    assert overtaken.violations() == []
    assert overtaken.violations(fifo=True) == ["order: b (place 200) was served before a (100)"]


IDLE: tuple[Said, ...] = (
    ("a", "acquired", 1.0, 10), ("b", "wanted", 1.5, 1), ("a", "released", 2.0),
    ("b", "acquired", 5.0, 11), ("b", "released", 6.0),
)  # fmt: skip
OUTAGE: tuple[Said, ...] = ("nemesis", "fault", 2.5), ("nemesis", "healed", 4.0)
# Whoever wants two locks may have had this one while it waited for the other.
TWO: tuple[Said, ...] = (
    ("a", "wanted", 0.0, 2), ("b", "wanted", 0.1, 1), ("a", "gave_up", 5.0), ("b", "acquired", 6.0, 10)
)  # fmt: skip
ROOM: tuple[Said, ...] = (
    ("a", "wanted", 0.0, 1, 2), ("a", "acquired", 0.1, 10, 2), ("b", "wanted", 1.0, 1, 2),
    ("b", "acquired", 4.0, 11, 2), ("b", "released", 5.0), ("a", "released", 6.0),
)  # fmt: skip
WRITER_IN_FRONT: tuple[Said, ...] = ("w", "wanted", 0.5, 1, 1), ("w", "gave_up", 3.0, None, 1)


@pytest.mark.parametrize(
    ("said", "seconds", "found"),
    [
        (IDLE, 3.0, "b wanted the lock for 3.000 s, and nobody had it"),
        (IDLE + OUTAGE, 1.0, "b wanted the lock for 1.000 s, and nobody had it"),
        (TWO, 1.0, "b wanted the lock for 1.000 s, and nobody had it"),
        (ROOM, 3.0, "b wanted the lock for 3.000 s, and only a had it"),
        (ROOM + WRITER_IN_FRONT, 1.0, "b wanted the lock for 1.000 s, and only a had it"),
    ],
)
def test_a_lock_with_room_for_all_who_want_it_is_found(said: tuple[Said, ...], seconds: float, found: str) -> None:
    assert history(*said).violations(bound=seconds + 0.1) == []
    assert history(*said).violations(bound=seconds - 0.1) == [f"idle: {found}"]


BUSY: tuple[Said, ...] = ("a", "wanted", 2.0, 1), ("a", "gave_up", 2.1)
SILENT: tuple[Said, ...] = ("a", "wanted", 2.0, 1), ("a", "unreachable", 2.1)
OTHER: tuple[Said, ...] = ("b", "wanted", 0.5, 1), ("b", "ended", 1.5)
FAULT: tuple[Said, ...] = ("nemesis", "fault", 0.5), ("nemesis", "healed", 1.5)
#: Whoever was killed while it waited may be given the lock at any time, and nobody hears of it.
KILLED: tuple[Said, ...] = ("b", "wanted", 0.5, 1), ("b", "killed", 0.6)
#: Its request may come after its cancel, and then has the lock for one lease.
INTERRUPTED: tuple[Said, ...] = ("b", "wanted", 1.7), ("b", "interrupted", 1.8)
#: What it sent is late by as long as its process stands still.
STOPPED: tuple[Said, ...] = (
    ("b", "wanted", 0.0), ("b", "interrupted", 0.1), ("process0 stopped 1", "fault", 0.2),
    ("process0 stopped 1", "healed", 1.9),
)  # fmt: skip
#: It wanted two, had this one for a moment, and has gone before the other's refusal is heard.
GONE: tuple[Said, ...] = ("b", "wanted", 1.9, 2), ("b", "ended", 2.05)


@pytest.mark.parametrize(
    ("said", "grace", "honest"),
    [
        (BUSY, 1.0, False), (SILENT, 1.0, False), (BUSY + OTHER, 1.0, False),
        (BUSY + OTHER + FAULT, 1.0, True), (BUSY + OTHER + FAULT, 0.4, False),
        (SILENT + FAULT, 1.0, True), (SILENT + FAULT, 0.4, False),
        (BUSY + KILLED, 1.0, True), (BUSY + GONE, 1.0, True),
        (BUSY + INTERRUPTED, 1.0, True), (BUSY + INTERRUPTED, 0.05, False), (BUSY + STOPPED, 1.0, True),
    ],
)  # fmt: skip
def test_a_refusal_without_a_cause_is_found(said: tuple[Said, ...], grace: float, honest: bool) -> None:
    assert (history(*said).violations(honest=grace) == []) is honest


def test_an_order_of_the_locks_that_explains_all_answers_is_looked_for() -> None:
    waited: tuple[Said, ...] = (
        ("a", "wanted", 1.0, 1), ("b", "wanted", 1.1, 1), ("c", "wanted", 1.2, 1), ("b", "gave_up", 1.3),
        ("a", "acquired", 1.4, 10), ("a", "released", 2.0), ("a", "ended", 2.2), ("c", "acquired", 2.1, 11),
        ("c", "released", 3.0), ("c", "ended", 3.1),
    )  # fmt: skip
    # a had the lock before it knew, and c before a knew that it had it no more.
    assert history(*waited).violations(honest=1.0) == []
    refused: tuple[Said, ...] = ("b", "wanted", 3.15, 1), ("b", "gave_up", 3.2)
    assert history(*waited, *refused).violations(honest=1.0) == [
        "not linearizable: b was told at 3.200000 that the lock was busy"
    ]
    # Of a lock that was handed over with its fence the last release counts.
    handed_over: tuple[Said, ...] = (
        ("a", "wanted", 1.0, 1), ("a", "acquired", 1.1, 10), ("a", "detached", 1.2), ("a", "ended", 1.3),
        ("c", "wanted", 1.4, 1), ("c", "gave_up", 1.5),
        ("b", "wanted", 1.6, 1), ("b", "acquired", 1.7, 10), ("b", "released", 1.8), ("b", "ended", 1.9),
        ("c", "wanted", 2.0, 1), ("c", "gave_up", 2.1),
    )  # fmt: skip
    assert history(*handed_over).violations(honest=1.0) == [
        "not linearizable: c was told at 2.100000 that the lock was busy"
    ]


@pytest.mark.parametrize(
    ("limits", "found"), [((2, 2, 2), 1), ((3, 3, 3), 0), ((3, 2, 3), 1), ((3, 1), 1), ((1, 3), 1)]
)
def test_more_than_the_smallest_limit_is_found(limits: tuple[int, ...], found: int) -> None:
    inside: list[Said] = [
        (name, "acquired", 1.0 + at, 10 + at, limit)
        for at, (name, limit) in enumerate(zip("abc", limits, strict=False))
    ]
    assert len(history(*inside, *((name, "released", 9.0) for name in "abc")).violations()) == found


def test_fences_of_those_that_may_be_together_may_come_in_any_order_but_a_writers_may_not() -> None:
    readers: list[Said] = [
        ("a", "acquired", 1.0, 11, SHARED), ("a", "released", 2.0),
        ("b", "acquired", 3.0, 10, SHARED), ("b", "released", 4.0),
    ]  # fmt: skip
    assert history(*readers).violations() == []
    for fence in (11, 10, 9):
        writer: list[Said] = [("w", "acquired", 5.0, fence), ("w", "released", 6.0)]
        assert history(*readers, *writer).violations() == [f"fence: w got {fence}, after a had got 11"]
    late: list[Said] = [("w", "acquired", 0.1, 12), ("w", "released", 0.2)]
    assert len(history(*late, *readers).violations()) == 2


@pytest.mark.parametrize(
    ("mine", "others", "found"), [(2, 2, 1), (2, 3, 1), (SHARED, SHARED, 1), (1, 2, 0), (2, 1, 0), (1, 1, 0)]
)
def test_a_refusal_though_there_was_room_is_found(mine: int, others: int, found: int) -> None:
    said: list[Said] = [
        ("b", "wanted", 0.0, 1, others), ("b", "acquired", 0.1, 10, others),
        ("a", "wanted", 1.0, 1, mine), ("a", "gave_up", 1.1, None, mine),
        ("b", "released", 2.0), ("b", "ended", 2.1, None, others),
    ]  # fmt: skip
    assert len(history(*said).violations(honest=1.0)) == found
    # A writer that waits stands in front of a later reader.
    assert history(*said, *WRITER_IN_FRONT).violations(honest=1.0) == []


def test_who_enters_before_one_that_asked_earlier_is_found() -> None:
    passed: list[Said] = [
        ("w", "wanted", 1.0, 1, 1), ("a", "wanted", 1.5, 1, SHARED), ("a", "acquired", 1.6, 10, SHARED),
        ("a", "released", 2.0), ("w", "acquired", 2.1, 11), ("w", "released", 3.0),
    ]  # fmt: skip
    assert list(overtaken(history(*passed).events, 0.6)) == []
    (found,) = overtaken(history(*passed).events, 0.4)
    assert found.startswith("order: a entered at 1.6")


def test_what_a_store_has_forgotten_excludes_nobody_also_where_its_holder_hears_of_it_later() -> None:
    """The answer of a master that had failed over was on its way: the next holder's lock counted as taken."""
    late = history(
        ("a", "wanted", 0.0), ("b", "wanted", 1.1), ("b", "acquired", 1.2, 11), ("a", "acquired", 1.3, 10),
        ("a", "lost", 1.5), ("b", "released", 2.0),
    )  # fmt: skip
    assert late.violations(honest=5.0) != []
    late.forget(1.0, range(11))
    assert late.violations(honest=5.0) == []


def test_what_was_handed_over_and_is_forgotten_stays_in_order() -> None:
    late = history(
        ("b", "wanted", 1.1), ("b", "acquired", 1.5, 10), ("b", "released", 1.6), ("a", "acquired", 1.3, 10),
        ("a", "detached", 1.4),
    )  # fmt: skip
    late.forget(1.0, range(11))
    assert late.violations() == []
