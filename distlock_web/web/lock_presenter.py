"""A held lock as the pages' templates show it: in words and numbers, printable, not escaped."""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple
from urllib.parse import urlencode

from ..core.backend import SHARED, WaiterInfo
from ..core.request_id import HolderInfo
from ..ops.held_locks import LockRow, readable_holder
from ..ops.readable import printable, span
from .texts import _, plural

#: Characters at the end of a lock's name that are always seen.
TAIL_CHARS = 8


class LockKey(NamedTuple):
    """One acquisition, or what it has left, as a form sends it back.

    With ``done``, for a record has the fence of its run: an operator who takes a lock from its holder has not asked to
    forget what that holder did since.
    """

    alias: str
    name: str  #: as the store has it
    fence: int
    done: bool = False

    def dumps(self) -> str:
        return json.dumps([self.alias, self.name, str(self.fence), self.done])

    @classmethod
    def loads(cls, text: str) -> LockKey:
        """Raises ``ValueError`` if it is none."""
        try:
            alias, name, fence, done = json.loads(text)
            str(name).encode()  # half of a character is no name, and no store takes it
            return cls(str(alias), str(name), int(fence), bool(done))
        except (TypeError, OverflowError, RecursionError) as error:
            raise ValueError("no key of a lock") from error


@dataclass(frozen=True, slots=True)
class Links:
    """Where the pages are: addresses without a query."""

    list: str
    lock: str
    release: str


class HolderPresenter:
    """Who holds a lock, or waits for one."""

    def __init__(self, holder: HolderInfo) -> None:
        self.path, self.function, self.request_id = holder.path, holder.function, holder.request_id
        self.host, self.pid = holder.host, str(holder.pid) if holder.host else ""
        self.request, self.user = holder.request, holder.user
        self.command, self.worker = holder.command, holder.worker

    @property
    def who(self) -> str:
        """The one name that says most: the path, else the function, else the program."""
        return self.path or self.function or self.command or "–"

    @property
    def also(self) -> str:
        """What stands beside ``who``: the function, where that is the path; and the user."""
        return " · ".join(text for text in (self.function if self.path else "", self.user) if text)

    @property
    def short_host(self) -> str:
        """The host without its domain, which is the same for all of them; an IP address as it is."""
        return self.host if self.host.replace(".", "").isdigit() else self.host.partition(".")[0]

    @property
    def process(self) -> str:
        return " ".join(text for text in (self.host, self.pid, self.worker, self.command) if text)


class LockPresenter(HolderPresenter):
    """One held lock."""

    def __init__(self, row: LockRow, links: Links, prefix: str = "", back: str = "") -> None:
        """``prefix``: the store's, which its names begin with. ``back``: the query of the list that shows it."""
        super().__init__(row.holder)
        lock, now = row.lock, time.time()
        self.store = row.alias
        self.name = printable(lock.name)
        self.prefix = printable(prefix) if prefix and lock.name.startswith(prefix) else ""
        short_name = self.name[len(self.prefix) :]
        #: A name without room is cut between the two: which row it is stands at its end.
        self.stem, self.tail = short_name[:-TAIL_CHARS], short_name[-TAIL_CHARS:]
        self.fence = "" if lock.fence is None else str(lock.fence)
        self.key = "" if lock.fence is None else LockKey(row.alias, lock.name, lock.fence, row.done).dumps()
        self.held, self.done = lock.state == "held" and not row.sharing, row.done
        self.state = ", ".join(filter(None, (_state(lock.state), _sharing(lock.holders, lock.limit))))
        self.since = moment(lock.since) if lock.since else ""
        self.age = span(now - lock.since) if lock.since else "–"
        self.begun = _("%(time)s ago", time=self.age)
        self.left = span(lock.remaining)
        self.renewed = row.holder.renews and self.held
        self.until = moment(now + lock.remaining)
        whole = now - lock.since + lock.remaining if row.done else row.holder.expire  # what is done has no lease
        self.percent = str(_percent(lock.remaining, whole))
        self.urgency = "low" if int(self.percent) <= 20 else "middle" if int(self.percent) <= 50 else "high"
        self.waiters = str(lock.waiters) if lock.waiters else ""
        self.longest_wait = span(now - lock.waiting_since) if lock.waiting_since else ""
        query = {"store": row.alias, "name": lock.name}
        self.lock_url = f"{links.lock}?{urlencode(query, errors='replace')}"
        self.release_url = f"{links.release}?{urlencode({'lock': self.key, 'back': back})}" if self.key else ""
        self.request_url = f"{links.list}?{urlencode({'q': self.request})}" if self.request else ""

    @property
    def label(self) -> str:
        """For screen readers: the same button stands beside every lock, and has to say which one it means."""
        return f"{self.name}, {self.who}"


class WaiterPresenter(HolderPresenter):
    """One place in a queue."""

    def __init__(self, place: int, waiter: WaiterInfo) -> None:
        super().__init__(readable_holder(waiter.holder))
        self.place = str(place)
        self.since = moment(waiter.since)
        self.waits = span(time.time() - waiter.since)


def _percent(remaining: float, expire: float) -> int:
    """What is left of the lease: 0 to 100."""
    whole = expire if 0 < expire < math.inf else remaining
    return min(100, max(0, round(100 * remaining / whole))) if whole > 0 else 0


def _state(state: str) -> str:
    """A lock's state in words."""
    match state:
        case "held":
            return _("held")
        case "cooldown":
            return _("cooldown")
        case "transit":
            return _("in transit")
        case "done":
            return _("done")
    return state


def _sharing(holders: int, limit: int) -> str:
    """As ``LockRow.sharing``, for people."""
    if limit == SHARED:
        return plural("%(number)s reader", "%(number)s readers", holders)
    return _("%(number)s of %(limit)s", number=holders, limit=limit) if limit > 1 else ""


def moment(seconds: float) -> str:
    """As ISO 8601 in UTC. Empty for what no calendar has."""
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):  # another program has written it
        return ""
