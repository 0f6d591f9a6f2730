"""The port: each verb of the contract is one script, and the waiting is the listener's. One source for both colours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, cast

from ...core.backend import Busy, Claim, Granted, LockInfo, Loss, drift
from ...core.errors import BackendUnavailable
from ...core.runtime import Runtime, now
from .scripts import (
    ACQUIRE,
    ATTACH,
    CANCEL,
    DETACH,
    EXTEND,
    INSPECT,
    NAMES,
    RELEASE,
    REVOKE,
    PackedKeys,
    Script,
    extend_keys,
    keys_of,
    lock_keys,
)
from .transport.listener import Listener, Waiter
from .transport.pool import Reply
from .transport.subscription import Grant

_LOSSES: dict[int, Loss | None] = {0: None, 1: "expired", 2: "taken", 3: "revoked"}

#: Seconds after the store's own time that a sleeper asks again: a millisecond too early would be a question too many.
LATE = 0.002


class ScriptRunner(Protocol):
    """How scripts reach the server: ``wire.ConnectionPool`` or ``wire.LoopConnection``."""

    async def run(
        self, script: Script, keys: PackedKeys, args: tuple[str | int, ...] = (), timeout: float | None = None
    ) -> Reply: ...


class RedisPort:
    def __init__(self, way: ScriptRunner, listener: Listener, runtime: Runtime, index: str) -> None:
        self.runtime = runtime
        self._way = way
        self._listener = listener
        self._index = index

    async def acquire(self, claim: Claim, wait: float | None) -> Granted | Busy:
        if wait == 0:
            return await self._acquire(claim, queue=False)
        listener = self._listener
        listener.expect(claim.token)
        if listener.ready:
            return await self._acquire(claim, queue=True)
        answer = await self._acquire(claim, queue=False)
        if isinstance(answer, Granted):
            return answer
        # The subscription comes before the place in the queue: nobody may be woken who does not hear.
        try:
            await listener.listen(self.runtime)
        except BackendUnavailable:
            # The store has just answered: only the listening fails (killed, no more clients). Who cannot be woken is
            # passed over and keeps its place: it sleeps as long as the lease, or until the listener is back.
            pass
        listener.expect(claim.token)
        return await self._acquire(claim, queue=True)

    async def wait(self, claim: Claim, busy: Busy, seconds: float | None) -> Granted | Busy:
        waiter = self._listener.join(claim.token, self.runtime)
        pause = busy.recheck_after + LATE
        begun = now()
        woken = await self._listener.sleep(waiter, pause if seconds is None else min(pause, seconds))
        granted, waiter.granted = waiter.granted, None
        if granted is not None and (since := _since(waiter, granted)) is not None:
            if now() < since + claim.expire - drift(claim.expire):
                self._listener.remove(claim.token)
                return Granted(granted.fence, since)
            woken = True  # we were stopped for longer than the lease: the store knows whose it is now
        if not woken and (waited := now() - begun) < pause:
            # The caller's time is over, the store's is not: there is nothing new to hear, but less is left.
            return busy._replace(remaining=max(0.001, busy.remaining - waited))
        return await self._acquire(claim, queue=True, place=busy.position)

    async def cancel(self, claim: Claim) -> None:
        self._listener.remove(claim.token)
        await self._way.run(CANCEL, self._keys(claim.name), (claim.token,))

    async def extend(self, claims: Sequence[Claim], timeout: float | None = None) -> list[Loss | None]:
        args = tuple([value for claim in claims for value in (claim.token, _ms(claim.expire))])
        keys = extend_keys([claim.name for claim in claims], self._index)
        answers = await self._way.run(EXTEND, keys, args, timeout)
        return [_LOSSES[answer] for answer in answers]

    async def release(self, claim: Claim, cooldown: float = 0.0) -> Loss | None:
        return _LOSSES[await self._way.run(RELEASE, self._keys(claim.name), (claim.token, _ms(cooldown)))]

    async def detach(self, claim: Claim, transit: str, seconds: float) -> Loss | None:
        return _LOSSES[await self._way.run(DETACH, self._keys(claim.name), (claim.token, transit, _ms(seconds)))]

    async def attach(self, claim: Claim, transit: str) -> Granted | None:
        since = now()
        args = (transit, claim.token, _ms(claim.expire), claim.holder)
        fence = await self._way.run(ATTACH, self._keys(claim.name), args)
        return Granted(fence, since) if fence else None

    async def inspect(self) -> list[LockInfo]:
        names = await self._way.run(NAMES, keys_of(self._index))
        held: list[LockInfo] = []
        for first in range(0, len(names), 500):
            some = [name.decode() for name in names[first : first + 500]]
            lines = await self._way.run(
                INSPECT, keys_of(*(key for name in some for key in (name, f"{{{name}}}:queue")))
            )
            held += [_held(name, line) for name, line in zip(some, lines, strict=True) if line[4] >= 0]
        return held

    async def revoke(self, name: str, fence: int) -> bool:
        return bool(await self._way.run(REVOKE, self._keys(name), (fence,)))

    async def _acquire(self, claim: Claim, *, queue: bool, place: int = 0) -> Granted | Busy:
        since = now()
        args = (claim.token, _ms(claim.expire), int(queue), claim.holder, place or "")
        answer = await self._way.run(ACQUIRE, self._keys(claim.name), args)
        if answer[0]:
            self._listener.remove(claim.token)
            return Granted(answer[1], since)
        _, pause, remaining, place, server_time_us = answer
        if queue:
            waiter = self._listener.join(claim.token, self.runtime)
            waiter.sent_at, waiter.server_time_us = since, server_time_us
        return Busy(pause / 1000, remaining / 1000, place)

    def _keys(self, name: str) -> PackedKeys:
        return lock_keys(name, self._index)


def _since(waiter: Waiter, granted: Grant) -> float | None:
    """Our clock when the lock was handed over, on the safe side, so that the lease need not be confirmed.

    The store tells its own clock at our last question and at the hand-over. Clocks are not compared, only what passed
    on its one between the two; ours may have run 1 % slower meanwhile. None: the news is older than the last answer,
    which said that the lock is somebody else's.
    """
    passed = (granted.at - waiter.server_time_us) / 1_000_000
    return min(now(), waiter.sent_at + passed * 0.99) if passed >= 0 else None


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def _held(name: str, line: list[object]) -> LockInfo:
    fence, state, holder, since, remaining, waiters = cast("tuple[bytes, bytes, bytes, bytes, int, int]", tuple(line))
    return LockInfo(
        name,
        int(fence),
        holder.decode("utf-8", "replace"),
        int(since) / 1_000_000,
        remaining / 1000,
        waiters,
        state.decode(),
    )
