"""Who has a lock that is busy: said to the log and to code, not to the client."""

from __future__ import annotations

import os
import pickle
import re
from collections.abc import Callable

import pytest

from distlock_web import HolderInfo, Lease, LockBusy, lock, request_scope

Elsewhere = Callable[..., Lease]


@pytest.fixture(autouse=True)
def site(store: str) -> None:
    """On each of two stores."""


@pytest.mark.parametrize("wait", [0, 0.05])
def test_the_error_says_who(elsewhere: Elsewhere, wait: float) -> None:
    with request_scope("job-17", "send_invoice"):
        hold_in_the_running_request("order")
    with pytest.raises(LockBusy) as caught:
        lock("order", wait=wait).acquire()
    holder = caught.value.holder
    assert holder is not None
    assert (holder.request_id, holder.path, holder.pid) == ("job-17", "send_invoice", os.getpid())
    assert str(caught.value).startswith("Somebody else holds the lock 'disLock:order': send_invoice on ")
    assert re.search(rf"\(pid {os.getpid()}\), request job-17, for 0\.\d s\.$", str(caught.value))
    assert caught.value.held_for is not None
    assert 0 <= caught.value.held_for < 5
    assert pickle.loads(pickle.dumps(caught.value)).holder == holder


def hold_in_the_running_request(key: str) -> None:
    lock(key).acquire().detach()


def test_the_way_in_twice_says_who_is_inside(elsewhere: Elsewhere) -> None:
    """Siblings inside of one block take turns: who is in there is the block itself."""
    import threading
    from contextvars import copy_context

    with request_scope("r-1"), lock("order"):
        context, seen = copy_context(), []

        def sibling() -> None:
            try:
                lock("order").acquire()
            except LockBusy as busy:
                seen.append(busy.holder)

        with lock("order"):
            thread = threading.Thread(target=context.run, args=(sibling,))
            thread.start()
            thread.join()
    assert [holder and holder.request_id for holder in seen] == ["r-1"]


def test_a_holder_that_nobody_knows(monkeypatch: pytest.MonkeyPatch, elsewhere: Elsewhere) -> None:
    monkeypatch.setattr(HolderInfo, "current", classmethod(lambda *args: "another program's words"))
    elsewhere("order")
    with pytest.raises(LockBusy, match=r"^Somebody else holds the lock 'disLock:order', for \d+\.\d s\.$") as caught:
        lock("order").acquire()
    assert caught.value.holder is None
