"""What the pages say in words alone."""

from __future__ import annotations

import re
import threading

import pytest

import distlock_web.sqlalchemy  # noqa: F401 - it installs its transactions
from distlock_web import (
    LeaseLost,
    configure,
    held_locks,
    lock,
)
from tests.support.revoking import revoke_the_lock
from tests.support.source import PROJECT
from tests.support.waiting import eventually

TTL = 0.4


@pytest.fixture(autouse=True)
def memory() -> None:
    configure({"default": {"BACKEND": "memory"}})


@pytest.mark.timing
def test_who_notices_a_loss_is_told_there() -> None:
    """By the thread that watches the lease, or in the block's own."""
    told_in: list[threading.Thread] = []
    for expire in (TTL, 10.0):
        # Each a lock of its own: the holder takes its lease for over a moment before the store does.
        with lock(str(expire), expire=expire, on_lost=lambda _: told_in.append(threading.current_thread())) as lease:
            if expire == TTL:
                eventually(lambda: told_in, "the loss is told")
                eventually(lambda: not held_locks(), "the store has seen it, too")
            else:
                revoke_the_lock()
                with pytest.raises(LeaseLost):
                    lease.extend()
    assert [thread is threading.current_thread() for thread in told_in] == [False, True]


def test_the_pages_name_the_same_as_public_for_authors_of_integrations() -> None:
    docs = PROJECT / "docs"
    rest = (docs / "integrations.md").read_text("utf-8").partition("## The rest of a web framework")[2]
    used = {"distlock_web." + path.replace("/", ".") for path in re.findall(r"`(\w+/\w+)\.py`", rest)}
    public = (docs / "architecture.md").read_text("utf-8").partition("| authors of stores and integrations |")[2]
    shared = set(re.findall(r"`(distlock_web\.(?:web|cli)\.\w+)`", public.partition("\n")[0]))
    assert used == shared != set()
