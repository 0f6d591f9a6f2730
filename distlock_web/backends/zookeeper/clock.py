"""What time it is in ZooKeeper, as far as this process can know.

Every change of a node is stamped by the leader, with its own clock. So the answer to each of our writes says what time
it was there not later than now, and our monotonic clock counts on from it: an estimate that is never ahead of the
leader. The times of two leaders are never compared: a transaction id begins with the epoch of the leader that made it.

The leader's clock may be set back. So a lease is over only by a time that was heard after the lease began: both are
times of before that, or both of after it. Transaction ids tell which was first.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from ...core.runtime import now

#: Seconds that an estimate serves to tell that a lease has ended. Clocks drift apart.
FRESH = 1.0
#: Milliseconds: ZooKeeper's times are whole ones, and the lease may have begun at the end of its own.
TICK = 1.0


class Stat(Protocol):
    """What is needed of a node's ``ZnodeStat``."""

    @property
    def mzxid(self) -> int: ...

    @property
    def mtime(self) -> int: ...


class _Sample(NamedTuple):
    zxid: int  #: of the write that it was found by
    ahead: float  #: milliseconds that the leader's clock is ahead of ours, at least
    measured: float  #: when that was found

    def now_ms(self) -> float:
        return now() * 1000 + self.ahead

    def left(self, node: Stat, expire: float) -> float:
        return min(expire, expire - (self.now_ms() - node.mtime - TICK) / 1000)


class ServerClock:
    def __init__(self) -> None:
        self._sample = _Sample(-1, 0.0, float("-inf"))

    def observe(self, written: Stat) -> None:
        """The answer to a write of ours has come just now. The last one counts: the clock may have been set back."""
        moment = now()
        if written.mzxid > self._sample.zxid:  # else it is late news
            self._sample = _Sample(written.mzxid, written.mtime - moment * 1000, moment)

    def now_ms(self) -> float:
        """Milliseconds since the epoch, or a little less; long ago, if nothing was written yet."""
        return self._sample.now_ms()

    def is_fresh(self, seconds: float = FRESH) -> bool:
        return now() - self._sample.measured < seconds

    def can_judge(self, node: Stat) -> bool:
        """Whether the node was written under the leader whose time we know."""
        return epoch_of(self._sample.zxid) == epoch_of(node.mzxid)

    def is_behind(self, node: Stat) -> bool:
        """Whether the node was written after we heard the time: it may have been set in between."""
        return self._sample.zxid < node.mzxid

    def has_ended(self, node: Stat, expire: float) -> bool:
        """Whether a lease that began when the node was written is over, for certain."""
        sample = self._sample  # looked at once: another thread may find a new one
        known = sample.zxid >= node.mzxid and epoch_of(sample.zxid) == epoch_of(node.mzxid)
        return known and now() - sample.measured < FRESH and sample.left(node, expire) <= 0

    def remaining(self, node: Stat, expire: float) -> float:
        """Seconds left of a lease that began when the node was written, or a little more; never more than all."""
        sample = self._sample
        return sample.left(node, expire) if epoch_of(sample.zxid) == epoch_of(node.mzxid) else expire


def epoch_of(zxid: int) -> int:
    return zxid >> 32
