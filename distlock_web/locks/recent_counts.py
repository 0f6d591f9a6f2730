"""How often locks were taken, refused and lost lately, minute by minute: in this process, and counted always.

For the totals of the page of held locks. What all processes did together is what metrics are for.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ..core.runtime import after_fork

Counted: TypeAlias = Literal["acquired", "busy", "lost", "errors"]

MAX_MINUTES = 60


@dataclass(slots=True)
class Minute:
    """What happened in one minute. Written without a lock: in an interpreter without a GIL it may miss a few."""

    since: float  #: seconds since the epoch, a multiple of 60
    acquired: int = 0
    busy: int = 0
    lost: int = 0
    errors: int = 0


_minutes: deque[Minute] = deque(maxlen=MAX_MINUTES)
_current = Minute(0.0)
_next = 0.0  # by our clock: when the next minute begins


def count(what: Counted, moment: float) -> None:
    """Once more, at this moment of our clock."""
    current = _current if moment < _next else _begin(moment)
    setattr(current, what, getattr(current, what) + 1)


def count_acquired(moment: float) -> None:
    """The same for the one that every lock passes."""
    (_current if moment < _next else _begin(moment)).acquired += 1


def _begin(moment: float) -> Minute:
    global _current, _next
    wall = time.time()
    _current = Minute(wall // 60 * 60)
    _next = moment + 60 - wall % 60
    _minutes.append(_current)
    return _current


def recent(minutes: int = MAX_MINUTES) -> list[Minute]:
    """The last minutes, the present one at the end, those without an event, too. Of this process alone."""
    this = time.time() // 60 * 60
    found = {this - 60 * back: Minute(this - 60 * back) for back in reversed(range(min(minutes, MAX_MINUTES)))}
    for each in list(_minutes):  # two threads may have begun the same minute
        if (total := found.get(each.since)) is not None:
            total.acquired += each.acquired
            total.busy += each.busy
            total.lost += each.lost
            total.errors += each.errors
    return list(found.values())


def _forked() -> None:
    global _next
    _minutes.clear()
    _next = 0.0


after_fork(_forked)
