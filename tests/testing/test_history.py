"""The checker finds what it is there to find: each kind of violation, planted."""

from __future__ import annotations

import os
from typing import TypeAlias

from distlock_web.core.backend import SHARED
from distlock_web.testing.history import Event
from tests.support.simulation.actors import overtaken
from tests.support.worker_history import Recorder, WorkerHistory

Said: TypeAlias = tuple[str, str, float, int | None]


def history(*said: Said) -> WorkerHistory:
    return WorkerHistory(Event(actor, kind, at, value) for actor, kind, at, value in said)


#: Two sections as they should be: b joins while a holds, and begins after a has ended.
WELL: tuple[Said, ...] = (
    ("a", "wanted", 0.0, None), ("a", "acquired", 1.0, 10), ("b", "wanted", 1.1, None), ("b", "joined", 1.2, 100),
    ("a", "read", 1.3, 0), ("a", "wrote", 1.4, 1), ("a", "released", 2.0, None), ("b", "acquired", 2.1, 11),
    ("b", "read", 2.2, 1), ("b", "wrote", 2.3, 2), ("b", "released", 3.0, None),
)  # fmt: skip


def test_a_good_history_has_no_violations() -> None:
    good = history(*WELL)
    assert good.violations(counter=2, fifo=True) == []
    assert [section.how for section in good.sections()] == ["released", "released"]
    assert [round(wait, 1) for wait in good.waits()] == [1.0, 1.0]


def test_events_may_arrive_in_any_order() -> None:
    assert history(*reversed(WELL)).violations(counter=2, fifo=True) == []


def test_an_overlap_is_found() -> None:
    (found,) = history(
        ("a", "acquired", 1.0, 10),
        ("b", "acquired", 1.9, 11),
        ("a", "released", 2.0, None),
        ("b", "released", 3.0, None),
    ).violations()
    assert found.startswith("overlap: b (fence 11) began 0.100000 s before the section of a")


def test_an_overlap_with_a_section_that_never_ended_is_found() -> None:
    (found,) = history(
        ("a", "acquired", 1.0, 10), ("b", "acquired", 1.9, 11), ("b", "released", 3.0, None)
    ).violations()
    assert found.startswith("overlap")


def test_an_overlap_behind_a_short_section_is_found() -> None:
    found = history(
        ("a", "acquired", 1.0, 10), ("b", "acquired", 1.1, 11), ("b", "released", 1.2, None),
        ("c", "acquired", 1.3, 12), ("c", "released", 1.4, None), ("a", "released", 9.0, None),
    ).violations()  # fmt: skip
    assert len(found) == 2


def test_a_lease_that_was_lost_ends_at_its_deadline() -> None:
    lost: tuple[Said, ...] = ("a", "acquired", 1.0, 10), ("b", "acquired", 2.0, 11), ("b", "released", 3.0, None)
    assert history(*lost, ("a", "lost", 1.9, None)).violations() == []
    assert len(history(*lost, ("a", "lost", 2.1, None)).violations()) == 1


def test_a_fence_that_does_not_grow_is_found() -> None:
    for fence in (10, 9):
        (found,) = history(
            ("a", "acquired", 1.0, 10), ("a", "released", 2.0, None),
            ("b", "acquired", 3.0, fence), ("b", "released", 4.0, None),
        ).violations()  # fmt: skip
        assert found == f"fence: b got {fence}, after a had got 10"


def test_a_lost_update_is_found() -> None:
    sections: tuple[Said, ...] = (
        ("a", "acquired", 1.0, 10), ("a", "read", 1.1, 0), ("a", "wrote", 1.2, 1), ("a", "released", 2.0, None),
        ("b", "acquired", 3.0, 11), ("b", "read", 3.1, 0), ("b", "wrote", 3.2, 1), ("b", "released", 4.0, None),
    )  # fmt: skip
    assert history(*sections).violations() == ["lost update: 2 sections wrote 1"]
    assert "lost update: the counter says 1 after 2 sections (and 0 that were killed in it)" in history(
        *sections
    ).violations(counter=1)


