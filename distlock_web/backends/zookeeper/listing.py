"""What is held, for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kazoo.exceptions import NoNodeError

from ...core.backend import LockInfo
from .line import MIN_RECHECK, Line, View, view_of
from .nodes import CLAIMED, HELD, OFFERED, ROOT, WAITING, name_of, path_of
from .requests import get_request, look_requests
from .session import Session

#: Locks that are read in one round trip.
BATCH = 100


class Listing:
    """Reads the whole tree, in parts. What it finds whose time is over it removes, as who comes for the lock would."""

    def __init__(self, session: Session, line: Line) -> None:
        self._session = session
        self._line = line
        self._clock = session.clock

    def inspect(self, names: Sequence[str] | None) -> list[LockInfo]:
        if names is None:
            (found,) = self._session.send(lambda client: client.get_children_async(ROOT))
            names = [] if isinstance(found, NoNodeError) else [name_of(component) for component in found]
        if names and not self._clock.is_fresh(60.0):
            self._line.touch()
        lines: list[LockInfo] = []
        for first in range(0, len(names), BATCH):
            lines += self._inspect(names[first : first + BATCH])
        return lines

    def _inspect(self, names: Sequence[str]) -> list[LockInfo]:
        paths = [path_of(name) for name in names]
        answers = self._session.send(*[request for path in paths for request in look_requests(path)])
        pairs = zip(answers[::2], answers[1::2], strict=True)
        views = [
            (name, view)
            for name, path, pair in zip(names, paths, pairs, strict=True)
            if (view := view_of(path, *pair)).line
        ]
        children = [view.child_path(child) for _, view in views for child in view.line[:2]]
        found = iter(self._session.send(*map(get_request, children)) if children else ())
        lines = [self._line_of(name, view, *[next(found) for _ in view.line[:2]]) for name, view in views]
        return [line for line in lines if line is not None]

    def _line_of(self, name: str, view: View, found: Any, second: Any = None) -> LockInfo | None:
        path = view.child_path(view.line[0])
        head = self._line.head_of(path, found)
        if head is None:
            return None
        if self._clock.is_behind(head.stat):
            self._line.touch()
        remaining = self._clock.remaining(head.stat, head.record.expire)
        says = head.record
        if says.state == WAITING:
            remaining = says.expire
        elif remaining <= 0:
            if not self._clock.is_fresh():
                self._line.touch()
            if self._clock.has_ended(head.stat, says.expire):
                self._line.remove(view, head)
                return None
            remaining = MIN_RECHECK
        state = HELD if says.state in (CLAIMED, WAITING, OFFERED) else says.state
        since = (says.taken or head.stat.ctime) / 1000
        waiting = None if second is None or isinstance(second, NoNodeError) else second[1].ctime / 1000
        return LockInfo(
            name, view.fence(view.line[0]), says.holder, since, remaining, len(view.line) - 1, state, waiting
        )
