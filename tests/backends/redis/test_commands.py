"""What each cycle sends to the server, and what the server then executes: frozen in ``commands.txt``, to be read.

It changes only with a reason: ``DISTLOCK_FREEZE=1 pytest tests/backends/redis/test_commands.py`` writes it anew.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import redis

from distlock_web import LockBusy
from distlock_web.backends.redis import scripts
from distlock_web.core.backend import SHARED, Claim
from distlock_web.core.runtime import new_token
from distlock_web.locks.lease import scope_of
from distlock_web.testing.harness import PATIENCE, Harness
from tests.support.modes import in_both_modes
from tests.support.redis_lock import the_lock, until_queued
from tests.support.transcript import Transcript

FROZEN = Path(__file__).with_name("commands.txt")


def claim_of(name: str) -> Claim:
    return Claim(f"disLock:{name}", new_token(), 30.0, "a holder")


async def several_processes(harness: Harness, client: redis.Redis, transcript: Transcript) -> None:
    """What they cost that want one lock at once, and what threads of one process do."""
    port = harness.port
    first, *others = (letter * 16 for letter in "abcd")

    def claim(process: str, number: int = 0, expire: float = 55.0) -> Claim:
        token = new_token(process).limited(number) if number else new_token(process)
        return claim_of("many")._replace(token=token, expire=expire)

    with client.pubsub() as listening:  # type: ignore[no-untyped-call]
        listening.subscribe(*(f"distlock:wake:{process}" for process in (first, *others)))
        for _ in range(4):
            assert listening.get_message(timeout=5)
        held, waiting = claim(first, expire=30.0), [claim(process) for process in others]
        await port.acquire(held, 0)
        for each in waiting[:2]:
            await port.acquire(each, 60)
        async with transcript.of("A process queues behind two others"):
            await port.acquire(waiting[2], 60)
        async with transcript.of("It is handed to the first of three processes"):
            await port.release(held)
        for each in waiting:
            await port.release(each)
        threads = [claim(first) for _ in range(3)]
        for each in threads:
            await port.acquire(each, 60)
        await port.release(threads[0])
        async with transcript.of("It is handed on inside a process"):
            await port.release(threads[1])
        async with transcript.of("A thread queues behind others of its process"):
            await port.acquire(again := claim(first, expire=58.0), 60)
        for each in (threads[2], again):
            await port.release(each)
        places = [claim(process, 2) for process in (first, *others[:2])]
        for each in places:
            await port.acquire(each, 60)
        last = claim(others[2], 2)._replace(max_waiters=2)
        async with transcript.of("The queue for two places has room for one more"):
            await port.acquire(last, 60)
        await port.cancel(last)
        async with transcript.of("One of two places is handed on"):
            await port.release(places[0])
        for each in places[1:]:
            await port.release(each)
        for number, of in ((2, "two"), (40, "many")):
            readers = [claim(first, SHARED) for _ in range(number)]
            for each in readers:
                await port.acquire(each, 0)
            async with transcript.of(f"One of {of} readers leaves"):
                await port.release(readers[0])
            if number > 2:
                await port.acquire(writer := claim(others[0], expire=58.0), 60)
                async with transcript.of("The same, and a writer waits"):
                    await port.release(readers[1])
                await port.cancel(writer)
            for each in readers:
                await port.release(each)


@in_both_modes
async def test_the_commands_of_each_cycle(harness: Harness, redis_store: str, redis_client: redis.Redis) -> None:
    transcript = Transcript(redis_client, scripts, housekeeping=3)

    async def wait() -> None:
        async with harness.inside(the_lock(wait=60)):
            pass

    async def hand_over() -> None:
        waiting = harness.unrelated(wait)
        await until_queued(harness, redis_client)
        await harness.release(held)
        await waiting.result()

    async def extend() -> None:
        mine = scope_of(held).acquired[0].claim._replace(expire=90.0)
        assert await harness.store.renewal_port().extend([mine], PATIENCE) == [None]

    # Connected, and listening, and every script is known.
    held = await harness.acquire(the_lock())
    await harness.extend(held)
    await extend()
    await hand_over()

    async with transcript.of("A free lock, acquired and released"):
        await harness.release(await harness.acquire(the_lock()))
    async with transcript.of("The same under a name that nobody has used"):
        await harness.release(await harness.acquire(the_lock(prefix="new:")))
    held = await harness.acquire(the_lock())
    async with transcript.of("A lock that is busy"):
        with pytest.raises(LockBusy):  # of one whose lease would be the longer: the listing need not be put right
            await harness.unrelated(lambda: harness.acquire(the_lock(expire=40))).result()
    async with transcript.of("A lease is extended"):
        await harness.extend(held, 60)
    async with transcript.of("A lease is renewed"):
        await extend()
    async with transcript.of("A caller queues, is handed the lock, and releases it"):
        await hand_over()
    async with transcript.of("A detached lease, attached"):
        ticket = await harness.detach(await harness.acquire(the_lock()), 60)
        held = await harness.attach(ticket)
    await harness.release(held)
    async with transcript.of("A lock that is kept for a while after its end"):
        await harness.release(await harness.acquire(the_lock(prefix="cool:", hold_at_least=30)))
    async with transcript.of("The first of two places, and the second"):
        places = [await harness.acquire(the_lock(prefix="two:", limit=2)) for _ in range(2)]
    async with transcript.of("Both are given back"):
        for place in places:
            await harness.release(place)
    await several_processes(harness, redis_client, transcript)
    finished, again = (claim_of("once") for _ in range(2))
    async with transcript.of("What is done once, and asked for again"):
        await harness.port.acquire(finished, 0)
        await harness.port.release(finished, 60, "{}")
        await harness.port.acquire(again, 0)
    assert transcript.is_frozen_in(FROZEN)
