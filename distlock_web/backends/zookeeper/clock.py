"""What time it is in ZooKeeper, as far as this process can know.

Every change of a node is stamped by the leader, with its own clock. So the answer to each of our writes says what time
it was there not later than now, and our monotonic clock counts on from it: an estimate that is never ahead of the
leader. The times of two leaders are never compared: a transaction id begins with the epoch of the leader that made it.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from ...core.runtime import now

#: Seconds that an estimate serves to tell that a lease has ended. Clocks drift apart.
FRESH = 1.0
#: Seconds after which a worse estimate is preferred to it: the better one has drifted.
STALE = 10.0
#: Milliseconds: ZooKeeper's times are whole ones, and the lease may have begun at the end of its own.
TICK = 1.0


class Stat(Protocol):
    """What is needed of a node's ``ZnodeStat``."""

    @property
    def mzxid(self) -> int: ...

    @property
    def mtime(self) -> int: ...


class _Sample(NamedTuple):
    epoch: int
    ahead: float  #: milliseconds that the leader's clock is ahead of ours, at least
    measured: float  #: when that was found
    confirmed: float  #: when the last write said nothing else


class ServerClock:
    def __init__(self) -> None:
        self._sample = _Sample(-1, 0.0, float("-inf"), float("-inf"))

    def observe(self, written: Stat, sent: float) -> None:
        """The answer to a write of ours has come just now; it was ``sent`` not later than then, by our clock."""
        known, moment, epoch = self._sample, now(), epoch_of(written)
        if epoch < known.epoch:
            return  # late news, from before the change of leaders
        ahead, most = written.mtime - moment * 1000, written.mtime + TICK - sent * 1000
        if epoch == known.epoch and moment - known.measured < STALE and ahead <= known.ahead <= most:
            self._sample = known._replace(confirmed=moment)  # the answer was slower, no more: the clock was not set
        else:
            self._sample = _Sample(epoch, ahead, moment, moment)

    def now_ms(self) -> float:
        """Milliseconds since the epoch, or a little less; long ago, if nothing was written yet."""
        return now() * 1000 + self._sample.ahead

    def is_fresh(self, seconds: float = FRESH) -> bool:
        return now() - self._sample.confirmed < seconds

    def can_judge(self, node: Stat) -> bool:
        """Whether the node was written under the leader whose time we know."""
        return self._sample.epoch == epoch_of(node)

    def is_behind(self, node: Stat) -> bool:
        """Whether a later leader than the one whose time we know has written it."""
        return self._sample.epoch < epoch_of(node)

    def remaining(self, node: Stat, expire: float) -> float:
        """Seconds left of a lease that began when the node was written, or a little more; never more than all."""
        if not self.can_judge(node):
            return expire
        return min(expire, expire - (self.now_ms() - node.mtime - TICK) / 1000)


def epoch_of(node: Stat) -> int:
    return node.mzxid >> 32