def test_one_who_was_killed_may_have_counted_or_not() -> None:
    killed = history(("a", "acquired", 1.0, 10), ("a", "read", 1.1, 0), ("a", "killed", 2.0, None))
    assert killed.violations(counter=0) == killed.violations(counter=1) == []
    assert len(killed.violations(counter=2)) == 1


def test_an_overtaking_is_found() -> None:
    overtaken = history(
        ("a", "joined", 1.0, 100), ("b", "joined", 1.1, 200),
        ("b", "acquired", 2.0, 10), ("b", "released", 3.0, None),
        ("a", "acquired", 3.1, 11), ("a", "released", 4.0, None),
    )  # fmt: skip
    assert overtaken.violations() == []
    assert overtaken.violations(fifo=True) == ["order: b (place 200) was served before a (100)"]


def test_a_lock_that_nobody_has_and_somebody_waits_for_is_found() -> None:
    idle: tuple[Said, ...] = (
        ("a", "acquired", 1.0, 10), ("b", "wanted", 1.5, 1), ("a", "released", 2.0, None),
        ("b", "acquired", 5.0, 11), ("b", "released", 6.0, None),
    )  # fmt: skip
    assert history(*idle).violations(bound=3.1) == []
    assert history(*idle).violations(bound=2.9) == ["idle: b wanted the lock for 3.000 s, and nobody had it"]
    outage: tuple[Said, ...] = ("nemesis", "fault", 2.5, None), ("nemesis", "healed", 4.0, None)
    assert history(*idle, *outage).violations(bound=2.9) == []
    assert len(history(*idle, *outage).violations(bound=0.9)) == 1
    # Whoever wants two locks may have had this one while it waited for the other.
    two: tuple[Said, ...] = (
        ("a", "wanted", 0.0, 2), ("b", "wanted", 0.1, 1), ("a", "gave_up", 5.0, None), ("b", "acquired", 6.0, 10),
    )  # fmt: skip
    assert history(*two).violations(bound=1.1) == []
    assert history(*two).violations(bound=0.9) == ["idle: b wanted the lock for 1.000 s, and nobody had it"]


def test_a_refusal_without_a_cause_is_found() -> None:
    busy: tuple[Said, ...] = ("a", "wanted", 2.0, 1), ("a", "gave_up", 2.1, None)
    silent: tuple[Said, ...] = ("a", "wanted", 2.0, 1), ("a", "unreachable", 2.1, None)
    other: tuple[Said, ...] = ("b", "wanted", 0.5, 1), ("b", "ended", 1.5, None)
    fault: tuple[Said, ...] = ("nemesis", "fault", 0.5, None), ("nemesis", "healed", 1.5, None)
    assert len(history(*busy).violations(honest=1.0)) == len(history(*silent).violations(honest=1.0)) == 1
    # What b has sent may arrive once more, for so long as a fault's traces last.
    assert (
        history(*busy, *other, *fault).violations(honest=1.0) == history(*silent, *fault).violations(honest=1.0) == []
    )
    for late in (*busy, *other, *fault), (*silent, *fault):
        assert len(history(*late).violations(honest=0.4)) == 1
    assert len(history(*busy, *other).violations(honest=1.0)) == 1
    # Whoever was killed while it waited may be given the lock at any time, and nobody hears of it.
    killed: tuple[Said, ...] = ("b", "wanted", 0.5, 1), ("b", "killed", 0.6, None)
    assert history(*busy, *killed).violations(honest=1.0) == []


