"""Exceptions that come anywhere: the end of an event loop, a signal's handler, garbage that is collected."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import distlock_web
from distlock_web import NotHeld, attach, distributed_lockable, lock
from distlock_web.backends.memory import MemoryPort
from distlock_web.core.backend import Port
from distlock_web.core.registry import registry
from distlock_web.core.runtime import TASKS, THREADS, Runtime, drive
from distlock_web.locks import ending
from distlock_web.testing.fault_injector import FaultInjector
from distlock_web.web.streaming import spawn
from tests.support.interruptions import HardLimit, Limit, in_a_thread_of_its_own, interrupted_at
from tests.support.waiting import SOON, eventually


def held() -> list[str]:
    return [line.name for line in drive(registry().store("default").port(THREADS).inspect())]


# The end of an event loop -------------------------------------------------------------------------------------------


async def work(number: int, chance: random.Random, replaced: list[Exception]) -> None:
    task = asyncio.current_task()
    assert task is not None
    while not task.cancelling():
        try:
            async with lock(f"key:{number % 3}", expire=20, wait=chance.choice([0, 1])):
                for _ in range(chance.randrange(3)):
                    await asyncio.sleep(0)
        except Exception as error:
            if task.cancelling():
                replaced.append(error)
            await asyncio.sleep(0)


async def end_at_some_moment(chance: random.Random, replaced: list[Exception]) -> None:
    tasks = [asyncio.create_task(work(number, chance, replaced)) for number in range(6)]
    for _ in range(chance.randrange(1, 120)):
        await asyncio.sleep(0)
    assert not all(task.done() for task in tasks)


def test_the_end_of_a_loop_leaves_no_lock_held(store: str) -> None:
    """asyncio.run() cancels every task, also those in which we shield what we give back."""
    seed = random.randrange(1_000_000)
    print(f"seed {seed}")
    chance, replaced = random.Random(seed), list[Exception]()
    for _ in range(200 if store == "memory" else 60):
        contextvars.Context().run(asyncio.run, end_at_some_moment(chance, replaced))
        assert held() == []
    assert replaced == [], "a cancellation is one"


@pytest.mark.usefixtures("memory_store")
def test_a_release_that_the_end_of_the_loop_cancels_is_done_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is sent again by a task of its own; that one was cancelled, too."""
    store = registry().store("default")
    injector, blocking = FaultInjector(store), store.port(THREADS)
    port = type("Slow", (), {"__getattr__": lambda self, verb: getattr(blocking, verb)})()

    async def never(*args: object) -> None:
        await asyncio.sleep(SOON)

    async def main() -> None:
        async def block() -> None:
            async with lock("a", expire=20):
                pass

        task = asyncio.create_task(block())
        await asyncio.sleep(0.05)
        assert asyncio.all_tasks() == {asyncio.current_task(), task}, "a release has no task of its own"
        task.cancel()
        await asyncio.sleep(0.05)
        assert not task.done()

    port.release = never
    monkeypatch.setattr(store, "port", lambda runtime: blocking if runtime is THREADS else port)
    asyncio.run(main())
    assert held() == []
    assert injector.calls[-2:] == ["release", "inspect"]


