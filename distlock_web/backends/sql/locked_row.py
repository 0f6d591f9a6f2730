"""The row of one name while a transaction has it locked, and the queue behind it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from ...core.backend import Claim, LockInfo, Loss
from ...core.formats import refusal
from ...core.runtime import Token
from ...kit.wakeups import stagger
from .database import Transaction
from .shares import SEVERAL, Share, Shares
from .statement import Statement
from .tables import FLOOR, MICROSECONDS, from_ascii, key_of, to_ascii

#: Microseconds after the time to ask again at which a waiter that has not asked is dead.
GRACE = 15 * MICROSECONDS
#: Whose a row is that has a record, and of whose run nothing else is known.
RECORDED = "recorded"
#: A row without an owner, but for its key and its name.
NOBODY: Mapping[str, Any] = {
    "token": "", "state": "", "fence": 0, "since": 0, "expires_at": 0, "holder": "", "released": "", "revoked": "",
    "queued": 0,
}  # fmt: skip


#: In place of a waiter's token: of any one that wants to be alone.
ANYBODY = Token()


def microseconds(seconds: float) -> int:
    return round(seconds * MICROSECONDS)


class LockedRow:
    """What is known of one name. Changed here, and written by :meth:`save`."""

    def __init__(self, transaction: Transaction, name: str, found: Any, asking: str = "") -> None:
        self._transaction = transaction
        self._asking = asking  #: the token of who asks
        self._exists = found is not None
        self.key = key_of(name)
        self.name = name
        known: Any = SimpleNamespace(**NOBODY, now=0) if found is None else found
        self.now: int = known.now
        self.token: str = known.token
        self.state: str = known.state
        if self.state.startswith("format"):
            raise refusal(f"The lock {name!r} in the database", self.state.removeprefix("format "))
        self.fence: int = known.fence
        self.since: int = known.since
        self.expires_at: int = known.expires_at
        self.holder = from_ascii(known.holder)
        self.released: str = known.released
        self.revoked: str = known.revoked
        self.queued: int = known.queued
        self._read = self._values()
        self._shares: Shares | None = None
        self._granted: list[str] = []  #: who was handed it, and stands in the queue still

    @classmethod
    def lock(cls, transaction: Transaction, name: str, asking: str = "") -> LockedRow:
        """The row, which no other transaction changes until this one ends. There may be none yet."""
        found = transaction.run(transaction.tables.lock_one, {"key": key_of(name)}).first()
        return cls(transaction, name, found, asking)

    def _values(self) -> dict[str, Any]:
        return {
            "token": self.token, "state": self.state, "fence": self.fence, "since": self.since,
            "expires_at": self.expires_at, "holder": to_ascii(self.holder), "released": self.released,
            "revoked": self.revoked, "queued": self.queued,
        }  # fmt: skip

    def save(self) -> None:
        if self._shares is not None:
            self._shares.save(self._transaction, self.key)
        values = self._values()
        if values == self._read:
            return
        tables = self._transaction.tables
        if self._exists:
            self._transaction.run(tables.update, {"key": self.key, **values})
        else:
            self._transaction.run(tables.insert, {"name_key": self.key, "name": to_ascii(self.name), **values})

    # Whose it is -----------------------------------------------------------------------------------------------------

    @property
    def taken(self) -> bool:
        return self.token != "" and self.expires_at > self.now

    @property
    def new(self) -> bool:
        return not self._exists

    @property
    def shares(self) -> Shares:
        """Those that have it together. Read when it is asked for: the lock of one has none."""
        if self._shares is None:
            tables, asked = self._transaction.tables, {"keys": [self.key]}
            self._shares = Shares(() if self.new else self._transaction.run(tables.shares, asked).all(), self.now)
            for token in self._shares.unheard:
                self._strike(token)
        return self._shares

    @property
    def owners(self) -> Sequence[LockedRow | Share]:
        """Those that have the lock: the row itself tells of one that is alone."""
        if self.state == SEVERAL:
            return self.shares.holding
        return [self] if self.taken else []

    def owner(self, token: Token) -> LockedRow | Share | None:
        """What this token has, or had until it was taken from it."""
        if token.limit > 1:
            return self.shares.get(token)
        return self if self.taken and self.token == token else None

    def held_by(self, token: Token) -> LockedRow | Share | None:
        owner = self.owner(token)
        return owner if owner is not None and owner.state in ("held", "granted") else None

    def admits(self, token: Token) -> bool:
        """Whether it is free, or shared by fewer than this token and all of them let in."""
        return self.shares.admits(token) if self.state == SEVERAL else not self.taken

    def loss(self, token: Token) -> Loss:
        owner = self.owner(token)
        if self.revoked == token or (owner is not None and owner.state == "revoked"):
            return "revoked"
        return "expired" if owner is not None or self.admits(token) else "taken"

    def free_at(self, token: Token) -> int:
        """When this token may have it, if nothing happens until then but that leases end."""
        return self.shares.ends.free_at(token) if self.state == SEVERAL and token.limit > 1 else self.expires_at

    def _known_free_at(self, token: Token) -> int:
        """The same as those have been told who wait."""
        if self._read["state"] == SEVERAL and token.limit > 1:
            return self.shares.known.free_at(token)
        return int(self._read["expires_at"])

    def remaining(self, token: Token) -> float:
        return max(self.free_at(token) - self.now, 1_000) / MICROSECONDS

    @property
    def held_for(self) -> float:
        return max(self.now - self.since, 0) / MICROSECONDS

    # Who has it next -------------------------------------------------------------------------------------------------

    def read_clock(self) -> None:
        """The database's time for a name that it does not know, and the fence that its next one exceeds."""
        found = self._transaction.run(self._transaction.tables.clock_and_floor).first()
        self.now, self.fence = found.now, found.floor or 0

    def own(self, token: Token, holder: str, expire: int, state: str) -> None:
        self.fence = max(self.fence + 1, self.now)
        if token.limit > 1:
            self.shares.add(Share(token, state, self.fence, self.now, self.now + expire, holder))
            self._sum_up()
        else:
            self.token, self.holder, self.state = token, holder, state
            self.since, self.expires_at = self.now, self.now + expire

    def _sum_up(self) -> None:
        """What the row says of those that share the lock: that it is taken until the last of them has gone."""
        holding = self.shares.holding
        self.token = self.state = SEVERAL if holding else ""
        if holding:
            self.expires_at, self.holder, self.since = holding[-1].expires_at, holding[0].holder, holding[0].since

    def confirm(self, owner: LockedRow | Share, expire: float) -> None:
        """It has asked: it knows that it is an owner, and has a full lease again."""
        owner.state = "held"
        owner.expires_at = max(owner.expires_at, self.now + microseconds(expire))
        if owner is not self:
            self.shares.changed()
            self._sum_up()

    def end_lease(self) -> None:
        """The lease is over. One that was handed over and never heard of is a sign that its process is no more."""
        if self.state == SEVERAL:
            self._sum_up()
        elif self.state == "granted":
            self._strike(Token(self.token))
        self.token, self.state = "", ""

    def hand_over(self, asking: str = "") -> bool:
        """Give the lock to the first waiters that it admits, up to who asks. Whether others have it or come first."""
        if self.state == SEVERAL:
            _ = self.shares  # whose dead leave the queue before anybody looks at it
        others, waiter = False, ANYBODY
        for head in self._heads():
            token = Token(head.token)
            if token == asking:
                break
            if not self.admits(token):
                others, waiter = True, token
                break
            self._granted.append(token)
            self.own(token, from_ascii(head.holder), head.expire, "granted")
            if self.state != SEVERAL:
                others = True
                break
        self._tell_granted()
        if others:
            self._tell(waiter)
        return others

    def _tell_granted(self) -> None:
        """They leave the queue, and are told: together, for they may be a thousand readers."""
        if self._granted:
            self._transaction.run(self._transaction.tables.leave_many, {"tokens": self._granted})
            self._transaction.wake(self._granted)
            self._granted = []

    def let_go(self, token: Token) -> None:
        """Its owner gives it back: to the next ones. Else ``expires_at`` stays, for its own requests may be late."""
        if self.state == SEVERAL:
            self.shares.remove(token)
            self._sum_up()
        else:
            self.token, self.state = "", ""
        self.pass_on()

    def pass_on(self) -> None:
        if self.queued:
            self.hand_over()

    def revoke(self, owner: LockedRow | Share) -> None:
        """It is taken from its owner."""
        if owner is self:
            self.revoked, self.token, self.state = owner.token, "", ""
        else:
            owner.state = "revoked"
            self.shares.changed()
            self._sum_up()
        self.pass_on()

    def is_of_the_past(self, token: Token) -> bool:
        """Whether the lock was this token's, which has given it back or lost it: a request of it comes late."""
        if token.limit > 1:
            return token == self.released or self.owner(token) is not None
        return token in (self.released, self.revoked) and self.expires_at > self.now

    def cool_down(self, owner: LockedRow | Share, seconds: float) -> None:
        """It stays taken for so long, without an owner."""
        owner.state = "cooldown"
        if owner is self:
            self.end_at(self.now + microseconds(seconds))
        else:
            owner.expires_at = self.now + microseconds(seconds)
            self.shares.changed()
            self._sum_up()
            self.pass_on()  # to none, but it may be sooner than the first has been told

    def finish(self, seconds: float, record: str) -> None:
        """It is done, for so long: the record is kept beside it, and everybody who waits is to ask, and is told so."""
        self.state, self.expires_at = "done", self.now + microseconds(seconds)
        kept = {"fence": self.fence, "expires_at": self.expires_at, "record": record}
        if self._transaction.run(self._transaction.tables.keep_again, {"key": self.key, **kept}).rowcount == 0:
            self._transaction.run(self._transaction.tables.keep, {"name_key": self.key, **kept})
        self.send_away()

    def find_record(self) -> None:
        """Whether it is done, as a transaction of the caller's has committed: the row itself may not tell of that yet.

        Its release comes a moment later, or never: the process died, or the answer to the COMMIT was lost. A record
        that is over goes: the next one is added, and replaces none.
        """
        if self.state == "done" and self.taken:
            return
        kept = self._transaction.run(self._transaction.tables.any_record, {"key": self.key}).first()
        if kept is None:
            return
        if kept.expires_at <= self.now:
            self._transaction.run(self._transaction.tables.drop_record, {"key": self.key})
            return
        if not self.token:
            self.token, self.fence = self.released or RECORDED, max(self.fence + 1, self.now)
            self.since = self.since or self.now
        self.finish((kept.expires_at - self.now) / MICROSECONDS, kept.record)

    def forget_record(self) -> None:
        self._transaction.run(self._transaction.tables.drop_record, {"key": self.key})

    def send_away(self) -> None:
        if self.queued:
            key = {"key": self.key}
            tokens = [row.token for row in self._transaction.run(self._transaction.tables.tokens, key).all()]
            self._transaction.run(self._transaction.tables.wake_all, key)
            self._transaction.wake(tokens)

    @property
    def record(self) -> str | None:
        """What is kept of what is done; None: it is not done."""
        if self.state != "done":
            return None
        asked = {"key": self.key, "of": self.fence}
        kept: str | None = self._transaction.run(self._transaction.tables.kept, asked).scalar()
        return kept

    def end_at(self, moment: int) -> None:
        """The lease ends then, which may be sooner than those who wait know."""
        self.expires_at = moment
        self._tell()

    # The queue -------------------------------------------------------------------------------------------------------

    def _heads(self) -> Iterator[Any]:
        """Those who live, the first in front; the dead are dropped. Each has to leave the queue before the next one."""
        tables = self._transaction.tables
        while self.queued:
            self._tell_granted()
            heads: Sequence[Any] = self._transaction.run(tables.heads, {"key": self.key}).all()
            if not heads:
                self.queued = 0
            dead = [head.token for head in heads if head.deadline <= self.now]
            if dead:
                self._transaction.run(tables.leave_many, {"tokens": dead})
            yield from (head for head in heads if head.deadline > self.now)

    def _strike(self, token: Token) -> None:
        """The process of this token is no more, as it seems: nor are the others of it that wait. Unless it asks."""
        if self.queued and token.store != Token(self._asking).store:
            process = f"{token.store}%"
            self._transaction.run(self._transaction.tables.strike, {"key": self.key, "process": process})

    def _tell(self, waiter: Token = ANYBODY) -> None:
        """If this waiter may have it sooner than those know who wait, they are to ask; without one, all of them alike.

        The first of each process, for it is not known which of them live; not all, for one is enough.
        """
        if not (self.queued and self.free_at(waiter) < self._known_free_at(waiter)):
            return
        tables, key = self._transaction.tables, {"key": self.key}
        places = [row[0] for row in self._transaction.run(tables.firsts, key).all()]
        if places:
            tokens = [row.token for row in self._transaction.run(tables.at_places, {**key, "places": places}).all()]
            self._transaction.run(tables.wake_many, {"tokens": tokens})
            self._transaction.wake(tokens)

    def join(self, claim: Claim, place: int | None) -> tuple[float, int]:
        """Stand in the queue, where it stood before if it did: the seconds after which to ask again, and the place."""
        tables = self._transaction.tables
        found = self._transaction.run(tables.place, {"key": self.key, "whose": claim.token}).first()
        place = found.own or place or max(self.now, (found.last or 0) + 1)
        recheck = min(max(self.free_at(claim.token) - self.now, 1_000), microseconds(claim.expire))
        recheck += microseconds(stagger(found.ahead, claim.expire))
        waiting = {"deadline": self.now + recheck + GRACE, "wake": 0}
        if found.own is not None:
            self._transaction.run(tables.stay, {"whose": claim.token, **waiting})
        else:
            waiter = {"token": claim.token, "name_key": self.key, "place": place, "expire": microseconds(claim.expire)}
            self._transaction.run(tables.join, {**waiter, **waiting, "holder": to_ascii(claim.holder)})
            self.queued = 1
        return recheck / MICROSECONDS, place

    def is_full(self, token: Token, most: int) -> bool:
        """Whether so many others wait, as far as is known alive; not for a token that stands there itself."""
        if not self.queued:
            return False
        tables = self._transaction.tables
        waiting = [row.token for row in self._transaction.run(tables.waiting, {"key": self.key}).all()]
        return len(waiting) >= most and token not in waiting

    def leave(self, token: Token) -> None:
        if self.queued:
            self._transaction.run(self._transaction.tables.leave, {"whose": token})


