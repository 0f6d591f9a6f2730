"""The port: each verb of the contract is one script, and the waiting is the listener's. One source for both modes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ...core.backend import Busy, Claim, Granted, Loss
from ...core.errors import BackendUnavailable, NotSent
from ...core.runtime import Runtime, now
from .listing import ListingVerbs
from .scripts import ACQUIRE, ATTACH, CANCEL, DETACH, EXTEND, FINISH, RELEASE
from .scripts.calls import Call, Keys, PackedKeys, Script, done_keys, extend_keys
from .transport.errors import may_come_late
from .transport.exchange import Exchange, Reply
from .transport.pipeline import Pipeline
from .transport.server import Server
from .transport.waiter import Waiter

#: What a script answers to a release, a detach, an extension; those of Redlock, too.
LOSSES: dict[int, Loss | None] = {0: None, 1: "expired", 2: "taken", 3: "revoked"}

#: Seconds after the store's own time that a sleeper asks again: a millisecond too early would be a question too many.
RECHECK_MARGIN = 0.002
#: Milliseconds that a release is remembered where a copy of the acquisition may still be on its way.
TOMBSTONE_MS = 5000


class RedisPort(ListingVerbs):
    """The verbs at one server, for callers of one kind."""

    def __init__(self, server: Server, exchange: Exchange, runtime: Runtime, keys: Keys) -> None:
        super().__init__(exchange, keys)
        self.runtime = runtime
        self._server = server
        self._listener = server.listener
        self.confirms = server.address.min_replicas > 0  #: a lock counts only when they have it

    def asking(self) -> RedisPort:
        """The same for a slot that is on its way to this node of a cluster."""
        return RedisPort(self._server, Pipeline.over(self._exchange, asking=True), self.runtime, self._keys)

    async def run(self, script: Script, call: Call, timeout: float | None) -> Reply:
        """One script as it is, for a cluster, which asks for several slots at once."""
        return await self._exchange.run(script, *call, timeout)

    # To take it ----------------------------------------------------------------------------------------------------

    async def acquire(self, claim: Claim, wait: float | None, place: int | None = None) -> Granted | Busy:
        """``place``: where it stands in the queue, for it has waited before, at another node.

        It goes on to stand there: who asks without joining leaves, and while the slot moves no queue is made anew.

        Where the caller's loop is closed without a word during the first question, the lock is held until its lease
        ends, as with ``wait=0``.
        """
        if wait == 0 or (place is None and not self._listener.ready):  # most locks are free: nobody has to listen
            waited = claim.token in self._listener.waiters
            answer = await self._ask(claim, waited, join=False)
            if isinstance(answer, Granted):
                if waited:
                    self._listener.remove(claim.token)
                return answer
            if wait == 0 or answer.busy.final:
                self._give_up(claim)
                return answer.busy
        return await self._join(claim, place)

    async def _ask(self, claim: Claim, waited: bool, join: bool, place: int | None = None) -> Granted | Taken:
        token, server = claim.token, self._server
        # It may stand in the queue: the script's way for a free lock is for those that surely do not.
        asked = waited or place is not None or token in server.ambiguous
        args: tuple[str | int, ...] = (token, _ms(claim.expire), int(join), claim.holder, int(asked), place or "")
        if claim.max_waiters is not None:
            args = (*args, claim.max_waiters)
        since = now()
        try:
            answer = await self._exchange.run(ACQUIRE, self._keys.of(claim.name, token), args)
        except BaseException as error:
            if may_come_late(error):
                server.ambiguous.add(token)
            raise
        return parse_acquire(answer, since)

    async def _join(self, claim: Claim, place: int | None) -> Granted | Busy:
        """Take it, or a place in its queue, as one that listens."""
        listener = self._listener
        waiter = listener.expect(claim, self.runtime)
        if not listener.ready:
            # The subscription comes before the place in the queue: no waiter may be woken that does not hear.
            try:
                await listener.listen(self.runtime)
            except BackendUnavailable:
                # The store has just answered: only the listening fails (killed, no more clients). Who cannot be woken
                # is passed over, and asks again by itself after the lease, or when the listener is back.
                pass
            waiter = listener.expect(claim, self.runtime)
        return await self._ask_for(waiter, place)

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
                if self.confirms:  # it was told by the server alone: asked again, it is confirmed
                    return await self._ask_for(waiter, busy.memo)
                self._listener.remove(claim.token)
                return Granted(*granted)
            waited = now() - begun
            if not woken and waited < recheck_after:
                # The caller's time is over, the store's is not: there is nothing new to hear, but less is left.
                return busy._replace(remaining=max(0.001, busy.remaining - waited))
            waiter = self._listener.expect(claim, self.runtime)  # anew, where the store was closed meanwhile
        return await self._ask_for(waiter, busy.memo)

    async def _ask_for(self, waiter: Waiter, place: int | None) -> Granted | Busy:
        """Ask as one that waits, if it has to."""
        claim, listener, since = waiter.claim, self._listener, now()
        try:
            answer = await self._ask(claim, waiter.sent_at is not None, join=True, place=place)
        except NotSent:
            # What was not asked is not cancelled: no waiter would be left for the listener to read for.
            if place is None:
                listener.remove(claim.token)
            raise
        if isinstance(answer, Granted):
            listener.remove(claim.token)
            return answer
        busy = answer.busy
        if claim.max_waiters is not None and busy.memo is None and busy.record is None:
            busy = busy._replace(full=True)
        if busy.final:
            self._give_up(claim)
        else:
            waiter.sent_at, waiter.server_time_us = since, answer.server_time_us
            if answer.unheard:
                listener.reconnect_if_unheard(waiter)
        return busy

    def _give_up(self, claim: Claim) -> None:
        """It was refused, and asks no more. What has failed before this is not cancelled by the caller."""
        self._listener.remove(claim.token)
        if claim.token in self._server.ambiguous:
            self._server.postpone(claim)  # a copy of it may be on its way, and would run into what comes after it

    async def cancel(self, claim: Claim) -> None:
        self._listener.gave_up(claim.token)
        # A copy of the acquisition may come after this: it is undone once it has come.
        if claim.token in self._server.ambiguous:
            self._server.postpone(claim)
        try:
            await self.cancel_now(claim)
        except BackendUnavailable:
            self._server.postpone(claim)

    def leave(self, token: str) -> None:
        """Who has waited here waits at another node now: a message that is still on its way is no news."""
        self._listener.remove(token)

    async def cancel_now(self, claim: Claim, tombstone_ms: int = TOMBSTONE_MS, fence: int = 0) -> None:
        """``fence``: only the grant that has it, unless its owner has asked since."""
        args = (claim.token, _ms(claim.expire), claim.holder, tombstone_ms, fence)
        await self._exchange.run(CANCEL, self._keys.of(claim.name), args)

    async def extend(self, claims: Sequence[Claim], timeout: float | None = None) -> list[Loss | None]:
        """All of them in one index."""
        return losses(await self._exchange.run(EXTEND, *extension(claims, self._keys), timeout))

    async def release(self, claim: Claim, cooldown: float = 0.0, record: str | None = None) -> Loss | None:
        token, server = claim.token, self._server
        cooldown_ms = _ms(cooldown) if cooldown else 0
        script, keys = RELEASE, self._keys.of(claim.name)
        last: str | int = TOMBSTONE_MS if token in server.ambiguous else 0
        if record is not None and cooldown:  # no tombstone: what is done has its token, and a late copy is told so
            script, keys, last = FINISH, self._done_keys(claim.name), record
        try:
            answer = await self._exchange.run(script, keys, (token, cooldown_ms, last))
        except BackendUnavailable:
            if not cooldown:
                server.postpone(claim)  # it is over: no waiter needs to wait for the rest of its lease
            server.ambiguous.discard(token)  # with a cooldown a late copy finds whose it is
            raise
        loss = LOSSES[answer]
        if loss in ("expired", "taken") and token in server.released:
            return None
        server.ambiguous.discard(token)
        if loss is None:
            server.released.append(token)
        return loss

    def _done_keys(self, name: str) -> PackedKeys:
        return done_keys(name, self._keys.index_of(name), self._keys.done_of(name))

    async def detach(self, claim: Claim, transit: str, seconds: float) -> Loss | None:
        args = (claim.token, transit, _ms(seconds))
        return LOSSES[await self._exchange.run(DETACH, self._keys.of(claim.name), args)]

    async def attach(self, claim: Claim, transit: str) -> Granted | None:
        since = now()
        args = (transit, claim.token, _ms(claim.expire), claim.holder)
        fence = await self._exchange.run(ATTACH, self._keys.of(claim.name), args)
        return Granted(fence, since) if fence else None


class Taken(NamedTuple):
    """What ACQUIRE says of a lock that is another's."""

    busy: Busy
    server_time_us: int
    unheard: bool  #: it has no subscriber of ours


