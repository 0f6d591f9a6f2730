"""What worker processes say that count under a lock, beside what a ``History`` knows of; and whether that may be so."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from distlock_web.core.runtime import now
from distlock_web.testing.history import Event, History, Section


class Recorder:
    """Writes one actor's events to a file descriptor, each in one write: what a killed process said is whole."""

    def __init__(self, actor: str, descriptor: int = 1) -> None:
        self.actor = actor
        self._descriptor = descriptor

    def __call__(self, kind: str, value: int | None = None, at: float | None = None) -> None:
        """``at`` where the moment is another than now: a lease is lost at its deadline, whenever that is noticed."""
        event = Event(self.actor, kind, now() if at is None else at, value)
        os.write(self._descriptor, json.dumps(asdict(event)).encode() + b"\n")


@dataclass(frozen=True, slots=True)
class Work:
    """A section, and what was done in it."""

    section: Section
    joined: Event | None  #: the place in the queue, and when that was known
    read: int | None
    wrote: int | None


class WorkerHistory(History):
    """Its events have further words: ``joined`` (the place in the queue), ``read`` and ``wrote`` (the counter)."""

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

    def violations(self, *, counter: int | None = None, fifo: bool = False, **limits: Any) -> list[str]:
        """As ever. ``counter``: what the shared counter says in the end.

        ``fifo``: those who joined the queue were served in the order of their places. Only for runs in which every
        waiter could hear: who does not listen when its turn comes loses it, not its place.
        """
        events = self.events
        work = [_work(events, section) for section in self.sections()]
        found = [*super().violations(**limits), *_lost_updates(work, counter)]
        return [*found, *_overtakings(work)] if fifo else found


def _work(events: list[Event], section: Section) -> Work:
    joined: Event | None = None
    values: dict[str, int | None] = {}
    for event in events:
        if event.actor != section.actor or event.at > section.end:
            continue
        if event.at >= section.begin:
            values[event.kind] = event.value
        elif event.kind == "joined":
            joined = joined or event
        else:  # of an earlier try
            joined = None
    return Work(section, joined, values.get("read"), values.get("wrote"))


def _lost_updates(work: list[Work], counter: int | None) -> Iterator[str]:
    writers = Counter(each.wrote for each in work if each.wrote is not None)
    for value, times in writers.items():
        if times > 1:
            yield f"lost update: {times} sections wrote {value}"
    if counter is None:
        return
    # One who was killed between its write and its word about it may have counted.
    wrote = sum(writers.values())
    silent = sum(each.section.how == "killed" and each.read is not None and each.wrote is None for each in work)
    if not wrote <= counter <= wrote + silent:
        yield f"lost update: the counter says {counter} after {wrote} sections (and {silent} that were killed in it)"


def _overtakings(work: list[Work]) -> Iterator[str]:
    for index, later in enumerate(work):
        for earlier in work[:index]:
            if later.joined is None or earlier.joined is None:
                continue
            place, first = later.joined.value or 0, earlier.joined.value or 0
            if place < first and later.joined.at < earlier.section.begin:
                actor = earlier.section.actor
                yield f"order: {actor} (place {first}) was served before {later.section.actor} ({place})"
