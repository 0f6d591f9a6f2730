"""What must not have been, whatever went wrong: from what the parties saw, and what the store showed meanwhile."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import NamedTuple

from distlock_web.core.backend import LockInfo, at_once
from tests.support.history import Event, History


class Look(NamedTuple):
    """What the store showed of these locks, at some moment between two."""

    begun: float
    ended: float
    lines: Sequence[LockInfo]


def violations(told: Sequence[tuple[str, Event]], looks: Iterable[Look]) -> list[str]:
    """Of all locks of a run, in words. ``told``: events with the names of their locks."""
    found: list[str] = []
    for name in sorted({name for name, _ in told}):
        events = [event for of, event in told if of == name]
        history = History(event for event in events if event.kind not in ("revoked", "kept", "early", "unkept"))
        revoked = {event.value: event.at for event in events if event.kind == "revoked"}
        for fence, at in revoked.items():
            if fence is not None:
                history.forget(at, range(fence, fence + 1))
        found += [f"{name}: {each}" for each in history.violations()]
        found += [
            f"{name}: {event.actor} was told that it had lost {event.value}, and it had time"
            for event in events
            if event.kind == "early" and event.value not in revoked
        ]
        found += [f"{name}: {each}" for each in _kept(events, history)]
        found += [f"{name}: {each}" for each in _repeated(events)]
        found += [f"{name}: {each}" for each in _unseen(name, history, looks, revoked)]
    return found


def _kept(events: Sequence[Event], history: History) -> Iterator[str]:
    """Nobody enters before ``hold_at_least`` is over."""
    for kept in (event for event in events if event.kind == "kept"):
        ends = [section.end for section in history.sections() if section.actor == kept.actor]
        for section in history.sections():
            if section.actor != kept.actor and min(ends) < section.begin < kept.at:
                yield f"kept: {section.actor} entered {kept.at - section.begin:.3f} s before that"


def _repeated(events: Sequence[Event]) -> Iterator[str]:
    """No run of ``once`` is answered and repeated, and every answer is a run's.

    One whose record the store did not take, for it did not answer at the end, may be repeated.
    """
    unkept = {event.value for event in events if event.kind == "unkept"}
    runs = {event.value: event.at for event in events if event.kind == "ran"}
    answered: dict[int | None, float] = {}
    for event in events:
        if event.kind == "answered":
            answered.setdefault(event.value, event.at)
            if event.value not in runs:
                yield f"once: {event.actor} was told {event.value}, and nobody has done it"
    for fence, at in answered.items():
        for other, begun in runs.items():
            if other != fence and begun > at and fence not in unkept:
                yield f"once: run {fence} was answered, and run {other} began {begun - at:.3f} s later"


def _unseen(name: str, history: History, looks: Iterable[Look], revoked: Mapping[int | None, float]) -> Iterator[str]:
    """Whoever believes to have it is who the store says has it; and these are not more than may."""
    for look in looks:
        lines = [line for line in look.lines if line.name == name and line.state == "held"]
        if len(lines) > 1 and len(lines) > reduce(at_once, [line.limit for line in lines]):
            yield f"store: it shows {len(lines)} holders at once, of {lines[0].limit}"
        fences = {line.fence for line in lines}
        for section in history.sections():
            inside = section.begin < look.begun and look.ended < section.end
            if inside and section.fence not in fences and section.fence not in revoked:
                shown = ", ".join(sorted(map(str, fences))) or "nobody"
                yield f"store: {section.actor} has it under {section.fence}, and the store shows {shown}"
                return
