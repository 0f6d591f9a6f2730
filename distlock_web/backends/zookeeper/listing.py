"""What is held, for people."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from kazoo.exceptions import NoNodeError

from ...core.backend import LockInfo
from ...core.errors import ConfigurationError
from .lock_queue import MIN_RECHECK, LockQueue, View, view_of
from .nodes import CLAIMED, HELD, OFFERED, ROOT, WAITING, name_of, path_of
from .requests import get_request, look_requests
from .session import Session

logger = logging.getLogger("distlock_web")
T = TypeVar("T")

#: Locks that are read in one round trip.
BATCH = 100


def inspect(queue: LockQueue, session: Session, names: Sequence[str] | None) -> list[LockInfo]:
    """Reads the whole tree, in parts. What it finds whose time is over it removes, as who comes for the lock would.

    One node that is a stranger's, or a newer version's, does not hide the locks that are asked for.
    """
    asked, refused = names is not None, _Refused()
    if names is None:
        (found,) = session.send(lambda client: client.get_children_async(ROOT))
        components = [] if isinstance(found, NoNodeError) else found
        names = [name for component in components if (name := refused.read(name_of, component)) is not None]
    if names and not queue.clock.is_fresh(60.0):
        queue.touch()
    lines: list[LockInfo] = []
    for first in range(0, len(names), BATCH):
        lines += _some(queue, session, names[first : first + BATCH], refused)
    if asked and refused.errors and not lines:
        raise refused.errors.pop()
    for error in refused.errors:
        logger.warning("A node is left out of the list of locks: %s", error)
    return lines


def _some(queue: LockQueue, session: Session, names: Sequence[str], refused: _Refused) -> list[LockInfo]:
    paths = [path_of(name) for name in names]
    answers = session.send(*[request for path in paths for request in look_requests(path)])
    pairs = zip(answers[::2], answers[1::2], strict=True)
    views = [
        (name, view)
        for name, path, pair in zip(names, paths, pairs, strict=True)
        if (view := refused.read(view_of, path, *pair)) is not None and view.queue
    ]
    children = [view.child_path(child) for _, view in views for child in view.queue[:2]]
    found = iter(session.send(*map(get_request, children)) if children else ())
    lines = [refused.read(_info_of, queue, name, view, *[next(found) for _ in view.queue[:2]]) for name, view in views]
    return [line for line in lines if line is not None]


class _Refused:
    """Why nodes that were read are not ours."""

    def __init__(self) -> None:
        self.errors: list[ConfigurationError] = []

    def read(self, read: Callable[..., T], *given: Any) -> T | None:
        """What a node says; None if it is none of ours."""
        try:
            return read(*given)
        except ConfigurationError as error:
            self.errors.append(error)
            return None


def _info_of(queue: LockQueue, name: str, view: View, found: Any, second: Any = None) -> LockInfo | None:
    head = queue.head_of(view.child_path(view.queue[0]), found)
    if head is None:
        return None
    says, remaining = head.record, head.record.expire
    if says.state != WAITING and queue.clock.can_judge(head.stat):
        head = queue.judge(view, head)
        if head is None:
            return None
        remaining = max(MIN_RECHECK, head.remaining)
    state = HELD if says.state in (CLAIMED, WAITING, OFFERED) else says.state
    since = (says.taken or head.stat.ctime) / 1000
    waiting = None if second is None or isinstance(second, NoNodeError) else second[1].ctime / 1000
    return LockInfo(name, view.fence(view.queue[0]), says.holder, since, remaining, len(view.queue) - 1, state, waiting)
