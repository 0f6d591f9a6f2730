"""The port: each verb of the contract is one script, and the waiting is the listener's. One source for both modes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ...core.backend import Busy, Claim, Granted, LockInfo, Loss, WaiterInfo
from ...core.errors import BackendUnavailable
from ...core.runtime import Runtime, now
from .listing import infos
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
    WAITERS,
    PackedKeys,
    Script,
    extend_keys,
    lock_keys,
    pack_keys,
    queue_of,
)
from .transport.clock import ServerClock
from .transport.listener import Listener
from .transport.replicas import GivesLock, TooFewReplicas
from .transport.waiter import Waiter

_LOSSES: dict[int, Loss | None] = {0: None, 1: "expired", 2: "taken", 3: "revoked"}

#: Seconds after the store's own time that a sleeper asks again: a millisecond too early would be a question too many.
RECHECK_MARGIN = 0.002
#: Seconds that a place in a queue outlives the lease that it is for: GRACE of ``_queue.lua``, a millisecond for each of
#: a thousand places in front, and some more.
PLACE_OUTLIVES = 20.0
#: Milliseconds that a release is remembered where a copy of the acquisition may still be on its way.
TOMBSTONE_MS = 5000
#: Releases that are remembered. The server remembers none: it would cost every one of them a command.
RELEASED_TOKENS_KEPT = 500
#: Names in one request for the listing: the server runs a script alone, so one must not be long.
BATCH = 200
NAMES_BATCH = 1000


class ScriptRunner(Protocol):
    """How scripts reach the server: ``ConnectionPool`` or ``LoopConnection``."""

    async def run(
        self,
        script: Script,
        keys: PackedKeys,
        args: tuple[str | int, ...] = (),
        timeout: float | None = None,
        confirm: GivesLock | None = None,
    ) -> Any: ...


class RedisPort:
    def __init__(
        self,
        runner: ScriptRunner,
        runtime: Runtime,
        listener: Listener,
        clock: ServerClock,
        index: str,
        answer_timeout: float,
        postpone: Callable[[Claim, float], None],
        confirm: bool = False,
    ) -> None:
        self.runtime = runtime
        self._runner = runner
        self._listener = listener
        self._clock = clock
        self._index = index
        self._answer_timeout = answer_timeout  #: seconds after which nobody waits for an answer any more
        self._confirm = confirm  #: a lock counts only when ``min_replicas`` have it
        self._postpone = postpone  #: cancel this claim once the server answers again, not before so many seconds
        self._ambiguous: set[str] = set()  # tokens of which a copy of the acquisition may still be on its way
        self._released: dict[str, None] = {}  # tokens that were released lately: a second time is no loss

    async def acquire(self, claim: Claim, wait: float | None, fence: int = 0) -> Granted | Busy:
        """``fence``: the one to give it, where several servers have to agree; see ``acquire.lua``."""
        if wait == 0:
            answer = await self._acquire(claim, None, 0, fence)
            if isinstance(answer, Busy) and claim.token in self._ambiguous and not fence:
                # It is given up, and nobody cancels what has failed before this: a copy of it may be on its way. Where
                # there is a fence, one of several servers is asked, and the same token may ask again.
                self._cancel_later(claim)
            return answer
        listener = self._listener
        waiter = listener.expect(claim, self.runtime)
        if not listener.ready:
            answer = await self._acquire(claim, None, 0, fence)
            if isinstance(answer, Granted):
                listener.remove(claim.token)
                return answer
            # The subscription comes before the place in the queue: nobody may be woken who does not hear.
            try:
                await listener.listen(self.runtime)
            except BackendUnavailable:
                # The store has just answered: only the listening fails (killed, no more clients). Who cannot be woken
                # is passed over, and asks again by itself after the lease, or when the listener is back.
                pass
            waiter = listener.expect(claim, self.runtime)
        return await self._acquire(claim, waiter, 0, fence)

    async def wait(self, claim: Claim, busy: Busy, seconds: float | None) -> Granted | Busy:
        waiter = self._listener.expect(claim, self.runtime)
        recheck_after = busy.recheck_after + RECHECK_MARGIN
        if waiter.sent_at is not None:
            begun = now()
            woken = await self._listener.sleep(
                waiter, recheck_after if seconds is None else min(recheck_after, seconds)
            )
            granted = waiter.granted_since()
            if granted is not None:
                if self._confirm:  # it was told by the server alone: asked again, it is confirmed
                    return await self._acquire(claim, waiter, busy.position)
                self._listener.remove(claim.token)
                return Granted(*granted)
            waited = now() - begun
            if not woken and waited < recheck_after:
                # The caller's time is over, the store's is not: there is nothing new to hear, but less is left.
                return busy._replace(remaining=max(0.001, busy.remaining - waited))
            waiter = self._listener.expect(claim, self.runtime)  # anew, where the store was closed meanwhile
        return await self._acquire(claim, waiter, busy.position)

    async def cancel(self, claim: Claim) -> None:
        self._listener.gave_up(claim.token)
        # A copy of the acquisition may come after this: it does nothing once its time is over, or is undone then.
        if claim.token in self._ambiguous:
            self._cancel_later(claim)
        try:
            await self.cancel_now(claim)
        except BackendUnavailable:
            self._cancel_later(claim)

    def _cancel_later(self, claim: Claim) -> None:
        """When the server answers, and a copy of the acquisition that may be on its way has come, or does nothing."""
        ambiguous = claim.token in self._ambiguous
        self._ambiguous.discard(claim.token)
        self._postpone(claim, self._answer_timeout if ambiguous else 0.0)

    def stop_waiting(self, token: str) -> None:
        """This token waits here no longer: it has the lock, has given up, or waits at another server."""
        self._listener.remove(token)

    def forget(self, token: str) -> None:
        """Somebody else sees to it that no late copy of its acquisition stays."""
        self._ambiguous.discard(token)

    async def cancel_now(self, claim: Claim, tombstone_ms: int = TOMBSTONE_MS, fence: int = 0) -> None:
        """``fence``: only the grant that has it, unless its owner has asked since."""
        args = (claim.token, _ms(claim.expire), claim.holder, tombstone_ms, fence)
        await self._runner.run(CANCEL, self._keys(claim.name), args)

    async def extend(self, claims: Sequence[Claim], timeout: float | None = None) -> list[Loss | None]:
        keys, args = self._extension(claims)
        answers = await self._runner.run(EXTEND, keys, args, timeout, _extends if self._confirm else None)
        return [_LOSSES[answer] for answer in answers]

    def _extension(self, claims: Sequence[Claim]) -> tuple[PackedKeys, tuple[str | int, ...]]:
        args = tuple([value for claim in claims for value in (claim.token, _ms(claim.expire))])
        return extend_keys([claim.name for claim in claims], self._index_of(claims[0].name)), args

    async def release(self, claim: Claim, cooldown: float = 0.0) -> Loss | None:
        token = claim.token
        tombstone = TOMBSTONE_MS if token in self._ambiguous else 0
        cooldown_ms = _ms(cooldown) if cooldown else 0
        try:
            answer = await self._runner.run(RELEASE, self._keys(claim.name), (token, cooldown_ms, tombstone))
        except BackendUnavailable:
            if not cooldown:
                self._cancel_later(claim)  # it is over: nobody has to wait for the rest of its lease
            raise
        loss = _LOSSES[answer]
        if loss in ("expired", "taken") and token in self._released:
            return None
        self._ambiguous.discard(token)
        if loss is None:
            self._released[token] = None
            if len(self._released) > 2 * RELEASED_TOKENS_KEPT:
                for old in list(self._released)[:RELEASED_TOKENS_KEPT]:
                    self._released.pop(old, None)
        return loss

    async def detach(self, claim: Claim, transit: str, seconds: float) -> Loss | None:
        return _LOSSES[await self._runner.run(DETACH, self._keys(claim.name), (claim.token, transit, _ms(seconds)))]

    async def attach(self, claim: Claim, transit: str) -> Granted | None:
        since = now()
        args = (transit, claim.token, _ms(claim.expire), claim.holder)
        fence = await self._runner.run(ATTACH, self._keys(claim.name), args, None, bool if self._confirm else None)
        return Granted(fence, since) if fence else None

    async def inspect(self, names: Sequence[str] | None = None) -> list[LockInfo]:
        if names is None:
            _, names = await self.names()
        held: list[LockInfo] = []
        for first in range(0, len(names), BATCH):
            some = names[first : first + BATCH]
            held += infos(some, await self._runner.run(INSPECT, _inspected(some)))
        return held

    async def names(self, limit: int | None = None) -> tuple[int, list[str]]:
        total, found = await self._names(self._index, limit)
        return total, [name for name, _ in found]

    async def _names(self, index: str, limit: int | None) -> tuple[int, list[tuple[str, float]]]:
        """How many this index lists, and the first of them, with the µs at which their leases end."""
        total, found = 0, dict[str, float]()  # one that is renewed meanwhile comes twice
        end, known = "", 0
        while limit is None or len(found) < limit:
            total, *part = await self._runner.run(NAMES, pack_keys(index), (end, known, NAMES_BATCH))
            found.update(_ends(part))
            if len(part) < 2 * NAMES_BATCH:
                break
            last = part[-1].decode()
            known = part[1::2].count(part[-1]) + (known if last == end else 0)
            end = last
        return total, list(found.items())[:limit]

    async def waiters(self, name: str, limit: int) -> list[WaiterInfo]:
        answer = await self._runner.run(WAITERS, pack_keys(name, queue_of(name)), (limit,))
        found = sorted(zip(map(float, answer[1::2]), answer[::2], strict=True))
        return [WaiterInfo(holder.decode("utf-8", "replace"), place / 1_000_000) for place, holder in found[:limit]]

    async def revoke(self, name: str, fence: int) -> bool:
        return bool(await self._runner.run(REVOKE, self._keys(name), (fence,)))

    async def _acquire(self, claim: Claim, waiter: Waiter | None, place: int = 0, fence: int = 0) -> Granted | Busy:
        """Ask for the lock; with a waiter, join its queue where it is not to be had."""
        confirm = _grants if self._confirm else None
        somewhere = "?" if claim.token in self._ambiguous or self._listener.may_be_queued(claim.token) else ""
        # Half of it: by then the connection is in doubt, and this may have been asked again on another one.
        for until in (self._clock.after(self._answer_timeout / 2), ""):
            since = now()
            args: tuple[str | int, ...]
            args = (claim.token, _ms(claim.expire), int(waiter is not None), claim.holder, place or somewhere, until)
            if fence:
                args = (*args, fence)
            try:
                answer = await self._runner.run(ACQUIRE, self._acquire_keys(claim), args, None, confirm)
            except BackendUnavailable as error:
                if not isinstance(error, TooFewReplicas):  # else it is ours, and who gives up asking cancels it
                    self._ambiguous.add(claim.token)
                raise
            given, server_time_us, *rest = (answer, answer) if type(answer) is int else answer
            self._clock.heard(server_time_us, since)
            if given >= 0:
                break
            # We are here still, so it is not too late for us: our event loop was, or the server's clock was set.
        if given > 0:
            self.stop_waiting(claim.token)
            return Granted(given, since)
        busy, unheard = _busy(*rest)
        if waiter is not None:
            waiter.sent_at, waiter.server_time_us = since, server_time_us
            if unheard:
                self._listener.reconnect_if_unheard(waiter)
        return busy

    def _index_of(self, name: str) -> str:
        return self._index

    def _keys(self, name: str) -> PackedKeys:
        return lock_keys(name, self._index)

    def _acquire_keys(self, claim: Claim) -> PackedKeys:
        """ACQUIRE's may be more."""
        return lock_keys(claim.name, self._index)