def parse_acquire(answer: Any, since: float) -> Granted | Taken:
    """The four forms that the answer of ACQUIRE has."""
    if type(answer) is int:  # ours, by the way of a lock that was free: the fence is the server's time
        return Granted(answer, since)
    fence, server_time_us, *rest = answer
    if not rest:  # ours, and the server's time beside the fence
        return Granted(fence, since)
    recheck_after, remaining, place, unheard, holder, held, *done = rest  # another's; with a record: done
    record = done[0].decode() if done else None
    who, held_for = holder.decode("utf-8", "replace"), max(0, held) / 1_000_000
    busy = Busy(recheck_after / 1000, remaining / 1000, place or None, who, held_for, record)
    return Taken(busy, server_time_us, bool(unheard))


def extension(claims: Sequence[Claim], keys: Keys) -> tuple[PackedKeys, tuple[str | int, ...]]:
    """What EXTEND is called with, for locks of one index."""
    args = tuple([value for claim in claims for value in (claim.token, _ms(claim.expire))])
    return extend_keys([claim.name for claim in claims], keys.index_of(claims[0].name)), args


def losses(answers: Sequence[int]) -> list[Loss | None]:
    """What EXTEND answers."""
    return [LOSSES[answer] for answer in answers]


def _ms(seconds: float) -> int:
    """A lease in milliseconds; one at least, for to Redis none at all means to delete the key."""
    return max(1, round(seconds * 1000))