@pytest.mark.usefixtures("memory_store")
@pytest.mark.parametrize("by_hand", [False, True])
def test_a_plain_block_that_ends_in_an_event_loop_is_released_by_the_blocking_port(
    by_hand: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A generator was begun outside and is closed there: nothing awaits its end, so the other port would not answer."""

    def section() -> Iterator[None]:
        block = lock("a", expire=20)
        with block.acquire() if by_hand else block:
            yield

    async def close() -> None:
        steps.close()  # type: ignore[attr-defined]

    def noting(runtime: Runtime) -> Port:
        asked.append(runtime)
        return port(runtime)

    store, asked, steps = registry().store("default"), list[Runtime](), section()
    next(steps)
    port = store.port
    monkeypatch.setattr(store, "port", noting)
    asyncio.run(close())
    assert asked == [THREADS]
    assert held() == []


def test_what_a_loop_was_to_close_is_closed_when_it_ends_before() -> None:
    closed: list[str] = []

    async def close() -> None:
        await asyncio.sleep(SOON)
        closed.append("in the loop")

    async def main() -> None:
        spawn(close, otherwise=lambda: closed.append("otherwise"))

    asyncio.run(main())
    assert closed == ["otherwise"]


@pytest.mark.usefixtures("memory_store")
def test_a_coroutine_that_is_closed_after_its_loop_gives_its_lock_back() -> None:
    async def block() -> None:
        async with lock("a", expire=20):
            await asyncio.sleep(SOON)

    loop = asyncio.new_event_loop()
    coroutine = block()
    task = loop.create_task(coroutine)
    loop.run_until_complete(asyncio.sleep(0.01))
    loop.close()
    assert held() == ["disLock:a"]
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    coroutine.close()
    assert held() == []


@pytest.mark.usefixtures("memory_store")
def test_a_writer_whose_loop_has_closed_keeps_out_no_reader() -> None:
    """It is the first in the queue, and nobody will ever wake it."""

    async def write() -> None:
        async with lock("a", expire=20, wait=SOON):
            pass

    with lock("a", shared=True, expire=SOON):
        loop = asyncio.new_event_loop()
        coroutine = contextvars.Context().run(write)
        task = contextvars.Context().run(loop.create_task, coroutine)
        loop.run_until_complete(asyncio.sleep(0.01))
        assert not task.done()
        loop.close()
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        contextvars.Context().run(lock("a", shared=True, wait=0).acquire).release()
        coroutine.close()
    assert held() == []


class Slow:
    """A port of event loops whose releases never end, up to the one that finds its executor shut down."""

    def __init__(self, shut_down_at: int = 0) -> None:
        self._blocking = registry().store("default").port(THREADS)
        self._shut_down_at = shut_down_at
        self.releases = 0

    async def release(self, *args: object) -> None:
        self.releases += 1
        if self.releases == self._shut_down_at:
            raise RuntimeError("cannot schedule new futures after shutdown")
        await asyncio.sleep(SOON)

    def __getattr__(self, verb: str) -> Any:
        return getattr(self._blocking, verb)


async def at_its_end() -> None:
    async with lock("a", expire=20):
        pass


@pytest.mark.parametrize("cancelled", [False, True])
def test_so_it_is_while_its_release_is_waited_for(monkeypatch: pytest.MonkeyPatch, cancelled: bool) -> None:
    """What closed it was told that it had ignored that. Cancelled, it waits for another task, which does it again."""
    slow = Slow()
    monkeypatch.setattr(registry().store("default").backend, "async_port", lambda: slow)
    loop = asyncio.new_event_loop()
    coroutine = at_its_end()
    task = loop.create_task(coroutine)
    loop.run_until_complete(asyncio.sleep(0.01))
    if cancelled:
        task.cancel()
        loop.run_until_complete(asyncio.sleep(0.01))
    others = asyncio.all_tasks(loop) - {task}
    assert not task.done()
    assert (len(others), slow.releases) == ((1, 2) if cancelled else (0, 1))
    loop.close()
    for each in (task, *others):
        each._log_destroy_pending = False  # type: ignore[attr-defined]
    coroutine.close()
    assert held() == []


@pytest.mark.usefixtures("memory_store")
async def test_a_release_whose_second_try_finds_no_thread_is_done_by_the_caller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The executor of the loop was shut down: the lock was held for its whole lease."""
    slow = Slow(shut_down_at=2)
    monkeypatch.setattr(registry().store("default").backend, "async_port", lambda: slow)
    task = asyncio.create_task(at_its_end())
    await asyncio.to_thread(eventually, lambda: slow.releases, "it is asked to release")
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert slow.releases == 2
    assert await asyncio.to_thread(held) == []


# Signals ------------------------------------------------------------------------------------------------------------


def with_block() -> None:
    with lock("a", expire=60, wait=0):
        pass


def is_ours(file: str) -> bool:
    """Those of the backends left out."""
    return file.startswith(str(Path(distlock_web.__file__).parent)) and "/backends/" not in file


@pytest.mark.slow
@pytest.mark.usefixtures("memory_store")
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(("verb", "unavoidable"), [("release", 0), ("detach", 2)])
@pytest.mark.parametrize("renew", [False, True])
def test_a_lease_that_is_given_up_by_hand_is_given_up_wherever_that_is_interrupted(
    verb: str, unavoidable: int, renew: bool
) -> None:
    """One in four left it held, renewed for as long as its thread lived. A ticket may be on its way to the caller."""
    left: list[int] = []
    for step in range(1000):
        reached = False

        def block() -> None:
            nonlocal reached
            with lock("a", expire=60, renew=renew) as lease:
                reached = True
                reached = interrupted_at(step, getattr(lease, verb), is_ours)  # noqa: B023 - called in this very turn

        in_a_thread_of_its_own(block)
        if not reached:
            break
        if held():
            left.append(step)
            registry().store("default").backend._table.__init__()  # type: ignore[attr-defined]
    assert step > 40
    assert all(each >= step - unavoidable for each in left), left


def with_lease() -> None:
    with lock("a", expire=60, wait=0).acquire():
        pass


class Failure(Exception):
    """The block's own."""


def failing_block() -> None:
    with suppress(Failure), lock("a", expire=60, wait=0):
        raise Failure


def failing_lease() -> None:
    with suppress(Failure), lock("a", expire=60, wait=0).acquire():
        raise Failure


@distributed_lockable(key=["a", "b"], expire=60, wait=0)
def one_call() -> None:
    pass


@distributed_lockable(key="a", expire=60, wait=0)
def fail() -> None:
    raise Failure


def failing_call() -> None:
    with suppress(Failure):
        fail()


def taken_on(tickets: list[str]) -> None:
    with attach(tickets[-1]):
        pass


#: And at how many moments Python does not let us release it: when ``__exit__`` begins, and a lease's ``__enter__``.
SECTIONS: dict[Callable[[], None], int] = {
    with_block: 1, failing_block: 1, with_lease: 2, failing_lease: 2, one_call: 0, failing_call: 0,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.usefixtures("memory_store")
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("section", [*SECTIONS, taken_on])
def test_a_lock_is_released_wherever_its_block_is_interrupted(section: Callable[..., None]) -> None:
    left: list[int] = []
    for step in range(1000):
        reached, tickets = False, list[str]()
        if section is taken_on:
            tickets.append(lock("a", expire=60).acquire().detach())

        def block() -> None:
            nonlocal reached
            reached = True
            reached = interrupted_at(step, partial(section, *filter(None, [tickets])), is_ours)  # noqa: B023

        in_a_thread_of_its_own(block)
        with suppress(IndexError, NotHeld):
            attach(tickets[-1]).release()  # it was not taken on yet
        if held():
            left.append(step)
            registry().store("default").backend._table.__init__()  # type: ignore[attr-defined]
        if not reached:
            break
    assert step > 60
    assert len(left) <= SECTIONS.get(section, 2), left


@pytest.mark.slow
@pytest.mark.usefixtures("memory_store")
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("nested", SECTIONS)
def test_a_nested_block_leaves_its_turn_wherever_it_is_interrupted(nested: Callable[[], None]) -> None:
    """The block around it was shut out of its own lock: it waited for itself, for ever with ``wait=None``."""
    left: list[tuple[int, int]] = []
    for step in range(1000):
        reached = False

        def block() -> None:
            nonlocal reached
            with lock("a", expire=60) as outer:
                reached = True
                with suppress(Limit):
                    reached = interrupted_at(step, nested, is_ours)  # noqa: B023 - called in this very turn
                inner = lock("a", expire=60, wait=0).try_acquire()
                if inner is None or inner.depth != 2:
                    left.append((step, outer.depth))  # noqa: B023
                if inner is not None:
                    inner.release()

        in_a_thread_of_its_own(block)
        assert held() == []
        if not reached:
            break
    assert step > 60
    assert len(left) <= SECTIONS[nested], left


@pytest.mark.usefixtures("memory_store")
@pytest.mark.parametrize("limit", [Limit, HardLimit])
@pytest.mark.parametrize("way", ["with lock", "with lease"])
@pytest.mark.parametrize("fails", [False, True])
def test_an_end_that_is_interrupted_before_anything_is_sent_is_that_of_its_block(
    fails: bool, way: str, limit: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A success stays taken, and after a failure the lock is free. Who hears of the failure hears of no limit."""

    async def interrupted(*_: object) -> None:
        raise limit

    monkeypatch.setattr(ending, "shielded", interrupted)
    block = lock("a", expire=600, hold_at_least=60)
    with (
        pytest.raises(Failure if fails and limit is Limit else limit),
        block.acquire() if way == "with lease" else block,
    ):
        if fails:
            raise Failure
    assert [line.state for line in drive(registry().store("default").port(THREADS).inspect())] == ["cooldown"] * (
        not fails
    )


@pytest.mark.usefixtures("memory_store")
@pytest.mark.parametrize("asynchronous", [False, True])
async def test_how_often_a_release_is_sent_that_meets_a_bug(
    asynchronous: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = list[Runtime]()

    async def broken(port: MemoryPort, *_: object) -> None:
        sent.append(port.runtime)
        raise LookupError("a bug")

    def block() -> None:
        with lock("a"):
            raise Failure

    monkeypatch.setattr(MemoryPort, "release", broken)
    with pytest.raises(Failure):
        if asynchronous:
            async with lock("a"):
                raise Failure
        await asyncio.to_thread(block)
    assert sent == ([TASKS, THREADS] if asynchronous else [THREADS] * 4)


@pytest.mark.slow
@pytest.mark.usefixtures("memory_store")
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("way", ["with lock", "with lease", "call"])
def test_a_success_stays_taken_wherever_its_end_is_interrupted(way: str, nested: bool) -> None:
    """The work is done: what ``hold_at_least`` keeps from running again just now ran again.

    ``nested``: it had re-entered the lock of a block around it, at whose end the lock is released.
    """
    with lock("first"):  # imports its store: the compiler does not bear to be interrupted
        pass
    free, whole = list[int](), list[int]()
    for step in range(1000):
        reached = done = False

        def succeeded(_: object) -> bool:
            nonlocal done
            done = True
            return True

        def end() -> Callable[[], object]:
            nonlocal done
            if way == "call":  # only who listens to its success sees when it is done
                return distributed_lockable(key="a", expire=600, hold_at_least=60, success=succeeded)(lambda: None)
            block = lock("a", expire=600, wait=0, hold_at_least=60)
            section = block.acquire() if way == "with lease" else block
            section.__enter__()
            done = True
            return partial(section.__exit__, None, None, None)

        def interrupted() -> None:
            nonlocal reached
            with lock("a", expire=600) if nested else nullcontext():
                ended = end()
                reached = True
                reached = interrupted_at(step, ended, is_ours)  # noqa: B023

        in_a_thread_of_its_own(interrupted)
        if not reached:
            break
        if not done:
            continue
        lines = drive(registry().store("default").port(THREADS).inspect())
        if not lines:
            free.append(step)
        elif lines[0].state != "cooldown":
            whole.append(step)  # its lease was not ended
        registry().store("default").backend._table.__init__()  # type: ignore[attr-defined]
    assert step > 20
    # Before the first instruction of ours, in a block whose error then ends the one around it; and while a call is
    # judged: it may not have been committed.
    assert len(free) <= (10 if way == "call" else nested), free
    assert len(whole) <= 1, whole


# Garbage ------------------------------------------------------------------------------------------------------------


class Node:
    """One half of a cycle that only the collector ends."""

    myself: Node
    generator: Iterator[None]


def abandoned(number: int) -> None:
    def generator() -> Iterator[None]:
        with lock(f"garbage:{number}", expire=60, renew=number % 5 == 0):
            yield

    node = Node()
    node.myself, node.generator = node, generator()
    contextvars.Context().run(next, node.generator)


@pytest.mark.usefixtures("memory_store")
def test_garbage_that_is_collected_inside_our_own_mutexes_ends_its_block() -> None:
    """The thread waited for itself, and every later release of the process for it."""
    done: list[int] = []

    def run() -> None:
        threshold = gc.get_threshold()
        gc.set_threshold(1)
        try:
            for number in range(400):
                abandoned(number)
                with lock("a", expire=5, renew=number % 7 == 0), lock("a"):
                    pass
                done.append(number)
        finally:
            gc.set_threshold(*threshold)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(60)
    assert len(done) == 400
    gc.collect()
    eventually(lambda: held() == [], "all are released")  # another thread of ours may be collecting the last of them
