"""The fence of one of several locks, by the key that was asked for."""

from __future__ import annotations

import pytest

from distlock_web import ConfigurationError, attach, current_lease, distributed_lockable, lock
from distlock_web.core.registry import registry
from distlock_web.locks.fencing import fence_of
from distlock_web.testing.fault_injector import FaultInjector

pytestmark = pytest.mark.usefixtures("memory_store")


@pytest.mark.parametrize(
    ("key", "prefix"),
    [("a", None), ("a:b|c", None), ("a", "shop:"), ("a", ""), ("ä~%" + "x" * 300, None)],
)
def test_a_fence_by_its_key(key: str, prefix: str | None) -> None:
    with lock("z"), lock([key, "z"], prefix=prefix) as lease:
        name, other = (name for name in sorted(lease.names, key=lambda name: name.endswith("z")))
        assert lease.fence_for(key) == lease.fences[name]
        assert lease.fence_for("z") == lease.fences[other]
        with pytest.raises(ConfigurationError, match="does not hold"):
            lease.fence_for(f"of another:{key}")
    with lock(key, prefix=prefix) as lease:
        assert lease.fence_for(key) == lease.fence


@pytest.mark.parametrize("prefix", [None, "shop:"])
def test_a_fence_by_a_key_that_was_handed_over(prefix: str | None) -> None:
    lease = lock(["a", "b"], prefix=prefix).acquire()
    fences = lease.fence_for("a"), lease.fence_for("b")
    with attach(lease.detach()) as lease:
        assert (lease.fence_for("a"), lease.fence_for("b")) == fences


def test_a_call_without_its_lock_has_no_fence_for_its_key() -> None:
    @distributed_lockable(key=["a", "b"], on_backend_error="open")
    def let_through() -> None:
        lease = current_lease()
        assert lease is not None
        assert lease.fence_for("a") is None
        with pytest.raises(ConfigurationError, match="was not acquired"):
            fence_of(lease, "a")
        with pytest.raises(ConfigurationError, match="does not hold"):
            lease.fence_for("c")

    FaultInjector(registry().store("default")).cut()
    let_through()
