"""What happened to one lock, as reported by many callers, and whether it may have happened.

The ``History`` of all of them is checked as a whole. The clock is the engine's: monotonic, and one for all processes of
a machine. A caller says ``acquired`` after the lock was given and ``released`` before it gives it back, so a recorded
section lies inside the real one, and no tolerance is needed.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import reduce
from itertools import count
from typing import Any, Literal, TypeAlias

from distlock_web.core.backend import at_once
from distlock_web.core.runtime import now

from .linearizability import Operation, impossible, unexplained

Kind: TypeAlias = Literal[
    "wanted", "acquired", "released", "lost", "detached", "gave_up", "killed", "unreachable", "interrupted", "ended",
    "fault", "healed", "joined", "read", "wrote",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that one actor did or saw."""

    actor: str  #: a process, a thread or a task: whoever has at most one section at a time
    kind: str  #: a ``Kind``, or a word that means nothing here
    at: float
    #: wanted: how many locks together; acquired: the fence; joined: the place in the queue; read and wrote: a counter
    value: int | None = None
    limit: int = 1  #: wanted and acquired: how many may hold the lock, the actor among them


@dataclass(frozen=True, slots=True)
class Section:
    """What one actor did under the lock, from ``acquired`` to its end."""

    actor: str
    fence: int
    begin: float
    end: float
    how: str  #: ``released``, ``lost``, ``detached`` or ``killed``; ``open``: it has not ended
    limit: int = 1  #: how many may hold the lock, this one among them


class History:
    """The events of all actors. ``violations()`` is empty if the lock did what a lock has to."""

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self._events = list(events)
        self._forgotten: list[tuple[float, range]] = []
        self._lock = threading.Lock()

    def add(self, event: Event) -> None:
        with self._lock:
            self._events.append(event)

    @property
    def events(self) -> list[Event]:
        """All of them, in the order in which they happened."""
        with self._lock:
            return sorted(self._events, key=lambda event: event.at)

    def forget(self, moment: float, fences: range) -> None:
        """What the store had given under these fences excludes nobody any more: it has lost its data, or had to."""
        self._forgotten.append((moment, fences))

    def is_forgotten(self, fence: int | None) -> bool:
        return any(fence in fences for _, fences in self._forgotten)

    def is_calm(self, begin: float, end: float) -> bool:
        """Whether nothing was at fault from here to there."""
        faults = ("fault", "healed", "killed")
        return not self.at_fault(begin) and not any(e.kind in faults and begin <= e.at <= end for e in self.events)

    def at_fault(self, moment: float) -> bool:
        """Whether something was at fault then."""
        faults: set[str] = set()
        for event in self.events:
            if event.at > moment:
                break
            if event.kind == "fault":
                faults.add(event.actor)
            elif event.kind == "healed":
                faults.discard(event.actor)
        return bool(faults)

    def sections(self) -> list[Section]:
        """In the order in which they began."""
        by_actor: dict[str, list[Event]] = {}
        for event in self.events:
            by_actor.setdefault(event.actor, []).append(event)
        found = [section for events in by_actor.values() for section in _sections(events)]
        found.sort(key=lambda section: section.begin)  # what was handed over stays in order, whatever is forgotten
        for moment, fences in self._forgotten:
            found = [
                replace(section, begin=min(section.begin, moment), end=moment)  # the answer may have come after that
                if section.fence in fences and section.end > moment
                else section
                for section in found
            ]
        return sorted(found, key=lambda section: section.begin)

    def count(self, kind: str) -> int:
        return sum(event.kind == kind for event in self.events)

    def waits(self) -> list[float]:
        """Seconds from each ``wanted`` to what came of it."""
        since: dict[str, float] = {}
        waits = []
        for event in self.events:
            if event.kind == "wanted":
                since[event.actor] = event.at
            elif event.kind in ("acquired", "gave_up") and event.actor in since:
                waits.append(event.at - since.pop(event.actor))
        return waits

    def violations(
        self,
        *,
        bound: float | None = None,
        honest: float | None = None,
        counter: int | None = None,
        fifo: bool = False,
    ) -> list[str]:
        """What must not have happened, in words.

        ``bound``: seconds for which, at most, the lock had room for all who wanted it, and nothing was at fault.
        ``honest``: each answer was true at some moment of its call; what a fault concerns may last so much longer.
        ``counter``: what the shared counter says in the end.
        ``fifo``: those who joined the queue were served in the order of their places. Only for runs in which every
        waiter could hear: who does not listen when its turn comes loses it, not its place.
        """
        events, sections = self.events, self.sections()
        found = [*_overlaps(sections), *_fences(sections)]
        if counter is not None:
            found += _lost_updates(events, counter)
        if fifo:
            found += _overtakings(events)
        if bound is not None:
            found += _idle(events, bound)
        if honest is not None:
            found += _unreachable(events, honest)
            operations = list(_operations(events, sections, honest))
            wrong = (unexplained if any(each.limit > 1 for each in operations) else impossible)(operations)
            found += [] if wrong is None else [f"not linearizable: {wrong}"]
        return found


