"""What a reader opens to understand one lock: the way of a free one, and of a wait, counted on Redis in threads."""

from __future__ import annotations

import ast
import gc
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

from distlock_web import held_locks, lock
from distlock_web.core import integrations
from distlock_web.locks import events
from distlock_web.locks.lease import scope_of
from distlock_web.locks.watchdog import AT_ONCE, Watchdog, WatchedHold
from tests.support.source import PACKAGE, code_lines, shown, tree
from tests.support.waiting import eventually

#: Of a free lock, with what the store does: each may only fall. One opens all of its files. Lines are those of code: a
#: comment costs nothing.
#: The way of its end stops at the first hold that is lost, and a bug at one hold, or claim, is raised after the others:
#: the lines that this needs.
#: The aim: 65 calls, 12 files, 600 lines, 20 classes, 40 %.
MAX_CALLS, MAX_FILES, MAX_LINES, MAX_CLASSES, MAX_OPENED = 68, 20, 597, 26, 2_678
#: What a wait adds to that. The aim: 350 lines in 4 files.
MAX_MORE_LINES, MAX_MORE_FILES = 250, 5

#: To renew one lease more, among others. A thousand that were each renewed once a second took 0.09 s of CPU in 20 s.
MAX_CALLS_TO_RENEW = 24

#: What is called outside of the store, as often as it stands here. Whoever adds a call says why every lock needs it.
KNOWN = """
kit/outage.py: refuse_if_silent refuse_if_silent
kit/pool.py: end end
core/registry.py: port port note registry store
core/request_id.py: current request_token
core/runtime.py: blocking_runtime drive drive new_token
locks/reentry/chain.py: enter exit_block find_block find_enclosing leave
locks/completion.py: shielded
locks/ending.py: _release end release_all
locks/engine.py: _take acquire
locks/hold.py: __init__ begin_release check check claim_to_the_end released state
locks/lease.py: __init__
locks/lock.py: __enter__ __exit__ __init__ _acquire_now lock
locks/options.py: options_of spec
locks/scope.py: __init__ add claimant close let_go raise_if_lost
"""


class Way:
    """What was called of our functions, in their order, and whose objects they had in their hands."""

    def __init__(self) -> None:
        self.calls: list[CodeType] = []
        self.classes: set[type] = set()
        self._walks = False

    @contextmanager
    def walked(self) -> Iterator[None]:
        self._walks = True
        try:
            yield
        finally:
            self._walks = False

    def note(self, frame: FrameType, event: str, argument: Any) -> None:
        if not self._walks or not frame.f_code.co_filename.startswith(str(PACKAGE)):
            return
        if event == "call":
            self.calls.append(frame.f_code)
        elif event == "return":
            self.classes |= {kind for value in [*frame.f_locals.values(), argument] if is_ours(kind := type(value))}

    def lines(self, file: str) -> int:
        """The lines of code of the functions of this file that were called."""
        begun = {code.co_firstlineno for code in self.calls if code.co_filename == file}
        lines = set[int]()
        for node in ast.walk(tree(Path(file))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.GeneratorExp):
                first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", ()))])
                if first in begun:
                    lines |= {*range(first, (node.end_lineno or first) + 1)}
        return len(lines & code_lines(Path(file)))

    @property
    def files(self) -> list[str]:
        return sorted({code.co_filename for code in self.calls})

    @property
    def named(self) -> list[str]:
        return [f"{shown(Path(code.co_filename))}: {code.co_name}" for code in self.calls]

    def table(self) -> str:
        """For people: by file, the lines of the way and of all of it."""
        return "\n".join(f"{self.lines(file):5} of {length(file):4}  {shown(Path(file))}" for file in self.files)


def is_ours(kind: type) -> bool:
    return kind.__module__.startswith("distlock_web.")


def length(file: str) -> int:
    return len(code_lines(Path(file)))


