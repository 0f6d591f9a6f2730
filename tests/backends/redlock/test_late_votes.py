"""Votes that come late, or may still be undone: none of them counts, and none of them stays."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest
import redis

from distlock_web import BackendUnavailable, LeaseLost, lock
from distlock_web.backends.redlock import node as node_module
from distlock_web.backends.redlock.quorum import Part, readable, run_blocking
from distlock_web.backends.redlock.votes import failed_at_it
from distlock_web.core.backend import Busy, Granted
from distlock_web.core.runtime import drive, now
from distlock_web.locks.lease import scope_of
from distlock_web.testing.contract.base import claim
from distlock_web.testing.harness import Harness
from distlock_web.testing.servers import RedisServer
from tests.support.callers import no_thread
from tests.support.proxy import Proxy
from tests.support.stores.redlock import left_on
from tests.support.waiting import SOON, eventually

Quorum = tuple[list[RedisServer], Harness]


def _flush(server: RedisServer) -> None:
    with redis.Redis.from_url(server.url) as client:
        client.flushall()


async def _settled(harness: Harness, servers: list[RedisServer]) -> bool:
    """Also those nodes have given it that were not waited for."""
    await harness.port.inspect()  # a thread reads what is left with its next request
    return len(left_on(servers)) == len(servers)


def _key_led_by_the_first(backend: Any) -> str:
    port = backend.sync_port()
    return next(key for key in map(str, range(100)) if port._lead(f"disLock:{key}") is backend._nodes[0])


def _ask_the_ports(backend: Any) -> None:
    """As a process does that does not know yet what time it is at the nodes."""
    for node in backend._nodes:
        node._prompt_clock.ahead_us = None


def test_a_vote_that_is_still_to_be_undone_renews_nothing(quorum: Quorum) -> None:
    """A node that has not confirmed a cancellation says that the lease is there still, and then it is not."""
    servers, harness = quorum

    async def case() -> None:
        lease = await harness.acquire(lock("order:7", expire=30))
        await harness.until(partial(_settled, harness, servers))
        (mine,) = [hold.claim for hold in scope_of(lease).holds]
        backend: Any = harness.store.backend
        barred = backend._nodes[2]
        backend._ledger.barred[mine.token] = {barred}
        barred.cancel_later(mine)
        for server in servers[3:]:
            _flush(server)
        with pytest.raises(LeaseLost):
            await harness.extend(lease)

    harness.run(case())


def test_a_node_that_has_confirmed_a_cancellation_has_a_vote_again(
    own_nodes: list[RedisServer], open_store: Callable[..., Any]
) -> None:
    store = open_store(own_nodes)
    backend = store.backend
    with lock("other", expire=30):
        pass
    mine = claim(expire=30.0)
    own_nodes[2].pause()
    ledger, node = backend._ledger, backend._nodes[2]
    ledger.bar(node, mine)
    time.sleep(2 * node.timeout)
    assert node in ledger.barred[mine.token]
    assert ledger.knows(mine.token)
    own_nodes[2].resume()
    eventually(lambda: node not in ledger.barred[mine.token], "it has confirmed")
    assert not ledger.knows(mine.token)


@pytest.mark.parametrize("way", ["direct", "ports"])
def test_what_a_silent_node_gives_to_one_who_is_refused_is_undone(
    own_nodes: list[RedisServer], open_store: Callable[..., Any], mode: Any, way: str
) -> None:
    """Who does not wait is refused by the lead, and asks no more: nobody else would ever give back that vote."""
    with Proxy(own_nodes[4].port) as slow:
        store = open_store([*own_nodes[:4], slow])
        backend, harness = store.backend, mode(store)
        key, node = _key_led_by_the_first(backend), backend._nodes[4]

        async def case() -> None:
            for _ in range(2):
                await harness.release(await harness.acquire(lock("other", expire=30)))
            held, refused = (claim(name=f"disLock:{key}", expire=300.0) for _ in range(2))
            assert isinstance(await harness.port.acquire(held, 0), Granted)
            await harness.until(partial(_settled, harness, own_nodes))
            _flush(own_nodes[4])
            if way == "ports":
                _ask_the_ports(backend)
            slow.delay = 1.5 * node.timeout
            assert isinstance(await harness.port.acquire(refused, 0), Busy)
            slow.delay = 0.0
            await harness.until(partial(_confirmed, backend, node))
            assert left_on(own_nodes[4:]) == {}
            assert not harness.port._ports[node]._ambiguous
            assert await harness.port.release(held) is None

        harness.run(case())


@pytest.mark.parametrize("sent", [False, True])
def test_a_question_that_was_not_sent_is_not_to_be_undone(
    own_nodes: list[RedisServer], open_store: Callable[..., Any], sent: bool
) -> None:
    """Where all connections are in use each of many threads would leave a cancellation behind."""
    node = open_store(own_nodes).backend._nodes[0]
    near, far = socket.socketpair()

    async def verb() -> None:
        if sent:
            await readable(near)
        raise BackendUnavailable("no connection, or no answer")

    with near, far:
        part: Part[None] = Part(node, verb)
        assert not failed_at_it(part)
        part.resume()
        if sent:
            part.resume()
        assert part.done
        assert failed_at_it(part) is sent


async def _confirmed(backend: Any, node: Any) -> bool:
    return node.down_since is None and not any(node in barred for barred in backend._ledger.barred.values())


def test_acquired_in_a_thread_and_released_in_a_task(
    own_nodes: list[RedisServer], open_store: Callable[..., Any]
) -> None:
    """As with a synchronous view whose answer is streamed under ASGI. The loop goes on meanwhile."""
    with Proxy(own_nodes[4].port) as slow:
        servers: list[Any] = [*own_nodes[:4], slow]
        backend = open_store(servers, socket_timeout=5).backend
        mine = claim(name="disLock:" + _key_led_by_the_first(backend), expire=300.0)
        slowest = backend._nodes[4]

        def take() -> None:
            slow.delay = 0.5
            drive(backend.sync_port().acquire(mine, 0))

        async def case() -> None:
            port = backend.async_port()
            await port.inspect()
            await asyncio.to_thread(drive, backend.sync_port().inspect())
            _ask_the_ports(backend)
            await asyncio.to_thread(take)
            assert mine.token in slowest.unfinished, "its answer is still to come"
            release = asyncio.ensure_future(port.release(mine))
            turns = 0
            while left_on(own_nodes[:4]) or slowest.unfinished:
                await asyncio.sleep(0.01)
                turns += 1
            assert await release is None
            assert turns > 3

        asyncio.run(asyncio.wait_for(case(), SOON))
        eventually(lambda: left_on(own_nodes) == {}, "released everywhere", SOON)


def test_a_node_that_could_not_be_asked_to_undo_votes_again_when_nothing_is_left(
    own_nodes: list[RedisServer], open_store: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was to be undone had ended, nobody was told, and the node had no vote for that token for ever."""
    monkeypatch.setattr(node_module, "TOMBSTONE_MS", 100)
    with Proxy(own_nodes[4].port) as fifth:
        backend = open_store([*own_nodes[:4], fifth]).backend
        node, mine = backend._nodes[4], claim(expire=2.0)
        fifth.refuse()
        backend._ledger.bar(node, mine)
        assert node in backend._ledger.barred[mine.token]
        eventually(lambda: not backend._ledger.barred[mine.token], "it counts again", SOON)


