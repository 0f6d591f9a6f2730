"""A failover behind one address, with open connections: never two holders, and locks again within a try or two."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from distlock_web import BackendUnavailable, configure, lock
from distlock_web.core.registry import registry
from tests.support.callers import Beside, unrelated
from tests.support.failover import Failover
from tests.support.lab import Lab
from tests.support.modes import modes
from tests.support.redis_lock import KEY, contend, queued
from tests.support.waiting import LONG, SOON

#: Both keep their leases beyond their sections, also on a machine that is busy.
EXPIRE, SECTION = 6.0, 1.0


@pytest.mark.slow
@pytest.mark.parametrize("ends", ["by expiry", "by a release"])
@modes
def test_two_waiters_on_either_side_of_a_failover_never_hold_together(
    failover: Failover, tmp_path: Path, mode: str, ends: str
) -> None:
    """Who stayed with the demoted server read a grant that was published there, and had been made to another."""
    configure({"default": {"LOCATION": failover.url}})
    with closing(Lab(failover.url, tmp_path)) as lab:
        first, second = lab.ready(*[{"mode": mode, "expire": EXPIRE, "section": SECTION}] * 2)
        holder = unrelated(KEY, expire=3 if ends == "by expiry" else LONG)
        first.go()
        first.saw("joined")
        failover.take_over()
        second.go()
        second.saw("joined")
        if ends == "by a release":
            registry().close()
            holder.release()
        assert [first.join(), second.join()] == [0, 0]
        assert lab.history.violations(counter=lab.counter) == []
        assert lab.counter == 2
        assert lab.history.count("lost") == 0
        assert len({event.value for event in lab.history.events if event.kind == "acquired"}) == 2


def attempts_until_it_works() -> int:
    for number in range(1, 20):
        try:
            unrelated("again").release()
        except BackendUnavailable:
            continue
        return number
    raise AssertionError("the open connections are used for ever")


def test_threads_lock_again_after_a_demotion(failover: Failover) -> None:
    configure({"default": {"LOCATION": failover.url}})
    leases = [unrelated(f"{number}") for number in range(3)]  # three connections
    for lease in leases:
        lease.release()
    contend()  # and the listening one
    failover.take_over()
    assert attempts_until_it_works() <= 2
    assert contend() < SOON, "the listener stayed with the demoted server"


@pytest.mark.slow
def test_a_listener_that_alone_stayed_with_the_demoted_server_is_not_deaf_for_good(
    failover: Failover, beside: Beside
) -> None:
    """The other connections were closed meanwhile, so that nothing is refused; what it costs is a lease, once."""
    configure({"default": {"LOCATION": failover.url}})
    contend()
    failover.take_over()
    registry().store("default").backend.server.pool.drop_idle()  # type: ignore[attr-defined]
    expire = 1.0
    for number in range(3):
        holder = unrelated(f"deaf:{number}")
        waiting = beside(lock(f"deaf:{number}", expire=expire, wait=LONG).acquire)
        queued(failover.second, f"deaf:{number}")
        holder.release()
        waiting.result(SOON).release()
    assert failover.second.pubsub_numsub(*failover.second.pubsub_channels("distlock:*")) != [], "it listens nowhere"