def _busy(recheck_after: int, remaining: int, place: int, unheard: int, holder: bytes, held: int) -> tuple[Busy, bool]:
    """What ACQUIRE says of a lock that is somebody else's; and whether nobody hears us on its server."""
    who, since = holder.decode("utf-8", "replace"), max(0, held) / 1_000_000
    return Busy(recheck_after / 1000, remaining / 1000, place, who, since), bool(unheard)


def _grants(answer: Any) -> bool:
    """Of ACQUIRE: the lock is ours."""
    return type(answer) is int or (type(answer) is list and answer[0] > 0)


def _extends(answers: Any) -> bool:
    """Of EXTEND: at least one of them is ours still."""
    return type(answers) is list and 0 in answers


def _ms(seconds: float) -> int:
    """A lease in milliseconds; one at least, for to Redis none at all means to delete the key."""
    return max(1, round(seconds * 1000))


def _ends(part: Sequence[bytes]) -> dict[str, float]:
    """Names and the ends of their leases, of a part of what NAMES answers.

    Another program may have put in what is no name of ours: such a one is not held, and hides none that is.
    """
    return {name.decode("utf-8", "replace"): float(end) for name, end in zip(part[::2], part[1::2], strict=True)}


def _inspected(names: Sequence[str]) -> PackedKeys:
    return pack_keys(*(key for name in names for key in (name, queue_of(name))))
