"""Lanes: answers that nobody has fetched yet, and what becomes of them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from distlock_web import lock
from distlock_web.backends.redlock.lane import IDLE, Lanes
from distlock_web.backends.redlock.quorum import wait_for_data
from distlock_web.core.registry import Store
from distlock_web.testing.servers import RedisServer
from tests.support.proxy import Proxy
from tests.support.stores.redlock import left_on
from tests.support.waiting import SOON, eventually

TIMEOUT = 1.0
WAIT = "distlock_web.backends.redlock.lane.wait_for_data"


@pytest.fixture
def slow(own_nodes: list[RedisServer], open_store: Callable[..., Store]) -> Iterator[tuple[Proxy, Any]]:
    """A store whose fifth node answers when the test wants; no lock of these has it for its lead."""
    with Proxy(own_nodes[4].port) as fifth:
        servers = [*own_nodes[:4], fifth]
        store = open_store(servers, socket_timeout=TIMEOUT, socket_connect_timeout=TIMEOUT)
        for _ in range(3):  # the first finds out what time it is at the nodes, the second opens a lane
            lock(key_of(store), expire=30).acquire().release()
        time.sleep(0.1)
        yield fifth, store


def key_of(store: Any) -> str:
    port, nodes = store.backend.sync_port(), store.backend._nodes
    return next(key for key in map(str, range(100)) if port._lead(f"disLock:{key}") is nodes[0])


def all_vote(store: Any) -> bool:
    return all(node.down_since is None for node in store.backend._nodes)


def test_a_lock_goes_over_a_lane_that_is_used_again(slow: Any) -> None:
    _, store = slow
    (before,) = store.backend._lanes._idle
    lease = lock(key_of(store), expire=30).acquire()
    assert lease.fence
    (held,) = store.backend._ledger.held.values()
    assert held.question.lane is before
    lease.release()
    assert list(store.backend._lanes._idle) == [before]


def test_what_nobody_has_read_for_long_is_not_silence(slow: Any) -> None:
    fifth, store = slow
    fifth.delay = 0.1
    lock(key_of(store), expire=30).acquire().release()
    time.sleep(1.2 * TIMEOUT)
    lock(key_of(store), expire=30).acquire().release()
    assert all_vote(store)


def test_a_release_on_another_lane_waits_for_its_acquisition(slow: Any, own_nodes: list[RedisServer]) -> None:
    fifth, store = slow
    lanes = store.backend._lanes
    fifth.delay = 0.3
    lease = lock(key_of(store), expire=30).acquire()
    (held,) = store.backend._ledger.held.values()
    question = held.question
    assert lanes.take_this(question.lane), "somebody else uses it"
    fifth.delay = 0.0
    back = threading.Timer(0.1, lanes.give_back, [question.lane])
    back.start()
    lease.release()
    assert not question.lane.owing(question)
    back.join()
    eventually(lambda: left_on(own_nodes) == {}, "the release came after the acquisition, everywhere")
    assert all_vote(store)


def test_what_is_interrupted_leaves_nothing(
    slow: Any, own_nodes: list[RedisServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal comes while the answers are awaited: the lane is not used again, and all that was asked is undone."""
    _, store = slow
    (lane,) = store.backend._lanes._idle

    def interrupted(*_: Any) -> list[int]:
        monkeypatch.setattr(WAIT, wait_for_data)
        raise KeyboardInterrupt

    monkeypatch.setattr(WAIT, interrupted)
    with pytest.raises(KeyboardInterrupt):
        lock(key_of(store), expire=30).acquire()
    assert lane not in store.backend._lanes._idle
    eventually(lambda: left_on(own_nodes) == {}, "nothing is left")
    lease = lock(key_of(store), expire=30).acquire()
    monkeypatch.setattr(WAIT, interrupted)
    with pytest.raises(KeyboardInterrupt):
        lease.release()
    eventually(lambda: left_on(own_nodes) == {}, "nothing is left")
    assert all_vote(store)


def test_a_release_that_was_lost_on_the_way_is_done_later(slow: Any, own_nodes: list[RedisServer]) -> None:
    fifth, store = slow
    lease = lock(key_of(store), expire=300).acquire()
    eventually(lambda: len(left_on(own_nodes)) == 5, "all have it")
    fifth.swallow()
    lease.release()
    fifth.cut()
    fifth.swallow(False)
    assert list(left_on(own_nodes)) == [own_nodes[4].port]

    def used() -> bool:
        lock(key_of(store), expire=30).acquire().release()
        return left_on(own_nodes) == {}

    eventually(used, "whoever uses the lane next sees to it, once it has noticed")


def test_an_event_loop_that_ends_takes_no_node_down(slow: Any) -> None:
    fifth, store = slow

    async def cycles() -> None:
        for _ in range(3):
            async with lock(key_of(store), expire=30):
                pass
        fifth.delay = 0.3
        async with lock(key_of(store), expire=30):
            pass

    asyncio.run(cycles())
    fifth.delay = 0.0
    assert all_vote(store)


def test_a_store_that_is_closed_has_no_connection_left(own_nodes: list[RedisServer], open_store: Any) -> None:
    store = open_store(own_nodes)
    for _ in range(3):
        lock("order:7", expire=30).acquire().release()
    lanes = store.backend._lanes
    in_use = lanes.take()
    assert len(lanes._open) == 1
    store.backend.close()
    lanes.give_back(in_use)
    assert not lanes._idle
    with redis.Redis.from_url(own_nodes[0].url) as client:
        eventually(lambda: len(client.client_list()) == 1, "this one alone")


def test_no_more_lanes_than_connections_are_allowed() -> None:
    lanes = Lanes(1)
    lane = lanes.take()
    assert lane is not None
    assert lanes.take() is None
    lanes.give_back(lane)
    assert lanes.take() is lane
    del lane
    assert lanes.take() is not None, "one that was lost leaves its place"


def test_connections_that_have_ended_while_nobody_used_them_cost_nobody_a_refusal(
    slow: Any, own_nodes: list[RedisServer]
) -> None:
    """Redis' own time-out for those that are idle, or a firewall's: each lane refused a lock that was free."""
    _, store = slow
    lock(key_of(store), expire=30).acquire().release()
    for node in own_nodes:
        with redis.Redis.from_url(node.url) as client:
            client.client_kill_filter(_type="normal", skipme=True)
    time.sleep(2 * IDLE)
    lease = lock(key_of(store), expire=30).acquire()
    for node in own_nodes:
        with redis.Redis.from_url(node.url) as client:
            client.client_kill_filter(_type="normal", skipme=True)
    time.sleep(2 * IDLE)
    lease.release()
    eventually(lambda: left_on(own_nodes) == {}, "it is released")


def test_what_a_thread_took_and_a_task_gives_back_stays_nowhere(slow: Any, own_nodes: list[RedisServer]) -> None:
    """A streamed response: the acquisition is still on its way to a slow node, and what is asked next overtakes it."""
    fifth, store = slow
    fifth.delay_questions = 0.4
    fifth.asked.clear()
    lease = lock(key_of(store), expire=300).acquire()
    eventually(lambda: fifth.asked, "it is on its way")
    fifth.delay_questions = 0.0

    async def end() -> None:
        async with lock("first"):  # connected
            pass
        await lease.arelease()

    asyncio.run(end())
    time.sleep(0.5)
    eventually(lambda: left_on(own_nodes) == {}, "nothing is left", SOON)
    assert all_vote(store)
