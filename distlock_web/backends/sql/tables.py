"""The tables: a row for each name, each that waits, each holder of a lock that several have, and what is done. The
migrations make the same.

What is compared is compared here, and not by the database: a name is found by the digest of its exact text, so that no
collation, no trailing blank and no length makes two names one, or one name two. Text is stored in ASCII, for a database
may have any character set.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import (
    BigInteger,
    BindParameter,
    Column,
    ColumnElement,
    Executable,
    Index,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
    bindparam,
    case,
    false,
    func,
    literal,
    select,
    union_all,
)
from sqlalchemy.dialects.mysql import LONGTEXT

from ...core.runtime import IDENT_DIGITS

#: All moments in the tables are in these.
MICROSECONDS = 1_000_000
#: How many of the queue are read at a time, to find the first who lives; how many processes are told at a time.
HEADS = 8
#: Rows of a table that one call purges at most. All that have ended would take longer than an answer may.
MAX_PURGED = 500
#: The row that has the highest fence of those that were purged. No digest looks like this.
FLOOR = "floor"


def key_of(name: str) -> str:
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()


def to_ascii(text: str) -> str:
    """Text that every character set has. :func:`from_ascii` reads it."""
    if text.isascii() and text.isprintable() and "\\" not in text:
        return text
    return text.encode("unicode_escape").decode("ascii")


def from_ascii(text: str) -> str:
    """What :func:`to_ascii` has written. What another program has is read as far as it can be: it fails nobody."""
    return text.encode("ascii", "backslashreplace").decode("unicode_escape", "replace") if "\\" in text else text


def _tables(metadata: MetaData) -> Iterator[Table]:
    innodb: dict[str, Any] = {"mysql_engine": "InnoDB", "mariadb_engine": "InnoDB"}  # another one has no transactions
    yield Table(
        "distlock_lease",
        metadata,
        Column("name_key", String(64), primary_key=True),  # the digest of the name
        Column("name", Text, nullable=False),  # for people
        Column("token", String(100), nullable=False),  # whose it is until ``expires_at``; empty: free
        # held; granted: handed over and not yet heard of by its new owner; transit; cooldown; done; shared: by several
        Column("state", String(10), nullable=False),
        Column("fence", BigInteger, nullable=False),
        Column("since", BigInteger, nullable=False),  # these two in microseconds, by the database's clock
        Column("expires_at", BigInteger, nullable=False),
        Column("holder", Text, nullable=False),
        # The last that released it, and the last that it was taken from by force: a verb may be sent twice.
        Column("released", String(100), nullable=False),
        Column("revoked", String(100), nullable=False),
        Column("queued", SmallInteger, nullable=False),  # 1: somebody may be waiting
        Index("distlock_lease_expires_at", "expires_at"),
        **innodb,
    )
    yield Table(
        "distlock_waiter",
        metadata,
        Column("token", String(100), primary_key=True),
        Column("name_key", String(64), nullable=False),
        Column("place", BigInteger, nullable=False),
        Column("expire", BigInteger, nullable=False),  # of the lease that it wants, in microseconds
        Column("deadline", BigInteger, nullable=False),  # who has not asked again by then is dead
        Column("holder", Text, nullable=False),
        Column("wake", SmallInteger, nullable=False),  # 1: it is to ask again now
        Index("distlock_waiter_queue", "name_key", "place"),
        **innodb,
    )
    yield Table(
        "distlock_holder",
        metadata,
        Column("token", String(100), primary_key=True),
        Column("name_key", String(64), nullable=False),
        Column("state", String(10), nullable=False),
        Column("fence", BigInteger, nullable=False),
        Column("since", BigInteger, nullable=False),
        Column("expires_at", BigInteger, nullable=False),
        Column("holder", Text, nullable=False),
        Index("distlock_holder_name_key", "name_key"),
        Index("distlock_holder_expires_at", "expires_at"),
        **innodb,
    )
    yield Table(
        "distlock_record",
        metadata,
        Column("name_key", String(64), primary_key=True),
        # Of the run that has left it: it counts where the lease is done, with this fence.
        Column("fence", BigInteger, nullable=False),
        Column("expires_at", BigInteger, nullable=False),
        Column("record", Text().with_variant(LONGTEXT(), "mysql", "mariadb"), nullable=False),
        Index("distlock_record_expires_at", "expires_at"),
        **innodb,
    )


class Tables:
    """The tables of one database, and the statements, built once. ``clock``: its time, in microseconds."""

    def __init__(self, clock: ColumnElement[int], schema: str | None = None) -> None:
        self.metadata = MetaData(schema=schema)
        self.lease, self.waiter, self.holder, self.record = _tables(self.metadata)
        self._key: BindParameter[str] = bindparam("key")
        self._keys: BindParameter[Sequence[str]] = bindparam("keys", expanding=True)
        self._clock = clock
        self._of_leases(clock)
        self._of_shares()
        self._of_records(clock)
        self._of_queues(clock)
        self._of_purging(clock)

    def _of_leases(self, clock: ColumnElement[int]) -> None:
        lease, now, until = self.lease, clock.label("now"), bindparam("until", type_=BigInteger)
        of_keys = lease.c.name_key.in_(self._keys)
        self.lock_one = select(lease, now).where(lease.c.name_key == self._key).with_for_update()
        # In one order, so that two that lock the same rows do not wait for each other.
        self.lock_many = select(lease, now).where(of_keys).order_by(lease.c.name_key).with_for_update()
        self.lock_many_free = self.lock_many.with_for_update(skip_locked=True)
        self.floor = select(lease.c.fence).where(lease.c.name_key == FLOOR)
        self.clock_and_floor = select(now, self.floor.scalar_subquery().label("floor"))
        self.insert = lease.insert()
        self.update = lease.update().where(lease.c.name_key == self._key)
        self.extend = lease.update().where(of_keys, lease.c.expires_at < until).values(expires_at=until)
        self.taken = select(lease, now).where(lease.c.expires_at > clock, lease.c.token != "")
        self.held = self.taken.where(lease.c.state != "done")

    def _of_shares(self) -> None:
        holder = self.holder
        self.shares = select(holder).where(holder.c.name_key.in_(self._keys))
        self.add_share = holder.insert()
        self.change_share = holder.update().where(holder.c.token == bindparam("whose", type_=String))
        self.drop_shares = holder.delete().where(holder.c.token.in_(bindparam("tokens", expanding=True)))

    def _of_records(self, clock: ColumnElement[int]) -> None:
        lease, record = self.lease, self.record
        of_key = record.c.name_key == self._key
        self.kept = select(record.c.record).where(of_key, record.c.fence == bindparam("of", type_=BigInteger))
        self.keep_again = record.update().where(of_key)
        self.keep = record.insert()
        self.any_record = select(record).where(of_key)
        self.drop_record = record.delete().where(of_key)
        self.touch = record.update().where(false()).values(fence=0)
        done = lease.c.name_key == record.c.name_key, lease.c.fence == record.c.fence, lease.c.state == "done"
        self.done = self.taken.where(*done, record.c.expires_at > clock).order_by(lease.c.since.desc())

    def new_record(self, key: str, fence: int, lives: int, record: str) -> dict[str, ColumnElement[Any]]:
        """The row of one that must not be there yet."""
        return {
            "name_key": literal(key, String),
            "fence": literal(fence, BigInteger),
            "expires_at": self._clock + literal(lives, BigInteger),
            "record": literal(record, Text),
        }

    def _of_queues(self, clock: ColumnElement[int]) -> None:
        lease, waiter, whose = self.lease, self.waiter, bindparam("whose", type_=String)
        queue = waiter.c.name_key == self._key
        self.heads = select(waiter).where(queue).order_by(waiter.c.place, waiter.c.token).limit(HEADS)
        self.waiting = select(waiter.c.token).where(queue, waiter.c.deadline > clock)
        own = select(waiter.c.place).where(waiter.c.token == whose).scalar_subquery()
        self.place = select(
            own.label("own"),
            func.max(waiter.c.place).label("last"),
            func.count(case((own.is_(None) | (waiter.c.place < own), 1))).label("ahead"),
        ).where(queue)
        self.join = waiter.insert()
        self.stay = waiter.update().where(waiter.c.token == whose)
        self.tokens = select(waiter.c.token).where(queue)
        self.wake_all = waiter.update().where(queue).values(wake=1)
        self.wake_many = waiter.update().where(waiter.c.token.in_(bindparam("tokens", expanding=True))).values(wake=1)
        self.leave = waiter.delete().where(waiter.c.token == whose)
        self.leave_many = waiter.delete().where(waiter.c.token.in_(bindparam("tokens", expanding=True)))
        self.strike = waiter.delete().where(queue, waiter.c.token.like(bindparam("process")))
        living = select(waiter.c.name_key, func.count().label("waiters")).where(waiter.c.deadline > clock)
        self.waiters = living.group_by(waiter.c.name_key)
        ident = func.substr(waiter.c.token, 1, IDENT_DIGITS)
        firsts = select(func.min(waiter.c.place)).where(queue).group_by(ident).order_by(func.min(waiter.c.place))
        self.firsts = firsts.limit(HEADS)
        self.at_places = select(waiter.c.token).where(queue, waiter.c.place.in_(bindparam("places", expanding=True)))
        # Of the locks that are waited for: whose they are, and who is to ask again.
        news = (
            select(lease.c.token, lease.c.fence).where(lease.c.name_key.in_(self._keys)),
            select(waiter.c.token, literal(0, BigInteger)).where(waiter.c.name_key.in_(self._keys), waiter.c.wake == 1),
        )
        self.news = union_all(*news)
        holder = self.holder
        granted = holder.c.name_key.in_(self._keys), holder.c.state == "granted"
        self.news_of_shares = union_all(*news, select(holder.c.token, holder.c.fence).where(*granted))

    def _of_purging(self, clock: ColumnElement[int]) -> None:
        lease, waiter, before = self.lease, self.waiter, clock - bindparam("age", type_=BigInteger)
        idle = select(lease.c.name_key, lease.c.fence).where(lease.c.expires_at < before, lease.c.name_key != FLOOR)
        self.idle = idle.order_by(lease.c.expires_at).limit(MAX_PURGED).with_for_update()
        self.forget = lease.delete().where(lease.c.name_key.in_(self._keys))
        #: Of the other tables: what has ended, and how it is deleted if it has ended still.
        self.ended = (
            _ended(waiter.c.token, waiter.c.deadline, before),
            _ended(self.holder.c.token, self.holder.c.expires_at, before),
            _ended(self.record.c.name_key, self.record.c.expires_at, before),
        )
        highest = bindparam("highest", type_=BigInteger)
        self.raise_floor = (
            lease.update().where(lease.c.name_key == FLOOR, lease.c.fence < highest).values(fence=highest)
        )

    def named(self, names: Sequence[str]) -> ColumnElement[bool]:
        return self.lease.c.name_key.in_([key_of(name) for name in names])


def _ended(key: Column[str], ends: Column[int], before: ColumnElement[int]) -> tuple[Executable, Executable]:
    ended = select(key.label("key")).where(ends < before).order_by(ends).limit(MAX_PURGED)
    return ended, key.table.delete().where(key.in_(bindparam("keys", expanding=True)), ends < before)