def _sections(events: list[Event]) -> Iterator[Section]:
    """One actor's sections. A section that never ended is open: it excludes all that came later."""
    begin: Event | None = None
    for event in events:
        if event.kind == "acquired":
            begin = event
        elif begin is not None and event.kind in ("released", "lost", "detached", "killed"):
            yield Section(begin.actor, begin.value or 0, begin.at, event.at, event.kind, begin.limit)
            begin = None
    if begin is not None:
        yield Section(begin.actor, begin.value or 0, begin.at, float("inf"), "open", begin.limit)


def _overlaps(sections: list[Section]) -> Iterator[str]:
    """More are inside than their limits let; of a plain lock, more than one."""
    inside: list[Section] = []
    for section in sections:
        inside = [each for each in inside if each.end > section.begin]
        if inside and len(inside) >= reduce(at_once, [each.limit for each in (section, *inside)]):
            last = max(inside, key=lambda each: each.end)
            yield (
                f"overlap: {section.actor} (fence {section.fence}) began {last.end - section.begin:.6f} s before the "
                f"section of {last.actor} (fence {last.fence}) had ended ({last.how})"
            )
        inside.append(section)


def _fences(sections: list[Section]) -> Iterator[str]:
    """Each exceeds those of all before whom its holder could not be beside: of who is alone, all."""
    highest: Section | None = None
    alone: Section | None = None
    for later in sections:
        earlier = highest if later.limit == 1 else alone
        if earlier is not None and later.fence <= earlier.fence:
            handed_over = later.fence == earlier.fence and earlier.how == "detached"
            if not handed_over:
                yield f"fence: {later.actor} got {later.fence}, after {earlier.actor} had got {earlier.fence}"
        if highest is None or later.fence >= highest.fence:
            highest = later
        if later.limit == 1:
            alone = later


def _lost_updates(events: list[Event], counter: int) -> Iterator[str]:
    wrote, silent, reading = 0, 0, set[str]()
    for event in events:
        if event.kind == "read":
            reading.add(event.actor)
        elif event.kind in ("wrote", "lost", "killed") and event.actor in reading:
            reading.remove(event.actor)
            wrote += event.kind == "wrote"
            silent += event.kind == "killed"  # between its write and its word about it, perhaps: it may have counted
    if not wrote <= counter <= wrote + silent:
        yield f"lost update: the counter says {counter} after {wrote} sections (and {silent} that were killed in it)"


def _overtakings(events: list[Event]) -> Iterator[str]:
    places: dict[str, int] = {}  # of those that wait
    for event in events:
        if event.kind == "joined":
            places.setdefault(event.actor, event.value or 0)
        elif event.kind == "acquired" and event.actor in places:
            mine = places.pop(event.actor)
            for actor, place in places.items():
                if place < mine:
                    yield f"order: {event.actor} (place {mine}) was served before {actor} ({place})"
        elif event.kind in ("wanted", *ENDS):
            places.pop(event.actor, None)


#: What ends the wish for a lock.
ENDS = ("acquired", "gave_up", "unreachable", "interrupted", "ended", "killed")


def _idle(events: list[Event], bound: float) -> Iterator[str]:
    """A lock that somebody wants, that has room for all who do, and that nothing keeps from being given."""
    wanting: dict[str, Event] = {}
    holding: dict[str, int] = {}
    faults: set[str] = set()
    idle_since = 0.0
    for event in events:
        limits = [each.limit for each in wanting.values()]
        idles = wanting and not faults and len(holding) < reduce(at_once, [*limits, *holding.values()])
        if idles:
            first = min(wanting.values(), key=lambda each: each.at)
            idle = event.at - max(idle_since, first.at)
            if idle > bound:
                had = f"only {', '.join(holding)}" if holding else "nobody"
                yield f"idle: {first.actor} wanted the lock for {idle:.3f} s, and {had} had it"
                idle_since = event.at
        if event.kind == "wanted" and (event.value or 1) == 1:
            wanting[event.actor] = event
        elif event.kind == "wanted":  # with others, so that it may have this one and wait for another
            holding[event.actor] = event.limit
        elif event.kind in ENDS:
            wanting.pop(event.actor, None)
        if event.kind == "acquired":
            holding[event.actor] = event.limit
        elif event.kind in ("released", "lost", "detached", *ENDS):
            holding.pop(event.actor, None)
        if event.kind == "fault":
            faults.add(event.actor)
        elif event.kind == "healed":
            faults.discard(event.actor)
        if not idles or event.kind in ("acquired", "fault"):
            idle_since = event.at


