"""The statements on the tables.

What is compared is compared here, and not by the database: a name is found by the digest of its exact text, so that no
collation, no trailing blank and no length makes two names one, or one name two. Text is stored in ASCII, for a database
may have any character set.
"""

# ruff: noqa: S608 - put together of nothing that comes from outside but the schema, which is quoted

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

from ...core.runtime import Token
from .dialects import Dialect
from .schema import HOLDER, LEASE, RECORD, WAITER, Table
from .statement import Statement

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
    """What :func:`to_ascii` has written. What another program has is read as far as it can be: it fails no caller."""
    return text.encode("ascii", "backslashreplace").decode("unicode_escape", "replace") if "\\" in text else text


class Tables:
    """The statements on the tables of one database: written once, for every way to it."""

    def __init__(self, dialect: Dialect, schema: str | None = None) -> None:
        self._dialect = dialect
        self._schema = f"{dialect.quoted(schema)}." if schema else ""
        self._of_leases(dialect.clock)
        self._of_shares()
        self._of_records(dialect.clock)
        self._of_queues(dialect.clock)
        self._of_purging(dialect.clock)

    def _at(self, table: Table) -> str:
        return f"{self._schema}{table.name}"

    def _insert(self, table: Table) -> Statement:
        values = ", ".join(f":{name}" for name in table.names)
        return Statement(f"INSERT INTO {self._at(table)} ({', '.join(table.names)}) VALUES ({values})")

    def _update(self, table: Table, names: Iterable[str], where: str) -> Statement:
        values = ", ".join(f"{name} = :{name}" for name in names)
        return Statement(f"UPDATE {self._at(table)} SET {values} WHERE {where}")

    def look_at(self, table: Table) -> Statement:
        """Fails if it is not there."""
        return Statement(f"SELECT 1 FROM {self._at(table)} WHERE 1 = 0")

    def create(self, table: Table) -> Iterator[Statement]:
        return map(Statement, self._dialect.create(table, self._at(table)))

    def _of_leases(self, clock: str) -> None:
        lease, one, many = self._at(LEASE), "name_key = :key", "name_key IN :keys"
        row, (lock, lock_free) = f"SELECT {', '.join(LEASE.names)}, {clock} AS now FROM {lease}", self._dialect.locking
        self.lock_one = Statement(f"{row} WHERE {one}{lock}")
        # In one order, so that two that lock the same rows do not wait for each other.
        self.lock_many = Statement(f"{row} WHERE {many} ORDER BY name_key{lock}")
        self.lock_many_free = Statement(f"{row} WHERE {many} ORDER BY name_key{lock_free}")
        floor = f"SELECT fence FROM {lease} WHERE name_key = '{FLOOR}'"
        self.floor = Statement(floor)
        self.clock_and_floor = Statement(f"SELECT {clock} AS now, ({floor}) AS floor")
        self.insert = self._insert(LEASE)
        self.update = self._update(LEASE, LEASE.names[2:], one)
        self.extend = Statement(f"UPDATE {lease} SET expires_at = :until WHERE {many} AND expires_at < :until")
        taken = f"{row} WHERE expires_at > {clock} AND token <> ''"
        self.taken = Statement(f"{taken} AND {many}")
        self.held = Statement(f"{taken} AND state <> 'done'")

    def _of_shares(self) -> None:
        holder = self._at(HOLDER)
        self.shares = Statement(f"SELECT {', '.join(HOLDER.names)} FROM {holder} WHERE name_key IN :keys")
        self.add_share = self._insert(HOLDER)
        self.change_share = self._update(HOLDER, HOLDER.names[2:], "token = :whose")
        self.drop_shares = Statement(f"DELETE FROM {holder} WHERE token IN :tokens")

    def _of_records(self, clock: str) -> None:
        lease, record, of_key = self._at(LEASE), self._at(RECORD), "name_key = :key"
        self.kept = Statement(f"SELECT record FROM {record} WHERE {of_key} AND fence = :of")
        self.keep_again = self._update(RECORD, RECORD.names[1:], of_key)
        self.keep = self._insert(RECORD)
        self.any_record = Statement(f"SELECT {', '.join(RECORD.names)} FROM {record} WHERE {of_key}")
        self.drop_record = Statement(f"DELETE FROM {record} WHERE {of_key}")
        self.touch = Statement(f"UPDATE {record} SET fence = 0 WHERE 1 = 0")
        #: A record that must not be there yet, in a transaction of a caller's. It lives for ``:lives``.
        self.add_record = Statement(
            self._dialect.add(RECORD, record, (":key", ":fence", f"{clock} + :lives", ":record"))
        )
        of_lease = ", ".join(f"l.{name}" for name in LEASE.names)
        self.done = Statement(
            f"SELECT {of_lease}, {clock} AS now FROM {lease} l JOIN {record} r ON l.name_key = r.name_key "
            f"AND l.fence = r.fence WHERE l.state = 'done' AND l.expires_at > {clock} AND l.token <> '' "
            f"AND r.expires_at > {clock} ORDER BY l.since DESC LIMIT :limit"
        )

    def _of_queues(self, clock: str) -> None:
        lease, waiter, holder = map(self._at, (LEASE, WAITER, HOLDER))
        queue, own = "name_key = :key", f"(SELECT place FROM {waiter} WHERE token = :whose)"
        of_waiters = f"SELECT {', '.join(WAITER.names)} FROM {waiter}"
        self.heads = Statement(f"{of_waiters} WHERE {queue} ORDER BY place, token LIMIT {HEADS}")
        self.waiting = Statement(f"SELECT token FROM {waiter} WHERE {queue} AND deadline > {clock}")
        self.place = Statement(
            f"SELECT {own} AS own, max(place) AS last, count(CASE WHEN {own} IS NULL OR place < {own} THEN 1 END) "
            f"AS ahead FROM {waiter} WHERE {queue}"
        )
        self.join = self._insert(WAITER)
        self.stay = self._update(WAITER, ("deadline", "wake"), "token = :whose")
        self.tokens = Statement(f"SELECT token FROM {waiter} WHERE {queue}")
        self.wake_all = Statement(f"UPDATE {waiter} SET wake = 1 WHERE {queue}")
        self.wake_many = Statement(f"UPDATE {waiter} SET wake = 1 WHERE token IN :tokens")
        self.leave = Statement(f"DELETE FROM {waiter} WHERE token = :whose")
        self.leave_many = Statement(f"DELETE FROM {waiter} WHERE token IN :tokens")
        self.strike = Statement(f"DELETE FROM {waiter} WHERE {queue} AND token LIKE :process")
        waiters, of_each = (
            f"SELECT name_key, count(*) AS waiters FROM {waiter} WHERE deadline > {clock}",
            "GROUP BY name_key",
        )
        self.waiters = Statement(f"{waiters} {of_each}")
        self.waiters_of = Statement(f"{waiters} AND name_key IN :keys {of_each}")
        self.firsts = Statement(
            f"SELECT min(place) FROM {waiter} WHERE {queue} GROUP BY substr(token, 1, {Token.STORE_DIGITS}) "
            f"ORDER BY min(place) LIMIT {HEADS}"
        )
        self.at_places = Statement(f"SELECT token FROM {waiter} WHERE {queue} AND place IN :places")
        # Of the locks that are waited for: whose they are, and who is to ask again.
        news = (
            f"SELECT token, fence FROM {lease} WHERE name_key IN :keys "
            f"UNION ALL SELECT token, 0 FROM {waiter} WHERE name_key IN :keys AND wake = 1"
        )
        granted = f"SELECT token, fence FROM {holder} WHERE name_key IN :keys AND state = 'granted'"
        self.news = Statement(news)
        self.news_of_shares = Statement(f"{news} UNION ALL {granted}")

    def _of_purging(self, clock: str) -> None:
        lease, before, (lock, _) = self._at(LEASE), f"{clock} - :age", self._dialect.locking
        self.idle = Statement(
            f"SELECT name_key, fence FROM {lease} WHERE expires_at < {before} AND name_key <> '{FLOOR}' "
            f"ORDER BY expires_at LIMIT {MAX_PURGED}{lock}"
        )
        self.forget = Statement(f"DELETE FROM {lease} WHERE name_key IN :keys")
        #: Of the other tables: what has ended, and how it is deleted if it has ended still.
        self.ended = (
            self._ended(WAITER, "deadline", before),
            self._ended(HOLDER, "expires_at", before),
            self._ended(RECORD, "expires_at", before),
        )
        self.raise_floor = Statement(
            f"UPDATE {lease} SET fence = :highest WHERE name_key = '{FLOOR}' AND fence < :highest"
        )

    def _ended(self, table: Table, ends: str, before: str) -> tuple[Statement, Statement]:
        at, key = self._at(table), table.names[0]
        return (
            Statement(f"SELECT {key} FROM {at} WHERE {ends} < {before} ORDER BY {ends} LIMIT {MAX_PURGED}"),
            Statement(f"DELETE FROM {at} WHERE {key} IN :keys AND {ends} < {before}"),
        )
