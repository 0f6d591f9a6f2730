"""The row of one name while a transaction has it locked, and the queue behind it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Protocol

from sqlalchemy import Executable, Row

from ...core.backend import Claim, LockInfo, Loss
from ...core.blocking_port import stagger
from ...core.runtime import IDENT_DIGITS
from .database import Transaction
from .tables import FLOOR, Tables, from_ascii, key_of, to_ascii

MICROSECONDS = 1_000_000
#: Microseconds after the time to ask again at which a waiter that has not asked is dead.
GRACE = 15 * MICROSECONDS
#: A row that is nobody's, but for its key and its name.
NOBODY: Mapping[str, Any] = {
    "token": "", "state": "", "fence": 0, "since": 0, "expires_at": 0, "holder": "", "released": "", "revoked": "",
    "queued": 0,
}  # fmt: skip


def microseconds(seconds: float) -> int:
    return round(seconds * MICROSECONDS)


class AnyTransaction(Protocol):
    """On a connection of ours, or on that of a caller."""

    tables: Tables

    def run(self, statement: Executable, parameters: Mapping[str, Any] | None = None) -> Any: ...

    def wake(self, token: str) -> None: ...


class LeaseRow:
    """What is known of one name. Changed here, and written by :meth:`save`."""

    def __init__(self, transaction: AnyTransaction, name: str, found: Row[Any] | None) -> None:
        self._transaction = transaction
        self._exists = found is not None
        self.key = key_of(name)
        self.name = name
        known: Any = SimpleNamespace(**NOBODY, now=0) if found is None else found
        self.now: int = known.now
        self.token: str = known.token
        self.state: str = known.state
        self.fence: int = known.fence
        self.since: int = known.since
        self.expires_at: int = known.expires_at
        self.holder = from_ascii(known.holder)
        self.released: str = known.released
        self.revoked: str = known.revoked
        self.queued: int = known.queued
        self._read = self._values()

    @classmethod
    def lock(cls, transaction: AnyTransaction, name: str) -> LeaseRow:
        """The row, which nobody else changes until the transaction ends. There may be none yet."""
        return cls(transaction, name, transaction.run(transaction.tables.lock_one, {"key": key_of(name)}).first())

    def _values(self) -> dict[str, Any]:
        return {
            "token": self.token, "state": self.state, "fence": self.fence, "since": self.since,
            "expires_at": self.expires_at, "holder": to_ascii(self.holder), "released": self.released,
            "revoked": self.revoked, "queued": self.queued,
        }  # fmt: skip

    def save(self) -> None:
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

    def held_by(self, token: str) -> bool:
        return self.taken and self.token == token and self.state in ("held", "granted")

    def loss(self, token: str) -> Loss:
        if self.revoked == token:
            return "revoked"
        return "taken" if self.taken and self.token != token else "expired"

    @property
    def remaining(self) -> float:
        return max(self.expires_at - self.now, 1_000) / MICROSECONDS

    @property
    def held_for(self) -> float:
        return max(self.now - self.since, 0) / MICROSECONDS

    # Who has it next -------------------------------------------------------------------------------------------------

    def read_clock(self) -> None:
        """The database's time for a name that it does not know, and the fence that its next one exceeds."""
        found = self._transaction.run(self._transaction.tables.clock_and_floor).one()
        self.now, self.fence = found.now, found.floor or 0

    def own(self, token: str, holder: str, expire: int, state: str) -> None:
        self.fence = max(self.fence + 1, self.now)
        self.token, self.holder, self.state = token, holder, state
        self.since, self.expires_at = self.now, self.now + expire

    def confirm(self, expire: float) -> None:
        """Its owner has asked: it knows that it is the owner, and has a full lease again."""
        self.state = "held"
        self.expires_at = max(self.expires_at, self.now + microseconds(expire))

    def end_lease(self, asking: str) -> None:
        """The lease is over. One that was handed over and never heard of is a sign that its process is no more."""
        if self.state == "granted" and self.queued and self.token[:IDENT_DIGITS] != asking[:IDENT_DIGITS]:
            self._transaction.run(self._transaction.tables.strike, self._with_process())
        self.token, self.state = "", ""

    def hand_over(self, asking: str = "", *, to_another_process: bool = False) -> bool:
        """Give the free lock to the first waiter, unless that is who asks. False: to nobody."""
        head = self._head(to_another_process)
        if head is None or head.token == asking:
            return False
        known = self.expires_at
        self._transaction.run(self._transaction.tables.leave, {"whose": head.token})
        self.own(head.token, from_ascii(head.holder), head.expire, "granted")
        self._transaction.wake(head.token)
        self._tell(known)
        return True

    def let_go(self) -> None:
        """Its owner gives it back: to the next one. Else ``expires_at`` stays, for its own requests may be late."""
        if not (self.queued and self.hand_over()):
            self.token, self.state = "", ""

    def revoke(self) -> None:
        """It is taken from its owner, whose process may hang: the others of that come after those of all others."""
        self.revoked = self.token
        if not (self.queued and self.hand_over(to_another_process=True)):
            self.let_go()

    def is_of_the_past(self, token: str) -> bool:
        """Whether the lock was this token's, which has given it back or lost it: a request of it comes late."""
        return token in (self.released, self.revoked) and self.expires_at > self.now

    def finish(self, seconds: float, record: str) -> None:
        """It is done, for so long: the record is kept beside it, and everybody who waits is to ask, and is told so."""
        self.state, self.expires_at = "done", self.now + microseconds(seconds)
        kept = {"fence": self.fence, "expires_at": self.expires_at, "record": record}
        if self._transaction.run(self._transaction.tables.keep_again, {"key": self.key, **kept}).rowcount == 0:
            self._transaction.run(self._transaction.tables.keep, {"name_key": self.key, **kept})
        self.send_away()

    def send_away(self) -> None:
        if self.queued:
            key = {"key": self.key}
            tokens = [row.token for row in self._transaction.run(self._transaction.tables.tokens, key).all()]
            self._transaction.run(self._transaction.tables.wake_all, key)
            for token in tokens:
                self._transaction.wake(token)

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
        known, self.expires_at = self.expires_at, moment
        self._tell(known)

    def _with_process(self) -> dict[str, Any]:
        return {"key": self.key, "process": f"{self.token[:IDENT_DIGITS]}%"}

    # The queue -------------------------------------------------------------------------------------------------------

    def _head(self, of_another_process: bool = False) -> Row[Any] | None:
        """The first who lives; the dead in front of it are dropped."""
        tables = self._transaction.tables
        statement = tables.heads_of_others if of_another_process else tables.heads
        while self.queued:
            heads: Sequence[Row[Any]] = self._transaction.run(statement, self._with_process()).all()
            if not heads:
                self.queued = self.queued if of_another_process else 0
                break
            dead = [head.token for head in heads if head.deadline <= self.now]
            if dead:
                self._transaction.run(tables.leave_many, {"tokens": dead})
            for head in heads:
                if head.deadline > self.now:
                    return head
        return None

    def _tell(self, known: int) -> None:
        """``known`` is until when those who wait believe it taken: if it is sooner, they are to ask.

        The first of each process, for nobody knows which of them live; not all, for one is enough.
        """
        if not (self.queued and self.expires_at < known):
            return
        tables, key = self._transaction.tables, {"key": self.key}
        places = [row[0] for row in self._transaction.run(tables.firsts, key).all()]
        if places:
            tokens = [row.token for row in self._transaction.run(tables.at_places, {**key, "places": places}).all()]
            self._transaction.run(tables.wake_many, {"tokens": tokens})
            for token in tokens:
                self._transaction.wake(token)

    def join(self, claim: Claim, position: int) -> tuple[float, int]:
        """Stand in the queue, where it stood before if it did: the seconds after which to ask again, and the place."""
        tables = self._transaction.tables
        found = self._transaction.run(tables.place, {"key": self.key, "whose": claim.token}).one()
        place = found.own or position or max(self.now, (found.last or 0) + 1)
        recheck = min(max(self.expires_at - self.now, 1_000), microseconds(claim.expire))
        recheck += microseconds(stagger(found.ahead, claim.expire))
        waiting = {"deadline": self.now + recheck + GRACE, "wake": 0}
        if found.own is not None:
            self._transaction.run(tables.stay, {"whose": claim.token, **waiting})
        else:
            waiter = {"token": claim.token, "name_key": self.key, "place": place, "expire": microseconds(claim.expire)}
            self._transaction.run(tables.join, {**waiter, **waiting, "holder": to_ascii(claim.holder)})
            self.queued = 1
        return recheck / MICROSECONDS, place

    def is_full(self, token: str, most: int) -> bool:
        """Whether so many others wait, as far as is known alive; not for a token that stands there itself."""
        if not self.queued:
            return False
        tables = self._transaction.tables
        waiting = [row.token for row in self._transaction.run(tables.waiting, {"key": self.key}).all()]
        return len(waiting) >= most and token not in waiting

    def leave(self, token: str) -> None:
        if self.queued:
            self._transaction.run(self._transaction.tables.leave, {"whose": token})


def lock_rows(transaction: Transaction, names: list[str], wait: bool) -> dict[str, LeaseRow]:
    """The rows of several names, by name. Without ``wait`` a row that others keep locked is an error at once."""
    by_key = {key_of(name): name for name in names}
    tables = transaction.tables
    found = transaction.run(tables.lock_many if wait else tables.lock_many_now, {"keys": sorted(by_key)}).all()
    known = {by_key[row.name_key]: row for row in found}
    rows = {name: LeaseRow(transaction, name, known.get(name)) for name in names}
    for row in rows.values():
        row.now = min((other.now for other in found), default=0)  # one moment: a clock may be read for each row
    return rows


def purge(transaction: Transaction, age: float) -> int:
    """Forget names that nobody has used for so many seconds, a bounded number of them. How many it were."""
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
    transaction.run(tables.forget_waiters, {"age": microseconds(age)})
    return len(idle)


def as_info(row: Row[Any], waiters: int) -> LockInfo:
    return LockInfo(
        from_ascii(row.name),
        row.fence,
        from_ascii(row.holder),
        row.since / MICROSECONDS,
        max(row.expires_at - row.now, 1) / MICROSECONDS,
        waiters,
        "held" if row.state == "granted" else row.state,
    )