@pytest.fixture(autouse=True)
def alone(redis_store: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Without the frameworks that other tests have loaded, and the garbage that they have left: its stores close."""
    monkeypatch.setattr(integrations, "installed", integrations.Installed())
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def way_of_a_free_lock(wait: float = 0) -> Way:
    way = Way()
    for turn in range(5):  # the first ones connect, and find out what is remembered
        sys.setprofile(way.note if turn == 4 else None)
        try:
            with way.walked(), lock("free", expire=5, wait=wait):
                pass
        finally:
            sys.setprofile(None)
    return way


def ways_of_a_wait() -> list[set[CodeType]]:
    """A second thread waits until the lock is released: what it calls, and the thread that hears of the release."""
    way, found = Way(), []
    threading.setprofile(way.note)
    try:
        for _ in range(4):
            way.calls.clear()
            entered = threading.Event()

            def wait(entered: threading.Event = entered) -> None:
                with lock("awaited", expire=60, wait=60):
                    entered.set()

            waiting = threading.Thread(target=wait)
            with way.walked():
                with lock("awaited", expire=60):
                    waiting.start()
                    eventually(waits, "the second one waits")
                assert entered.wait(60)
                waiting.join(60)
            found.append(set(way.calls))
    finally:
        threading.setprofile(None)
    return found[1:]  # the first one connects


def waits() -> bool:
    return any(row.lock.waiters for row in held_locks())


def test_a_free_lock_takes_few_calls_in_few_files() -> None:
    way = way_of_a_free_lock()
    known = [
        f"{file}: {name}"
        for file, _, names in (line.partition(":") for line in KNOWN.split("\n"))
        for name in names.split()
    ]
    ours = Counter(call for call in way.named if not call.startswith("backends/"))
    added = ours - Counter(known)
    assert not added, f"on the way of every lock there is more now: {sorted(added.elements())}"
    gone = Counter(known) - ours
    assert not gone, f"take it out of the list: {sorted(gone.elements())}"
    lines = sum(map(way.lines, way.files))
    opened = sum(map(length, way.files))
    print(way.table())
    print(*sorted(kind.__name__ for kind in way.classes))
    print(
        f"a free lock: {len(way.calls)} calls, {len(way.files)} files, {lines} lines, {len(way.classes)} classes, "
        f"{lines / opened:.0%} of the {opened} that one opens"
    )
    assert len(way.calls) <= MAX_CALLS, sorted(name for name in way.named if name.startswith("backends/"))
    assert len(way.files) <= MAX_FILES
    assert lines <= MAX_LINES
    assert len(way.classes) <= MAX_CLASSES
    assert opened <= MAX_OPENED


def test_to_be_ready_to_wait_costs_a_free_lock_one_call() -> None:
    """It was noted as a waiter, and taken off the list again, each time."""
    added = Counter(way_of_a_free_lock(wait=60).named) - Counter(way_of_a_free_lock().named)
    assert list(added.elements()) == ["backends/redis/transport/listener.py: ready"]


def test_a_wait_adds_little_to_that() -> None:
    free, both = way_of_a_free_lock(), list[Way]()
    for called in ways_of_a_wait():
        both.append(way := Way())
        way.calls = [*free.calls, *called]
    # On a busy machine a rare branch may be walked: not each time.
    way = min(both, key=lambda each: sum(map(each.lines, each.files)))
    more = sum(map(way.lines, way.files)) - sum(map(free.lines, free.files))
    files = sorted({*way.files} - {*free.files})
    print(way.table())
    print(f"a wait: {more} lines more, {len(files)} files more: {[shown(Path(file)) for file in files]}")
    assert more <= MAX_MORE_LINES
    assert len(files) <= MAX_MORE_FILES


def test_to_renew_many_leases_takes_few_calls_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "never_wait_here", lambda: None)  # it is told of this thread for good
    few, many = (calls_to_renew(leases) for leases in (10, 50))
    each = (many - few) / 40
    print(f"a renewal: {each} calls for each lease, {few - 10 * each} for all of them")
    assert each <= MAX_CALLS_TO_RENEW


def calls_to_renew(leases: int) -> int:
    """One round of the watchdog, in this thread: it renews them all, and looks when the next is due."""
    way, dog = Way(), Watchdog()
    taken = [lock(f"renewed-{leases}-{number}", expire=60).acquire() for number in range(leases)]
    watched = [WatchedHold(hold, True) for lease in taken for hold in scope_of(lease).holds]
    dog._keep(watched)
    for turn in range(2):  # the first one connects
        for item in watched:
            item.due = AT_ONCE
        sys.setprofile(way.note if turn else None)
        try:
            with way.walked():
                assert dog._step() == 0, "it has renewed"
                assert dog._step() > 0, "none is due"
        finally:
            sys.setprofile(None)
    for lease in taken:
        lease.release()
    return len(way.calls)