def lock_rows(transaction: Transaction, claims: Sequence[Claim], wait: bool) -> dict[str, LockedRow]:
    """The rows of these claims, by name. Without ``wait`` a row that others keep locked is left out, as a new one."""
    askers = {claim.name: claim.token for claim in claims}
    by_key = {key_of(name): name for name in askers}
    tables = transaction.tables
    found = transaction.run(tables.lock_many if wait else tables.lock_many_free, {"keys": sorted(by_key)}).all()
    known = {by_key[row.name_key]: row for row in found}
    rows = {name: LockedRow(transaction, name, known.get(name), token) for name, token in askers.items()}
    for row in rows.values():
        row.now = min((other.now for other in found), default=0)  # one moment: a clock may be read for each row
    return rows


def purge(transaction: Transaction, age: float) -> int:
    """Forget names that were not used for so many seconds, a bounded number of them. How many it were."""
    tables = transaction.tables
    idle = transaction.run(tables.idle, {"age": microseconds(age)}).all()
    if idle:
        # The next fence of such a name exceeds its last one even if the clock was set back in between.
        fence = max(row.fence for row in idle)
        transaction.run(tables.forget, {"keys": [row.name_key for row in idle]})
        if transaction.run(tables.floor).first() is None:
            transaction.run(tables.insert, {**NOBODY, "name_key": FLOOR, "name": FLOOR, "fence": fence})
        else:
            transaction.run(tables.raise_floor, {"highest": fence})
    return len(idle)


def purge_ended(transaction: Transaction, ended: tuple[Statement, Statement], age: float) -> int:
    """The same of another table: one of ``Tables.ended``."""
    (find, forget), given = ended, {"age": microseconds(age)}
    keys = [row[0] for row in transaction.run(find, given).all()]
    if keys:
        transaction.run(forget, {**given, "keys": keys})
    return len(keys)


def as_info(row: Any, waiters: int) -> LockInfo:
    return LockInfo(
        from_ascii(row.name),
        row.fence,
        from_ascii(row.holder),
        row.since / MICROSECONDS,
        max(row.expires_at - row.now, 1) / MICROSECONDS,
        waiters,
        "held" if row.state == "granted" else row.state,
    )