def test_an_order_of_the_locks_that_explains_all_answers_is_looked_for() -> None:
    waited: tuple[Said, ...] = (
        ("a", "wanted", 1.0, 1), ("b", "wanted", 1.1, 1), ("c", "wanted", 1.2, 1), ("b", "gave_up", 1.3, None),
        ("a", "acquired", 1.4, 10), ("a", "released", 2.0, None), ("a", "ended", 2.2, None), ("c", "acquired", 2.1, 11),
        ("c", "released", 3.0, None), ("c", "ended", 3.1, None),
    )  # fmt: skip
    # a had the lock before it knew, and c before a knew that it had it no more.
    assert history(*waited).violations(honest=1.0) == []
    refused: tuple[Said, ...] = ("b", "wanted", 3.15, 1), ("b", "gave_up", 3.2, None)
    assert history(*waited, *refused).violations(honest=1.0) == [
        "not linearizable: b was told at 3.200000 that the lock was busy"
    ]
    # Of a lock that was handed over with its fence the last release counts.
    handed_over: tuple[Said, ...] = (
        ("a", "wanted", 1.0, 1), ("a", "acquired", 1.1, 10), ("a", "detached", 1.2, None), ("a", "ended", 1.3, None),
        ("c", "wanted", 1.4, 1), ("c", "gave_up", 1.5, None),
        ("b", "wanted", 1.6, 1), ("b", "acquired", 1.7, 10), ("b", "released", 1.8, None), ("b", "ended", 1.9, None),
        ("c", "wanted", 2.0, 1), ("c", "gave_up", 2.1, None),
    )  # fmt: skip
    assert history(*handed_over).violations(honest=1.0) == [
        "not linearizable: c was told at 2.100000 that the lock was busy"
    ]


def shared(*said: tuple[str, str, float, int | None, int]) -> WorkerHistory:
    return WorkerHistory(Event(*each) for each in said)


def test_more_than_the_smallest_limit_is_found() -> None:
    for limits, found in (((2, 2, 2), 1), ((3, 3, 3), 0), ((3, 2, 3), 1), ((3, 1), 1), ((1, 3), 1)):
        inside = [
            (name, "acquired", 1.0 + at, 10 + at, limit)
            for at, (name, limit) in enumerate(zip("abc", limits, strict=False))
        ]
        over = [(name, "released", 9.0, None, 1) for name in "abc"]
        assert len(shared(*inside, *over).violations()) == found, limits


def test_fences_of_those_that_may_be_together_may_come_in_any_order_but_a_writers_may_not() -> None:
    readers = [
        ("a", "acquired", 1.0, 11, SHARED), ("a", "released", 2.0, None, 1),
        ("b", "acquired", 3.0, 10, SHARED), ("b", "released", 4.0, None, 1),
    ]  # fmt: skip
    assert shared(*readers).violations() == []
    for fence, limit in ((11, 1), (10, 1), (9, 1)):
        writer = [("w", "acquired", 5.0, fence, limit), ("w", "released", 6.0, None, 1)]
        assert shared(*readers, *writer).violations() == [f"fence: w got {fence}, after a had got 11"]
    late = [("w", "acquired", 0.1, 12, 1), ("w", "released", 0.2, None, 1)]
    assert len(shared(*late, *readers).violations()) == 2


def test_a_lock_with_room_for_all_who_want_it_is_found() -> None:
    idle = [
        ("a", "wanted", 0.0, 1, 2), ("a", "acquired", 0.1, 10, 2), ("b", "wanted", 1.0, 1, 2),
        ("b", "acquired", 4.0, 11, 2), ("b", "released", 5.0, None, 1), ("a", "released", 6.0, None, 1),
    ]  # fmt: skip
    assert shared(*idle).violations(bound=3.1) == []
    assert shared(*idle).violations(bound=2.9) == ["idle: b wanted the lock for 3.000 s, and only a had it"]
    # A writer in front may keep it from b.
    assert shared(*idle, ("w", "wanted", 0.5, 1, 1), ("w", "gave_up", 3.0, None, 1)).violations(bound=1.1) == []
    assert len(shared(*idle, ("w", "wanted", 0.5, 1, 1), ("w", "gave_up", 3.0, None, 1)).violations(bound=0.9)) == 1