def _unreachable(events: list[Event], grace: float) -> Iterator[str]:
    """Somebody was told that the store does not answer, and nothing was at fault."""
    since: dict[str, float] = {}
    faults: set[str] = set()
    healed = float("-inf")
    for event in events:
        if event.kind == "fault":
            faults.add(event.actor)
        elif event.kind == "healed":
            faults.discard(event.actor)
            healed = event.at
        elif event.kind == "wanted":
            since[event.actor] = event.at
        elif event.kind == "unreachable" and not faults and healed < since[event.actor] - grace:
            yield f"dishonest: {event.actor} was told at {event.at:.6f} that the store does not answer"


@dataclass(slots=True)
class _Round:
    """From ``wanted`` to the answer of the release."""

    begin: float
    limit: int
    faulty: bool  #: a fault concerned it: what was sent may arrive once more, for so long as a lease lasts
    fence: int | None = None


def _stops(events: list[Event]) -> Iterator[tuple[float, float]]:
    """When a process or a machine stood still, which its ``fault`` says."""
    since: dict[str, float] = {}
    for event in events:
        if event.kind == "fault" and " stopped" in event.actor:
            since[event.actor] = event.at
        elif event.kind == "healed" and event.actor in since:
            yield since.pop(event.actor), event.at


def _operations(events: list[Event], sections: list[Section], grace: float) -> Iterator[Operation]:
    """The calls of this lock. Its fence is the number of an acquisition, and stays when the lock is handed over."""
    ghosts, stops = count(-1, -1), list(_stops(events))
    faults: set[str] = set()
    rounds: dict[str, _Round] = {}
    taken: set[int] = set()
    heard: dict[tuple[str, int], float] = {}
    for event in events:
        if event.kind == "fault":
            faults.add(event.actor)
            for one in rounds.values():
                one.faulty = True
        elif event.kind == "healed":
            faults.discard(event.actor)
        elif event.kind == "wanted":
            rounds[event.actor] = _Round(event.at, event.limit, bool(faults))
        elif event.kind == "acquired" and event.value is not None:
            one = rounds[event.actor]
            one.fence = event.value
            if event.value not in taken:
                taken.add(event.value)
                yield Operation(
                    "take", event.value, one.begin, event.at, f"{event.actor} was given the lock", one.limit
                )
        elif event.kind in ENDS and event.actor in rounds:
            one = rounds.pop(event.actor)
            one.faulty |= event.kind in ("killed", "interrupted")  # a request may come after its cancel: for one lease
            last = event.at + grace if one.faulty else event.at
            for begin, end in stops if one.faulty else ():  # what is on its way is late by as much
                last = max(last, end + grace) if begin <= last else last
            if event.kind == "killed" and one.fence is None:  # its place in a queue may be served at any time
                last = float("inf")
            ghost = next(ghosts)
            if event.kind == "gave_up":
                text = f"{event.actor} was told at {event.at:.6f} that the lock was busy"
                yield Operation("busy", ghost, one.begin, event.at, text, one.limit)
            if one.fence is None or one.faulty:
                yield Operation("ghost", ghost, one.begin, last, limit=one.limit)
            if one.fence is not None:
                heard[event.actor, one.fence] = last
    for one in rounds.values():
        yield Operation("ghost", next(ghosts), one.begin, float("inf"), limit=one.limit)
    for last_of in {each.fence: each for each in sorted(sections, key=lambda each: each.end)}.values():
        until = last_of.end + grace
        if last_of.how == "released":
            until = heard.get((last_of.actor, last_of.fence), until)
        text = f"the lock of {last_of.actor} was not free again"
        yield Operation("free", last_of.fence, last_of.end, until, text, last_of.limit)


class Recorder:
    """Writes one actor's events to a file descriptor, each in one write: what a killed process said is whole."""

    def __init__(self, actor: str, descriptor: int = 1, limit: int = 1) -> None:
        self.actor = actor
        self._limit = limit
        self._descriptor = descriptor

    def __call__(self, kind: str, value: int | None = None, at: float | None = None) -> None:
        """``at`` where the moment is another than now: a lease is lost at its deadline, whenever that is noticed."""
        event = Event(self.actor, kind, now() if at is None else at, value, self._limit)
        os.write(self._descriptor, json.dumps(asdict(event)).encode() + b"\n")


class Histories(dict[str, History]):
    """Of several locks, by their names; on one ``clock``."""

    def __init__(self, names: Iterable[str], clock: Callable[[], float]) -> None:
        super().__init__((name, History()) for name in names)
        self.clock = clock
        self._faults = 0

    def fault(self, what: str = "fault") -> Callable[[], None]:
        """From now on something is at fault that may concern all of them, until what this returns is called."""
        self._faults += 1
        actor = f"{what} {self._faults}"
        self.say(actor, "fault")
        return lambda: self.say(actor, "healed")

    def say(self, actor: str, kind: Kind) -> None:
        """An event of all of them."""
        event = Event(actor, kind, self.clock())
        for history in self.values():
            history.add(event)

    def violations(self, **limits: Any) -> list[str]:
        """As :meth:`History.violations`, with the lock's name in front."""
        return [f"{name}: {found}" for name, history in self.items() for found in history.violations(**limits)]