@pytest.mark.parametrize("where", ["the thread", "what else is let go of"])
def test_a_node_whose_failure_was_interrupted_is_looked_for(
    own_nodes: list[RedisServer], open_store: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """A signal came when it had just been left out: it had no vote for as long as the process lived."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    backend = open_store(own_nodes).backend
    node = backend._nodes[4]
    error = BackendUnavailable("no answer")
    error.__cause__ = TimeoutError()
    with ExitStack() as stack:
        if where == "the thread":
            stack.enter_context(no_thread("distlock-outage", KeyboardInterrupt()))
        else:
            stack.enter_context(monkeypatch.context()).setattr(node._listener, "reconnect", interrupt)
        with pytest.raises(KeyboardInterrupt):
            node.failed(error)

    def votes() -> bool:
        lock("order:7", expire=30).acquire().release()
        return node.down_since is None

    eventually(votes, "it votes again", SOON)


def test_votes_that_were_given_back_are_to_be_had_again_at_once(quorum: Quorum) -> None:
    """Three had voted, not the lead: for five seconds they took us for a late copy of ourselves."""
    _, harness = quorum
    backend: Any = harness.store.backend

    async def case() -> None:
        key = _key_led_by_the_first(backend)
        others = claim(expire=1.5, name=f"disLock:{key}")
        for node in backend._nodes[:2]:
            assert isinstance(run_blocking(node, partial(node.sync_port().acquire, others, 0)), Granted)
        begun = now()
        await harness.release(await harness.acquire(lock(key, wait=SOON)))
        assert now() - begun < 4.0

    harness.run(case())


def test_a_lease_that_a_silent_node_may_have_still_is_not_lost(quorum: Quorum) -> None:
    """Two have it, two have lost it, and the fifth does not answer: that is no majority, and no loss."""
    servers, harness = quorum

    async def case() -> None:
        lease = await harness.acquire(lock("order:7", expire=60))
        await harness.until(partial(_settled, harness, servers))
        _flush(servers[3])
        _flush(servers[4])
        servers[2].pause()
        try:
            with pytest.raises(BackendUnavailable):
                await harness.extend(lease)
            assert lease.state != "lost"
        finally:
            servers[2].resume()

        async def extended() -> bool:
            try:
                await harness.extend(lease)
            except BackendUnavailable:
                return False
            return True

        await harness.until(extended)
        await harness.release(lease)

    harness.run(case())
