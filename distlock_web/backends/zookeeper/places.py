"""What this process has in ZooKeeper: its places in the queues, whom it watches there, and what it has to remove."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from ...core.backend import Claim
from ...core.runtime import now
from ...kit.wakeups import Wakeups
from .nodes import Child, ZooRecord, path_of

#: Tokens that were released here lately, so that a second copy of a release is told the truth.
MAX_RELEASED = 500
#: Seconds between two looks for what was left behind, and after its end until a lease of ours is removed.
TIDY_EVERY = 1.0
#: What a node says to which a write was sent, or whose making was not answered: it may say that, and it may not.
UNKNOWN = ""


class ZooLease(NamedTuple):
    """What ZooKeeper said of a node of ours when it last answered."""

    expire: float  #: seconds that it lasts after the last change
    stat: Any  #: of the last change
    since: float = 0.0  #: not later than its beginning, by our clock
    lock_version: int = -1  #: of the lock's own node, once this place has the lock

    @property
    def left(self) -> float:
        """Seconds, by our clock."""
        return self.since + self.expire - now()

    @property
    def ephemeral(self) -> bool:
        return bool(self.stat.ephemeralOwner)


@dataclass(slots=True, eq=False)
class Place:
    """One node of ours in the queue for a lock."""

    claim: Claim
    child: Child
    state: str  #: as ZooKeeper has it; UNKNOWN: it is written again, whatever comes next
    lease: ZooLease
    granted: bool = False
    taken: int = 0  #: milliseconds since the epoch, by the leader's clock, when it got the lock
    releasing: bool = False  #: a release was sent, and its answer may have been lost
    kept_until: float = 0.0  #: by our clock: so long it is taken, if such a release was done
    mark: bytes = b""  #: what the lock's own node says, which no other process changes while this place has the lock
    watching: str = ""  #: the path of the one in front, while a watch on it is out

    @property
    def left(self) -> float:
        """Seconds that it may be taken still, by our clock."""
        return max(self.lease.left, self.kept_until - now())

    @property
    def lock_path(self) -> str:
        return path_of(self.claim.name)

    @property
    def path(self) -> str:
        return f"{self.lock_path}/{self.child.node}"

    def says(self, state: str, expire: float) -> bytes:
        return ZooRecord(state, expire, self.claim.holder, self.taken).dumps()


class Places:
    """By token. Changed in single steps: garbage that is collected anywhere may release a lock."""

    def __init__(self, wakeups: Wakeups) -> None:
        self._wakeups = wakeups
        self._places: dict[str, Place] = {}
        self._released = deque[str](maxlen=MAX_RELEASED)
        #: Tokens of acquisitions of which we do not know whether they have made a node.
        self.uncertain: set[str] = set()
        self._leftovers: dict[str, float] = {}
        self._next_tidy = 0.0
        self._watchers: dict[str, tuple[set[str], Callable[[object], None]]] = {}
        # Reentrant: garbage that is collected inside may cancel a claim.
        self._changing = threading.RLock()

    def get(self, token: str) -> Place | None:
        return self._places.get(token)

    def add(self, place: Place) -> Place:
        self._places[place.claim.token] = place
        self.uncertain.discard(place.claim.token)
        return place

    def learn(self, place: Place, lease: ZooLease) -> None:
        """What an answer says of it. That of an older change comes too late: a longer lease would seem to be over."""
        with self._changing:
            if lease.stat.mzxid >= place.lease.stat.mzxid:
                place.lease = lease

    def forget(self, token: str) -> None:
        place = self._places.pop(token, None)
        if place is not None and place.watching:
            self._unwatch(place)

    def all(self) -> list[Place]:
        return list(self._places.values())

    # Those that were released -------------------------------------------------------------------------------------

    def released(self, token: str) -> None:
        self.forget(token)
        self._released.append(token)

    def was_released(self, token: str) -> bool:
        return token in self._released

    # Watches ------------------------------------------------------------------------------------------------------

    def watch(self, place: Place, path: str) -> Callable[[object], None]:
        """What kazoo calls, once, when the node at ``path`` changes, is deleted, or the connection is gone.

        It is the same for all that watch this path: kazoo keeps it until then, even if they have long given up.
        """
        with self._changing:
            self._unwatch(place)
            tokens, callback = self._watchers.setdefault(path, (set(), partial(self.changed, path)))
            tokens.add(place.claim.token)
            place.watching = path
            return callback

    def _unwatch(self, place: Place) -> None:
        with self._changing:
            if place.watching in self._watchers:
                self._watchers[place.watching][0].discard(place.claim.token)
            place.watching = ""

    def changed(self, path: str, event: object = None) -> None:
        """Each watcher of this path looks for itself, and watches anew."""
        with self._changing:
            tokens, _ = self._watchers.pop(path, (set(), None))
            for token in tokens:
                place = self._places.get(token)
                if place is not None and place.watching == path:
                    place.watching = ""
        for token in tokens:
            self._wakeups.wake(token)

    # What is left behind ------------------------------------------------------------------------------------------

    def give_up(self, place: Place) -> None:
        """Its lease is over."""
        self.forget(place.claim.token)
        self.remove_later(place.path, 0.0)

    def remove_later(self, path: str, seconds: float) -> None:
        """What ends with no session: remove it when its time is over, if it is there still."""
        self._leftovers[path] = now() + seconds

    def ended(self) -> list[str]:
        """What has ended and was never released, once in a while. In the way of others, they remove it."""
        moment = now()
        if moment < self._next_tidy:
            return []
        self._next_tidy = moment + TIDY_EVERY
        for place in self.all():
            if place.granted and place.left + TIDY_EVERY < 0:
                self.give_up(place)
        return [path for path, due in list(self._leftovers.items()) if due + TIDY_EVERY < moment]

    def removed(self, path: str) -> None:
        self._leftovers.pop(path, None)
