"""A server that hangs: one request pays for knowing it, the others are refused at once, and all is well as it is."""

from __future__ import annotations

import time

import pytest

from distlock_web import BackendUnavailable, lock
from distlock_web.backends.zookeeper.nodes import path_of
from distlock_web.core.backend import Claim
from distlock_web.core.registry import registry
from distlock_web.core.runtime import drive, new_token, now
from tests.support.callers import Beside, unrelated
from tests.support.stores.zookeeper import zookeeper_client
from tests.support.waiting import LONG, PATIENCE, SOON, eventually
from tests.support.zookeeper_server import ZooKeeperServer

pytestmark = pytest.mark.slow

THREADS = 8
#: Seconds, as ``own_zookeeper`` has them.
TIMEOUT, SESSION = 0.5, 3.0


def refusals(seconds: float) -> list[float]:
    """How long each of the acquisitions took that one thread has tried for so many seconds."""
    took: list[float] = []
    until = now() + seconds
    while now() < until:
        begun = now()
        with pytest.raises(BackendUnavailable):
            unrelated(f"order:{len(took)}")
        took.append(now() - begun)
        time.sleep(0.01)
    return took


@pytest.mark.timing
def test_a_silent_server_costs_each_thread_one_time_out_and_no_more(
    own_zookeeper: ZooKeeperServer, beside: Beside
) -> None:
    """Each request waited for it, until kazoo noticed; and once more for a new connection."""
    unrelated("order:7").release()
    own_zookeeper.pause()
    trying = [beside(refusals, SESSION) for _ in range(THREADS)]  # the connection is given up meanwhile
    took = [thread.result(PATIENCE) for thread in trying]
    assert max(first for first, *_ in took) >= TIMEOUT  # a thread that begins late finds it known already
    later = sorted(seconds for _, *rest in took for seconds in rest)
    assert sum(seconds > TIMEOUT * 0.9 for seconds in later) <= THREADS / 2, "the machine's own pauses"
    assert later[len(later) // 2] < TIMEOUT / 20


@pytest.mark.alone
@pytest.mark.timing
def test_locks_work_again_as_soon_as_the_server_does(own_zookeeper: ZooKeeperServer) -> None:
    unrelated("order:7").release()

    def outage() -> float:
        own_zookeeper.pause()
        with pytest.raises(BackendUnavailable):
            unrelated("order:7")
        own_zookeeper.resume()
        resumed = now()
        eventually(lambda: can_take("order:8"), "it answers again")
        return now() - resumed

    assert min(outage() for _ in range(3)) < TIMEOUT / 2


def can_take(key: str) -> bool:
    try:
        unrelated(key).release()
    except BackendUnavailable:
        return False
    return True


def test_a_lease_is_renewed_as_soon_as_the_server_answers(own_zookeeper: ZooKeeperServer) -> None:
    """The renewals ask all the same: they have a deadline, and nobody waits for them."""
    with lock("order:7", expire=4.0, renew=True) as lease:
        own_zookeeper.pause()
        with pytest.raises(BackendUnavailable):
            unrelated("order:8")
        eventually(lambda: lease.state == "unsure", "no answer to the renewal", SOON)
        own_zookeeper.resume()
        eventually(lambda: lease.state == "held", "renewed")


def test_a_request_that_had_little_time_says_nothing_about_the_server(own_zookeeper: ZooKeeperServer) -> None:
    """A renewal that could wait for 50 ms, and did so in vain, had everybody else refused, "for 0.5 s now"."""
    claim = Claim("disLock:order:7", new_token(), LONG)
    port = registry().store("default").backend.sync_port()
    drive(port.acquire(claim, 0))
    own_zookeeper.pause()
    with pytest.raises(BackendUnavailable):
        drive(port.extend([claim], 0.05))
    other = Claim("disLock:order:8", new_token(), LONG)
    with pytest.raises(BackendUnavailable, match=r"does not answer\.$"):  # it was asked, and waited for
        drive(port.acquire(other, 0))
    with pytest.raises(BackendUnavailable, match=r"does not answer, for \d\.\d s now"):
        drive(port.acquire(other, 0))


def test_a_lock_that_was_released_meanwhile_does_not_stay(own_zookeeper: ZooKeeperServer) -> None:
    """Nothing is sent to a server that is silent; it is removed later, not only when the lease ends."""
    lease = unrelated("order:7", expire=LONG)
    own_zookeeper.pause()
    with pytest.raises(BackendUnavailable):
        unrelated("order:8")
    begun = now()
    with pytest.raises(BackendUnavailable, match="does not answer, for"):
        lease.release()
    assert now() - begun < TIMEOUT
    own_zookeeper.resume()
    with zookeeper_client(own_zookeeper.port) as other:
        path = path_of("disLock:order:7")
        eventually(lambda: can_take("order:9") and other.get_children(path) == [], "removed", SOON)
