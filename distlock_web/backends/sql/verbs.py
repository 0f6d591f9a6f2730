"""The verbs, as transactions on the row of a name: each locks it, looks, changes it, and commits."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from ...core.backend import Busy, Claim, Granted, LockInfo, Loss
from ...core.errors import BackendUnavailable, DistLockError
from ...core.runtime import DICE, Token, now
from ...kit.blocking_port import BlockingVerbs
from ...kit.outage import Outage
from .database import Database, Locked, NoConnectionFree, Transaction, Unopened, in_transaction
from .locked_row import GRACE, LockedRow, as_info, lock_rows, microseconds, purge, purge_ended
from .news import Poller
from .shares import SEVERAL, Shares
from .tables import MICROSECONDS, key_of

logger = logging.getLogger("distlock_web")
T = TypeVar("T")

#: Seconds after which an unused name is forgotten: no copy of a request is on its way for so long.
FORGET_AFTER = 600.0
#: One of so many new names purges old ones, more of them than have come meanwhile.
PURGE_ONE_IN = 200
#: Seconds that a place in the queue outlives two leases: those that one sleeps at most who stands there (``join``).
PLACE_OUTLIVES = GRACE / MICROSECONDS + 5.0
#: Seconds until a claim is cancelled, or released, again whose row others keep locked.
TRY_AGAIN = 0.5
#: Seconds after which one asks again, between these two, who did not get to the row.
CROWDED = (0.05, 0.25)
#: Seconds for which it is worth while to wait for a row that others keep locked.
MIN_SHARE = 0.05


class SQLVerbs(BlockingVerbs):
    """Blocking, for any thread. ``news`` tells those who wait here what others have done.

    ``reserve``: for those that have a lock, when those that want one have all connections of ``database``.
    """

    def __init__(self, database: Database, reserve: Database, news: Poller, outage: Outage) -> None:
        self._database = database
        self._reserve = reserve
        self._news = news
        self._outage = outage

    def acquire(self, claim: Claim, join: bool, place: int | None) -> Granted | Busy:
        ready = join and self._news.ready()
        answer = self._ask(claim, ready, place)
        if join and isinstance(answer, Busy):
            if not ready:
                # Nothing is listened to until a caller has to wait. Heard of from before its place in the queue on.
                self._news.start(claim.token, self._database.address.timeout)
                answer = self._ask(claim, True, place)
            if isinstance(answer, Busy) and not answer.final:
                self._news.expect(claim.token, claim.name)
        return answer

    def _ask(self, claim: Claim, join: bool, place: int | None) -> Granted | Busy:
        since, new = now(), False

        def work(transaction: Transaction) -> Granted | Busy:
            nonlocal new
            row = LockedRow.lock(transaction, claim.name, claim.token)
            new = row.new
            if row.new:
                row.read_clock()
            if claim.once:
                row.find_record()
            answer = _take(row, claim, since) or _wait(row, claim, join, place)
            row.save()
            return answer

        try:
            answer = self._database.run(work)
        except Unopened:  # to look would wait for as long again
            raise
        except Locked:
            crowded = self._look(claim, place)
            if crowded is None:
                raise
            return crowded
        if new and DICE.randrange(PURGE_ONE_IN) == 0:
            # Aside: this caller has just got a lock, and the time of its lease runs.
            self._outage.postpone(self._purge, after=0.0, within=FORGET_AFTER)
        return answer

    def _look(self, claim: Claim, place: int | None) -> Busy | None:
        """What a claim is told that does not get to the row for all the others: who has the lock, if anybody has.

        One that waits may have been handed it meanwhile: it asks again.
        """
        tables = self._database.tables
        for row in self._database.read(tables.taken, {"keys": [key_of(claim.name)]}):
            if row.state == SEVERAL and not place:
                shares = Shares(self._database.read(tables.shares, {"keys": [row.name_key]}), row.now)
                if shares.get(claim.token) is not None or shares.admits(claim.token):
                    break
            if row.token != claim.token or place:
                info, held_for = as_info(row, 0), max(row.now - row.since, 0) / MICROSECONDS
                asked_again = min(info.remaining, DICE.uniform(*CROWDED))
                record = self._record_of(row) if info.state == "done" else None
                if record is not None and place:
                    self._cancel_later(claim)  # its place in the queue
                return Busy(asked_again, info.remaining, place, info.holder, held_for, record)
        return None

    def _record_of(self, row: Any) -> str | None:
        kept = self._database.read(self._database.tables.kept, {"key": row.name_key, "of": row.fence})
        return kept[0].record if kept else None

    def _purge(self) -> None:
        try:
            self._database.run(lambda transaction: purge(transaction, FORGET_AFTER))
            for ended in self._database.tables.ended:
                self._database.run(partial(purge_ended, ended=ended, age=FORGET_AFTER))
        except DistLockError as error:  # the next one purges
            logger.info("Rows of unused lock names could not be deleted: %s", error)

    def cancel(self, claim: Claim) -> None:
        if in_transaction():
            self._cancel_later(claim)
            return
        try:
            self._cancel(claim)
        except BackendUnavailable:
            self._cancel_later(claim)
            raise

    def _cancel_later(self, claim: Claim) -> None:
        self._later(partial(self._cancel, claim), claim)

    def _later(self, work: Callable[[], object], claim: Claim, after: float = 0.0, until: float | None = None) -> None:
        """When the database answers; until the place in the queue must have ended by itself."""
        over = now() + 2 * claim.expire + PLACE_OUTLIVES if until is None else until

        def do() -> None:
            try:
                work()
            except Locked:  # its row is in no other caller's way
                self._later(work, claim, TRY_AGAIN, over)

        self._outage.postpone(do, after=after, within=over - now())

    def _cancel(self, claim: Claim) -> None:
        def work(transaction: Transaction) -> None:
            row = LockedRow.lock(transaction, claim.name, claim.token)
            if row.new:  # or this claim's own transaction is not committed yet: to make it waits for that one's end
                row.read_clock()
                row.expires_at = row.now
            row.leave(claim.token)
            owner = row.owner(claim.token)
            if owner is not None and owner.state in ("held", "granted", "transit"):
                row.let_go(claim.token)
            elif row.state == SEVERAL:
                row.pass_on()  # those behind it may fit beside those that have it
            row.save()

        self._database.run(work)  # not on the reserve: it comes of a row that is kept locked, perhaps, and can wait

    def extend(self, claims: Sequence[Claim], timeout: float | None) -> Sequence[Loss | BackendUnavailable | None]:
        """Several are extended together, and none waits for a row that others keep locked.

        So one such row fails the renewal of its own lease only. The rows that are left are waited for one by one.
        """
        seconds = self._outage.seconds_for(timeout)
        until = now() + seconds
        answers: dict[Claim, Loss | BackendUnavailable | None] = {}
        answers.update(self._extend(claims, seconds, wait=len(claims) == 1))
        for claim in claims:
            if claim not in answers:
                answers.update(self._extend_late(claim, (until - now()) / 2))
        return [answers[claim] for claim in claims]

    def _extend_late(self, claim: Claim, share: float) -> Mapping[Claim, Loss | BackendUnavailable | None]:
        if share < MIN_SHARE:
            return {claim: Locked(f"{self._database.address.name} keeps the row of {claim.name!r} locked.")}
        try:
            return self._extend([claim], share, wait=True)
        except BackendUnavailable as error:
            return {claim: error}

    def _extend(self, claims: Sequence[Claim], seconds: float, *, wait: bool) -> dict[Claim, Loss | None]:
        """Those whose rows are free; with ``wait`` all."""

        def work(transaction: Transaction) -> dict[Claim, Loss | None]:
            rows = lock_rows(transaction, claims, wait)
            keys = defaultdict(list)
            for claim in claims:
                row = rows[claim.name]
                owner = row.held_by(claim.token)
                if owner is row:
                    keys[row.now + microseconds(claim.expire)].append(row.key)
                elif owner is not None:
                    row.confirm(owner, claim.expire)
            for row in rows.values():
                row.save()  # where several have the lock
            for until, those in keys.items():
                transaction.run(transaction.tables.extend, {"keys": sorted(those), "until": until})
            return {
                claim: None if rows[claim.name].held_by(claim.token) else rows[claim.name].loss(claim.token)
                for claim in claims
                if wait or not rows[claim.name].new
            }

        return self._run_for_holder(work, seconds)

    def release(self, claim: Claim, cooldown: float, record: str | None) -> Loss | None:
        if in_transaction():
            if cooldown:  # a cancellation would leave nothing
                self._release_later(claim, cooldown, record)
            else:
                self._cancel_later(claim)
            return None
        try:
            return self._release(claim, cooldown, record)
        except BackendUnavailable:
            if not cooldown:
                self._cancel_later(claim)  # it is over: no waiter needs to wait for the rest of its lease
            raise

    def _release_later(self, claim: Claim, cooldown: float, record: str | None) -> None:
        """Its caller has been told that it is done: what is lost until then, only the log can say."""
        ends = now() + cooldown

        def work() -> None:
            left = ends - now()
            try:
                loss = self._release(claim, left, record)
                why = loss and f"its lease was over ({loss})."
            except BackendUnavailable:
                raise
            except DistLockError as error:
                why = str(error)
            if why and left > 0:
                doubt = "" if record is None else " Its run is not recorded as done: the next call runs again."
                text = "Lock %s could not be kept for another %.1f s after its release: %s%s"
                logger.warning(text, claim.name, left, why, doubt)

        self._later(work, claim)

    def _release(self, claim: Claim, cooldown: float, record: str | None) -> Loss | None:
        def work(transaction: Transaction) -> Loss | None:
            return release(LockedRow.lock(transaction, claim.name, claim.token), claim.token, cooldown, record)

        return self._run_for_holder(work)

    def detach(self, claim: Claim, transit: str, seconds: float) -> Loss | None:
        def work(transaction: Transaction) -> Loss | None:
            row = LockedRow.lock(transaction, claim.name, claim.token)
            if row.taken and row.token == transit:
                return None
            if not row.held_by(claim.token):
                loss = row.loss(claim.token)
                row.save()  # who was found dead on the way leaves the queue once
                return loss
            row.token, row.state = transit, "transit"
            row.end_at(row.now + microseconds(seconds))
            row.save()
            return None

        return self._run_for_holder(work)

    def attach(self, claim: Claim, transit: str) -> Granted | None:
        since = now()

        def work(transaction: Transaction) -> Granted | None:
            row = LockedRow.lock(transaction, claim.name, claim.token)
            if row.held_by(claim.token):  # a second copy; it may have been extended since
                row.confirm(row, claim.expire)
            elif row.taken and row.token == transit and row.state == "transit":
                row.token, row.state, row.holder = claim.token, "held", claim.holder
                row.end_at(row.now + microseconds(claim.expire))
            else:
                return None
            row.save()
            return Granted(row.fence, since)

        return self._database.run(work)

    def inspect(self, names: Sequence[str] | None) -> list[LockInfo]:
        if names is not None and not names:
            return []

        def work(transaction: Transaction) -> list[LockInfo]:
            tables = transaction.tables
            keys = {} if names is None else {"keys": [key_of(name) for name in names]}
            held = transaction.run(tables.taken if keys else tables.held, keys).all()
            counted = transaction.run(tables.waiters_of if keys else tables.waiters, keys).all() if held else ()
            waiters = {row.name_key: row.waiters for row in counted}
            shared, shares = [row.name_key for row in held if row.state == SEVERAL], defaultdict(list)
            for share in transaction.run(tables.shares, {"keys": shared}).all() if shared else ():
                shares[share.name_key].append(share)
            lines = list[LockInfo]()
            for row in held:
                waiting = waiters.get(row.name_key, 0)
                if row.state == SEVERAL:
                    lines += Shares(shares[row.name_key], row.now).lines(row, waiting)
                else:
                    lines.append(as_info(row, waiting))
            return lines

        return self._database.run(work, begin=False)  # it reads: on SQLite it would wait for the write lock

    def done(self, limit: int) -> list[LockInfo]:
        return [as_info(row, 0) for row in self._database.read(self._database.tables.done, {"limit": limit})]

    def revoke(self, name: str, fence: int) -> bool:
        return self._end(name, fence, done=False)

    def forget(self, name: str, fence: int) -> bool:
        return self._end(name, fence, done=True)

    def _end(self, name: str, fence: int, *, done: bool) -> bool:
        def work(transaction: Transaction) -> bool:
            row = LockedRow.lock(transaction, name)
            owner = next((owner for owner in row.owners if owner.fence == fence), None)
            if owner is None or (row.state == "done") is not done:
                row.save()  # who was found dead on the way leaves the queue once
                return False
            row.revoke(owner)
            if done:
                row.forget_record()
            row.save()
            return True

        return self._database.run(work)

    def _run_for_holder(self, work: Callable[[Transaction], T], timeout: float | None = None) -> T:
        try:
            return self._database.run(work, timeout)
        except NoConnectionFree:
            return self._reserve.run(work, timeout)


def _take(row: LockedRow, claim: Claim, since: float) -> Granted | None:
    """The lock, if it is free and this claim's turn, or this claim's already."""
    owner = row.held_by(claim.token)
    if owner is not None:
        row.confirm(owner, claim.expire)
    elif row.admits(claim.token) and not row.is_of_the_past(claim.token):
        if not row.taken:
            row.end_lease()
        if not (row.queued and row.hand_over(asking=claim.token)) and row.admits(claim.token):
            row.leave(claim.token)
            row.own(claim.token, claim.holder, microseconds(claim.expire), "held")
            owner = row.held_by(claim.token)
    return None if owner is None else Granted(owner.fence, since)


def release(row: LockedRow, token: Token, cooldown: float, record: str | None) -> Loss | None:
    owner = row.held_by(token)
    if owner is None:
        known = row.owner(token)
        if row.released != token and not (known is not None and known.state == "cooldown"):
            row.save()  # who was found dead on the way leaves the queue once
            return row.loss(token)
        if row.taken and row.state == "done":
            row.send_away()  # the first copy may not have told all
        return None
    row.released = token
    if cooldown > 0 and record is not None:
        row.finish(cooldown, record)
    elif cooldown > 0:
        row.cool_down(owner, cooldown)
    else:
        row.let_go(token)
    row.save()
    return None


def _wait(row: LockedRow, claim: Claim, join: bool, place: int | None) -> Busy:
    record, remaining = row.record if row.taken else None, row.remaining(claim.token)
    if record is not None:
        row.leave(claim.token)
    # A copy that comes late, of one that has given back its place among several, is no waiter.
    late = claim.token.limit > 1 and row.is_of_the_past(claim.token)
    if record is not None or late or not (join and row.taken):
        return Busy(remaining, remaining, holder=row.holder, held_for=row.held_for, record=record)
    if claim.max_waiters is not None and not place and row.is_full(claim.token, claim.max_waiters):
        return Busy(remaining, remaining, holder=row.holder, held_for=row.held_for, full=True)
    recheck_after, place = row.join(claim, place)
    return Busy(recheck_after, remaining, place, row.holder, row.held_for)