def test_a_refusal_though_there_was_room_is_found() -> None:
    for limits, found in (((2, 2), 1), ((2, 3), 1), ((SHARED, SHARED), 1), ((1, 2), 0), ((2, 1), 0), ((1, 1), 0)):
        mine, others = limits
        said = [
            ("b", "wanted", 0.0, 1, others), ("b", "acquired", 0.1, 10, others),
            ("a", "wanted", 1.0, 1, mine), ("a", "gave_up", 1.1, None, mine),
            ("b", "released", 2.0, None, 1), ("b", "ended", 2.1, None, others),
        ]  # fmt: skip
        assert len(shared(*said).violations(honest=1.0)) == found, limits
    # A writer that waits stands in front of a later reader.
    waiting = [("w", "wanted", 0.5, 1, 1), ("w", "gave_up", 3.0, None, 1)]
    assert shared(*said, *waiting).violations(honest=1.0) == []


def test_who_enters_before_one_that_asked_earlier_is_found() -> None:
    passed = [
        ("w", "wanted", 1.0, 1, 1), ("a", "wanted", 1.5, 1, SHARED), ("a", "acquired", 1.6, 10, SHARED),
        ("a", "released", 2.0, None, 1), ("w", "acquired", 2.1, 11, 1), ("w", "released", 3.0, None, 1),
    ]  # fmt: skip
    assert shared(*passed).violations() == []
    assert list(overtaken(shared(*passed).events, 0.6)) == []
    (found,) = overtaken(shared(*passed).events, 0.4)
    assert found.startswith("order: a entered at 1.6")


def test_a_recorder_writes_what_a_history_reads() -> None:
    reading, writing = os.pipe()
    say = Recorder("a", writing)
    say("acquired", 7)
    say("lost", at=3.5)
    os.close(writing)
    with os.fdopen(reading) as lines:
        first, second = lines
    assert '"kind": "acquired"' in first
    assert '"value": 7' in first
    assert '"at": 3.5' in second


def test_what_a_store_has_forgotten_excludes_nobody_also_where_its_holder_hears_of_it_later() -> None:
    """The answer of a master that had failed over was on its way: the next holder's lock counted as taken."""
    late = history(
        ("a", "wanted", 0.0, None), ("b", "wanted", 1.1, None), ("b", "acquired", 1.2, 11),
        ("a", "acquired", 1.3, 10), ("a", "lost", 1.5, None), ("b", "released", 2.0, None),
    )  # fmt: skip
    assert late.violations(honest=5.0) != []
    late.forget(1.0, range(11))
    assert late.violations(honest=5.0) == []


def test_what_was_handed_over_and_is_forgotten_stays_in_order() -> None:
    late = history(
        ("b", "wanted", 1.1, None),
        ("b", "acquired", 1.5, 10),
        ("b", "released", 1.6, None),
        ("a", "acquired", 1.3, 10),
        ("a", "detached", 1.4, None),
    )
    late.forget(1.0, range(11))
    assert late.violations() == []


def test_a_request_that_comes_after_its_cancel_may_have_had_the_lock_for_one_lease() -> None:
    """A caller was interrupted while it asked. Who asks next may be told that the lock is busy, but not for ever."""
    events: tuple[Said, ...] = (
        ("a", "wanted", 0.0, None), ("a", "interrupted", 0.1, None), ("b", "wanted", 0.2, None),
        ("b", "gave_up", 0.3, None),
    )  # fmt: skip
    assert history(*events).violations(honest=1.0) == []
    assert history(*events).violations(honest=0.05) != []


def test_a_refusal_may_have_met_somebody_who_has_gone_before_it_is_heard() -> None:
    """Of one who wanted two locks, had this one for a moment, and did not get the other."""
    assert history(
        ("a", "wanted", 0.1, 2), ("b", "wanted", 0.2, None), ("a", "ended", 0.3, None), ("b", "gave_up", 0.4, None)
    ).violations(honest=1.0) == []  # fmt: skip


def test_a_request_is_late_by_as_long_as_its_process_stands_still() -> None:
    assert history(
        ("a", "wanted", 0.0, None), ("a", "interrupted", 0.1, None), ("process0 stopped 1", "fault", 0.2, None),
        ("process0 stopped 1", "healed", 9.0, None), ("b", "wanted", 9.1, None), ("b", "gave_up", 9.2, None),
    ).violations(honest=1.0) == []  # fmt: skip
