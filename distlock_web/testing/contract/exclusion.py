"""One caller is inside at a time, and the store shows which (laws 1 and 5)."""

from __future__ import annotations

from distlock_web import lock, request_scope
from distlock_web.core.backend import Busy, Claim
from distlock_web.core.keys import MAX_NAME_BYTES
from distlock_web.core.runtime import Token, new_token, now

from ..harness import Harness
from .base import KEY, NAME, PREFIX, Cases, case, claim, ending, the_lock

HOSTILE_KEYS = {
    "spaces": "a b  c",
    "newlines": "a\r\nDEL x\n",
    "braces": "}a{:{b",
    "nul": "a\0b",
    "emoji": "🔒" * 80,
    "long": "k" * 10_000,
    "colons": "a::b:queue",
    "percent": "%7Ba%00",
    "surrogate": "\ud800",
    "glob": "*?[a-z]",
}


class ExclusionCases(Cases):
    @case
    async def test_a_read_sleep_write_counter_loses_nothing(self, harness: Harness) -> None:
        count = 0

        async def buy() -> None:
            nonlocal count
            for _ in range(5):
                async with harness.inside(the_lock(wait=None)):
                    seen = count
                    await harness.sleep(0.001)
                    count = seen + 1

        for buyer in [harness.unrelated(buy) for _ in range(8)]:
            await buyer.result()
        assert count == 40
        assert await harness.line(NAME) is None

    @case
    async def test_only_the_owners_token_opens_it_and_what_is_public_proves_nothing(self, harness: Harness) -> None:
        """Not another token, nor the request id, the holder's words, the fence and the name."""
        with request_scope("known-to-everybody"):
            lease = await harness.acquire(the_lock())
        line = await harness.shown(NAME)
        for guess in (new_token(), "known-to-everybody", line.holder, str(lease.fence), NAME, "*"):
            unrelated = Claim(NAME, Token(guess), 30.0)
            assert await harness.port.release(unrelated) == "taken"
            assert await harness.port.extend([unrelated]) == ["taken"]
            await harness.port.cancel(unrelated)
            assert await harness.port.attach(unrelated, "x") is None
            if harness.store.backend.capabilities.transfer:
                assert await harness.port.detach(unrelated, "x", 10) == "taken"
        await harness.extend(lease)
        await harness.release(lease)

    @case
    async def test_other_keys_and_other_prefixes_are_other_locks(self, harness: Harness) -> None:
        async with (
            harness.inside(the_lock()),
            harness.inside(lock(KEY + "1", prefix=PREFIX)),
            harness.inside(lock(KEY, prefix="other:")),
            harness.inside(lock(KEY.upper(), prefix=PREFIX)),
        ):
            assert len(await harness.port.inspect()) == 4

    @case
    async def test_any_text_can_be_a_key(self, harness: Harness) -> None:
        names = set()
        for text in HOSTILE_KEYS.values():
            hostile = lock(text, prefix=PREFIX, wait=0)
            async with harness.inside(hostile) as lease:
                assert await _refused(harness, text)
                assert await harness.line(lease.name) is not None
                assert not {"{", "}", "\0", "\n"} & set(lease.name)
                assert len(lease.name.encode()) <= MAX_NAME_BYTES
                names.add(lease.name)
            assert await harness.line(lease.name) is None
        assert len(names) == len(HOSTILE_KEYS)

    @case
    async def test_the_shortest_lease_can_be_taken(self, harness: Harness) -> None:
        await ending(harness, harness.store.backend.capabilities.min_expire)

    @case
    async def test_inspect_shows_who_holds_what_and_since_when(self, harness: Harness) -> None:
        with request_scope("req-1", "POST /pay"):
            lease = await harness.acquire(the_lock(expire=20))
            other = await harness.acquire(lock("sooner", prefix=PREFIX, expire=10))
            lines = sorted(await harness.port.inspect(), key=lambda line: line.remaining)
            assert [line.name for line in lines] == ["test:sooner", NAME]
            line = lines[1]
            assert "req-1" in line.holder
            assert "POST /pay" in line.holder
            assert line.fence == lease.fence
            assert lease.remaining < line.remaining <= 20
            assert (line.state, line.waiters) == ("held", 0)
            assert line.since > 1_600_000_000, "seconds since the epoch"
            await harness.release(other)
            await harness.release(lease)
        assert await harness.port.inspect() == []

    @case
    async def test_inspect_shows_some_names_and_only_those(self, harness: Harness) -> None:
        async with harness.inside(the_lock()) as lease, harness.inside(lock("other", prefix=PREFIX)):
            assert [line.name for line in await harness.port.inspect([NAME, "test:nobody"])] == [lease.name]
            assert await harness.port.inspect(["test:nobody"]) == []
            assert await harness.port.inspect([]) == []
            assert len(await harness.port.inspect()) == 2

    @case
    async def test_what_a_store_says_of_the_holder_is_right(self, harness: Harness) -> None:
        """``holder`` and ``held_for`` of ``Busy`` may be left out."""
        async with harness.inside(the_lock()):
            begun = now()
            (line,) = await harness.port.inspect([NAME])
            await harness.sleep(0.05)
            for wait in (0, 5):
                other, asked = claim(), now()
                answer = await harness.port.acquire(other, wait)
                assert isinstance(answer, Busy)
                assert answer.holder in ("", line.holder)
                if answer.held_for is not None:
                    assert asked - begun - 0.02 <= answer.held_for <= now() - begun + 1
                await harness.port.cancel(other)


async def _refused(harness: Harness, text: str) -> bool:
    async def second() -> bool:
        return await harness.try_acquire(lock(text, prefix=PREFIX, wait=0)) is None

    return await harness.unrelated(second).result()
