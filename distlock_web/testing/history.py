"""What happened to one lock, as reported by many processes, and whether it may have happened.

Each process writes events through a ``Recorder``; the ``History`` of all of them is checked as a whole. The clock is
the engine's: monotonic, and one for all processes of a machine. A worker says ``acquired`` after the lock was given
and ``released`` before it gives it back, so a recorded section lies inside the real one, and no tolerance is needed.
"""

from __future__ import annotations

import json
import os
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Literal, TypeAlias

from ..core.runtime import now

Kind: TypeAlias = Literal[
    "ready", "wanted", "joined", "acquired", "read", "wrote", "released", "lost", "gave_up", "killed"
]
How: TypeAlias = Literal["released", "lost", "killed", "open"]


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that one actor did or saw."""

    actor: str  #: a process, a thread or a task: whoever has at most one section at a time
    kind: Kind
    at: float
    value: int | None = None  #: joined: the place; acquired: the fence; read and wrote: the counter


class Recorder:
    """Writes one actor's events to a file descriptor, each in one write: what a killed process said is whole."""

    def __init__(self, actor: str, descriptor: int = 1) -> None:
        self.actor = actor
        self._descriptor = descriptor

    def __call__(self, kind: Kind, value: int | None = None, at: float | None = None) -> None:
        """``at`` where the moment is another than now: a lease is lost at its deadline, whenever that is noticed."""
        event = Event(self.actor, kind, now() if at is None else at, value)
        os.write(self._descriptor, json.dumps(asdict(event)).encode() + b"\n")


@dataclass(frozen=True, slots=True)
class Section:
    """What one actor did under the lock, from ``acquired`` to its end."""

    actor: str
    fence: int
    begin: float
    end: float
    how: How
    joined: tuple[int, float] | None = None  #: place in the queue, and when that was known
    read: int | None = None
    wrote: int | None = None


class History:
    """The events of all actors. ``violations()`` is empty if the lock did what a lock has to."""

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self._events = list(events)
        self._lock = threading.Lock()

    def add(self, event: Event) -> None:
        with self._lock:
            self._events.append(event)

    @property
    def events(self) -> list[Event]:
        """All of them, in the order in which they happened."""
        with self._lock:
            return sorted(self._events, key=lambda event: event.at)

    def count(self, kind: Kind) -> int:
        return sum(event.kind == kind for event in self.events)

    def sections(self) -> list[Section]:
        """In the order in which they began."""
        by_actor: dict[str, list[Event]] = {}
        for event in self.events:
            by_actor.setdefault(event.actor, []).append(event)
        found = [section for events in by_actor.values() for section in _sections(events)]
        return sorted(found, key=lambda section: section.begin)

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

    def violations(self, *, counter: int | None = None, fifo: bool = False) -> list[str]:
        """What must not have happened, in words. ``counter``: what the shared counter says in the end.

        ``fifo``: those who joined the queue were served in the order of their places. Only for runs in which every
        waiter could hear: who does not listen when its turn comes loses it, not its place.
        """
        sections = self.sections()
        found = [*_overlaps(sections), *_fences(sections), *_lost_updates(sections, counter)]
        return [*found, *_overtakings(sections)] if fifo else found


def _sections(events: list[Event]) -> Iterator[Section]:
    """One actor's sections. A section that never ended is open: it excludes all that came later."""
    begin: Event | None = None
    joined: tuple[int, float] | None = None
    values: dict[str, int | None] = {}
    for event in events:
        if event.kind == "joined" and joined is None and event.value is not None:
            joined = event.value, event.at
        elif event.kind in ("wanted", "gave_up"):
            joined = None
        elif event.kind in ("read", "wrote"):
            values[event.kind] = event.value
        elif event.kind == "acquired":
            begin, values = event, {}
        elif begin is not None and (event.kind == "released" or event.kind == "lost" or event.kind == "killed"):
            yield _section(begin, event.at, event.kind, joined, values)
            begin = joined = None
    if begin is not None:
        yield _section(begin, float("inf"), "open", joined, values)


def _section(
    begin: Event, end: float, how: How, joined: tuple[int, float] | None, values: dict[str, int | None]
) -> Section:
    return Section(begin.actor, begin.value or 0, begin.at, end, how, joined, values.get("read"), values.get("wrote"))


def _overlaps(sections: list[Section]) -> Iterator[str]:
    last: Section | None = None
    for section in sections:
        if last is not None and section.begin < last.end:
            yield (
                f"overlap: {section.actor} (fence {section.fence}) began {last.end - section.begin:.6f} s before the "
                f"section of {last.actor} (fence {last.fence}) had ended ({last.how})"
            )
        if last is None or section.end > last.end:
            last = section


def _fences(sections: list[Section]) -> Iterator[str]:
    for earlier, later in pairwise(sections):
        if later.fence <= earlier.fence:
            yield f"fence: {later.actor} got {later.fence}, after {earlier.actor} had got {earlier.fence}"


def _lost_updates(sections: list[Section], counter: int | None) -> Iterator[str]:
    writers = Counter(section.wrote for section in sections if section.wrote is not None)
    for value, times in writers.items():
        if times > 1:
            yield f"lost update: {times} sections wrote {value}"
    if counter is None:
        return
    # One who was killed between its write and its word about it may have counted.
    wrote = sum(writers.values())
    silent = sum(section.how == "killed" and section.read is not None and section.wrote is None for section in sections)
    if not wrote <= counter <= wrote + silent:
        yield f"lost update: the counter says {counter} after {wrote} sections (and {silent} that were killed in it)"


def _overtakings(sections: list[Section]) -> Iterator[str]:
    for index, later in enumerate(sections):
        for earlier in sections[:index]:
            if later.joined is None or earlier.joined is None:
                continue
            place, known = later.joined
            if place < earlier.joined[0] and known < earlier.begin:
                yield f"order: {earlier.actor} (place {earlier.joined[0]}) was served before {later.actor} ({place})"
