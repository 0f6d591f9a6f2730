"""What a free lock costs a thread: calls of functions of ours, and the files that a reader of them opens."""

from __future__ import annotations

import sys
from collections import Counter
from types import FrameType

import pytest

from distlock_web import lock
from distlock_web.core import integrations
from tests.support.source import PACKAGE

#: On Redis, with what the store does. The aim is 16 files.
MAX_CALLS, MAX_FILES = 75, 21

#: What is called outside of the store, as often as it stands here. Whoever adds a call says why every lock needs it.
KNOWN = """
kit/outage.py: refuse_if_silent refuse_if_silent
kit/pool.py: end end
core/registry.py: port port record registry store
core/request_id.py: current request_token
core/runtime.py: blocking_runtime drive drive new_token
locks/call_site.py: call_site
locks/reentry/chain.py: enter exit_block find_block find_enclosing leave
locks/completion.py: shielded
locks/ending.py: _release end end_now release_all
locks/engine.py: _take acquire
locks/hold.py: __init__ begin_release check check claim_to_the_end released state
locks/lease.py: __init__
locks/lock.py: __enter__ __exit__ __init__ _acquire_now _scope lock
locks/options.py: options_of spec
locks/scope.py: __init__ add claimant close let_go lost_hold raise_if_lost
"""


def calls_of_a_free_lock() -> list[str]:
    called: list[str] = []

    def note(frame: FrameType, event: str, argument: object) -> None:
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(str(PACKAGE)):
            called.append(f"{file.removeprefix(str(PACKAGE))[1:]}: {frame.f_code.co_name}")

    for turn in range(5):  # the first ones connect, and find out what is remembered
        sys.setprofile(note if turn == 4 else None)
        try:
            with lock("free", expire=5):
                pass
        finally:
            sys.setprofile(None)
    return called


def test_a_free_lock_takes_few_calls_in_few_files(redis_store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Without the frameworks that other tests have loaded.
    monkeypatch.setattr(integrations, "installed", integrations.Installed())
    called = calls_of_a_free_lock()
    known = [
        f"{file}: {name}"
        for file, _, names in (line.partition(":") for line in KNOWN.split("\n"))
        for name in names.split()
    ]
    ours = Counter(call for call in called if not call.startswith("backends/"))
    added = ours - Counter(known)
    assert not added, f"on the way of every lock there is more now: {sorted(added.elements())}"
    gone = Counter(known) - ours
    assert not gone, f"take it out of the list: {sorted(gone.elements())}"
    in_backend = Counter(call for call in called if call.startswith("backends/"))
    files = {call.partition(":")[0] for call in called}
    print(f"{len(called)} calls in {len(files)} files")
    assert len(called) <= MAX_CALLS, sorted(in_backend.elements())
    assert len(files) <= MAX_FILES, sorted(files)
