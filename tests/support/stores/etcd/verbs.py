"""The verbs of the seam, over etcd, as functions that any thread may call.

A lock is the rows below its name, in the order in which etcd has made them: the first is its holder's, the others are
the queue's. The revision that made a row is its fence. Each row is under a lease of etcd's, named after its token, and
goes with it, so a holder or a waiter that dies leaves nothing. A row that ends otherwise leaves a mark that says how,
under the same lease: a second copy of the request is told the truth, and a late acquisition finds that it is over.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial, wraps
from hashlib import sha256
from typing import ParamSpec, TypeVar

from distlock_web.core.backend import Busy, Claim, Granted, LockInfo, Loss
from distlock_web.core.errors import BackendUnavailable
from distlock_web.core.runtime import now
from distlock_web.kit.blocking_port import BlockingVerbs

from .news import News
from .server import Changed, Connections, LeaseExists, Message, Row, deletes, is_absent, is_unchanged, puts, ranges

P = ParamSpec("P")
T = TypeVar("T")

#: Changes that others make in between, before it is said that they are in the way.
MAX_ROUNDS = 20
#: etcd's own limit for the operations of a transaction is 128.
MAX_RANGES = 100
#: Seconds after which etcd has removed what has ended: it rounds up, and looks twice a second.
LATE = 1.5
FIRST: Message = {"sort_target": "CREATE", "sort_order": "ASCEND", "limit": "1"}
LAST: Message = {"sort_target": "CREATE", "sort_order": "DESCEND", "limit": "1"}


class Keys:
    """Where a lock is: its rows are from ``rows`` on and before ``end``. A name has no NUL."""

    def __init__(self, path: bytes, name: str) -> None:
        self.rows = path + b"row/" + name.encode() + b"\0"
        self.end = self.rows[:-1] + b"\1"
        self._marks = path + b"end/" + name.encode() + b"\0"

    def row(self, token: str) -> bytes:
        return self.rows + sha256(token.encode()).hexdigest().encode()

    def mark(self, token: str) -> bytes:
        return self._marks + sha256(token.encode()).hexdigest().encode()


def _again(verb: Callable[P, T]) -> Callable[P, T]:
    """Do it anew where others have changed, in between, what it has read."""

    @wraps(verb)
    def attempts(*args: P.args, **kwargs: P.kwargs) -> T:
        for _ in range(MAX_ROUNDS):
            with suppress(Changed):
                return verb(*args, **kwargs)
        raise BackendUnavailable("etcd: others change this lock again and again.")

    return attempts


class EtcdVerbs(BlockingVerbs):
    def __init__(self, connections: Connections, path: bytes, news: News) -> None:
        self._etcd = connections
        self._outage = connections.server.outage
        self._path = path
        self._keys = partial(Keys, path)
        self._news = news

    # Acquire ------------------------------------------------------------------------------------------------------

    def acquire(self, claim: Claim, join: bool, memo: int | None) -> Granted | Busy:
        if join:
            self._news.expect(claim.token, self._keys(claim.name).rows)  # first: what ends from now on is heard of
        answer = self._attempt(claim, join, memo)
        if isinstance(answer, Busy) and not join:
            self._end_lease(_lease_of(claim.name, claim.token, claim.expire))
        return answer

    @_again
    def _attempt(self, claim: Claim, join: bool, memo: int | None) -> Granted | Busy:
        """Make a row, and see whether it is the first."""
        since, keys = now(), self._keys(claim.name)
        lease = self._begin(claim.name, claim.token, claim.expire, known=memo is not None)
        mine = keys.row(claim.token)
        free = is_absent(mine) if join else is_absent(keys.rows, keys.end)
        look = [ranges(keys.rows, keys.end, **FIRST), ranges(mine)]
        row = puts(mine, _says(claim), lease)
        _, (first, own) = self._etcd.change([is_absent(keys.mark(claim.token)), free], [row, *look], look)
        if not own:
            if not first:
                raise Changed
            return self._busy(claim, first[0])
        if first[0].key == mine:
            return Granted(own[0].created, since)
        before = {"max_create_revision": str(own[0].created - 1), **LAST}
        (ahead,) = self._read([ranges(keys.rows, keys.end, **before)])
        if not ahead:
            raise Changed
        self._news.expect(claim.token, keys.rows, ahead[0].key)
        return self._busy(claim, first[0], ahead[0], own[0].created)

    def _busy(self, claim: Claim, holder: Row, ahead: Row | None = None, memo: int | None = None) -> Busy:
        remaining = self._remaining(holder)
        # It asks in time for its own lease to go on. Whoever is next asks also when the holder's must have ended.
        recheck = math.ceil(claim.expire) / 3
        if ahead is not None and ahead.key == holder.key:
            recheck = min(recheck, remaining + LATE)
        return Busy(recheck, remaining, memo, holder.value["holder"])

    def cancel(self, claim: Claim) -> None:
        """When the lease has gone, so has its row, and a late copy of an acquisition makes none."""
        self._outage.now_or_later(partial(self._cancel, claim), within=2 * claim.expire + LATE)

    def _cancel(self, claim: Claim) -> None:
        self._end_lease(_lease_of(claim.name, claim.token, claim.expire))
        for first in self._firsts([claim.name]):
            if first is not None and first.value["token"] == claim.token:  # attached, or extended
                self._end_lease(first.lease)

    # Holding ------------------------------------------------------------------------------------------------------

    def extend(self, claims: Sequence[Claim], timeout: float | None) -> list[Loss | BackendUnavailable | None]:
        until = None if timeout is None else now() + timeout
        firsts = self._firsts([claim.name for claim in claims], until)
        held = [(claim, row) for claim, row in zip(claims, firsts, strict=True) if row and _is_of(row, claim.token)]
        kept = self._etcd.keep([first.lease for _, first in held], _left(until))
        ours = set[str]()
        for (claim, first), alive in zip(held, kept, strict=True):
            if alive and (first.value["ttl"] >= claim.expire or self._lengthen(claim, until)):
                ours.add(claim.token)
        return [None if claim.token in ours else self._loss(claim, until) or "expired" for claim in claims]

    @_again
    def _lengthen(self, claim: Claim, until: float | None) -> bool:
        """Put it under a longer lease. Whether it is ours still."""
        (row,) = self._firsts([claim.name], until)
        ours = row is not None and _is_of(row, claim.token)
        if row and ours and row.value["ttl"] < claim.expire:
            lease = self._begin(claim.name, claim.token, claim.expire, until)
            self._write(row, [puts(row.key, {**row.value, "ttl": claim.expire}, lease)], until)
        return ours

    def release(self, claim: Claim, cooldown: float, record: str | None) -> Loss | None:
        try:
            return self._release(claim, cooldown)
        except BackendUnavailable:
            if cooldown <= 0:  # nobody has to wait for the rest of its lease
                self._outage.postpone(partial(self._cancel, claim), after=0.0, within=2 * claim.expire + LATE)
            raise

    @_again
    def _release(self, claim: Claim, cooldown: float) -> Loss | None:
        (first,) = self._firsts([claim.name])
        if first is None or not _is_of(first, claim.token):
            return self._loss(claim)
        self._let_go(claim.name, first, "released", cooldown)
        return None

    def _let_go(self, name: str, row: Row, how: str, cooldown: float = 0.0) -> None:
        mark = puts(self._keys(name).mark(row.value["token"]), {"how": how}, row.lease)
        change = deletes(row.key)
        if cooldown > 0:
            value = {**row.value, "token": "", "state": "cooldown", "ttl": cooldown}
            change = puts(row.key, value, self._begin(name, row.value["token"] + "/cooldown", cooldown))
        self._write(row, [change, mark])

    def _loss(self, claim: Claim, until: float | None = None) -> Loss | None:
        """What has become of one that does not hold the lock any more; None: it was released."""
        keys = self._keys(claim.name)
        mark, first = self._read([ranges(keys.mark(claim.token)), ranges(keys.rows, keys.end, **FIRST)], until)
        if mark:
            return "revoked" if mark[0].value["how"] == "revoked" else None
        return "taken" if first else "expired"

    # Changing hands -----------------------------------------------------------------------------------------------

    @_again
    def detach(self, claim: Claim, transit: str, seconds: float) -> Loss | None:
        (first,) = self._firsts([claim.name])
        if first is not None and first.value["token"] == transit:
            return None
        if first is None or not _is_of(first, claim.token):
            return self._loss(claim) or "expired"
        value = {**first.value, "token": transit, "state": "transit", "ttl": seconds}
        self._write(first, [puts(first.key, value, self._begin(claim.name, transit, seconds))])
        return None

    @_again
    def attach(self, claim: Claim, transit: str) -> Granted | None:
        since = now()
        (first,) = self._firsts([claim.name])
        if first is None or first.value["token"] not in (transit, claim.token):
            return None
        lease = self._begin(claim.name, claim.token, claim.expire)
        self._write(first, [puts(first.key, _says(claim), lease)])  # the same row, and so the same fence
        return Granted(first.created, since)

    @_again
    def revoke(self, name: str, fence: int) -> bool:
        (first,) = self._firsts([name])
        if first is None or first.created != fence:
            return False
        self._let_go(name, first, "revoked")
        return True

    def inspect(self, names: Sequence[str] | None) -> list[LockInfo]:
        rows: dict[bytes, list[Row]] = defaultdict(list)
        below = self._path + b"row/"
        some = None if names is None else [ranges(keys.rows, keys.end) for keys in map(self._keys, names)]
        for found in self._read([ranges(below, below[:-1] + b"0")] if some is None else some):
            for row in found:
                rows[row.key[len(below) :].rpartition(b"\0")[0]].append(row)
        return [self._shown(name.decode(), sorted(found, key=lambda row: row.created)) for name, found in rows.items()]

    def _shown(self, name: str, rows: list[Row]) -> LockInfo:
        (first, says), *others = [(row, row.value) for row in rows]
        about = name, first.created, says["holder"], says["since"], self._remaining(first), len(others), says["state"]
        return LockInfo(*about, others[0][1]["since"] if others else None)

    # What they are made of ------------------------------------------------------------------------------------------

    def _read(self, wanted: Sequence[Message], until: float | None = None) -> list[list[Row]]:
        found: list[list[Row]] = []
        for begin in range(0, len(wanted), MAX_RANGES):
            found += self._etcd.change([], wanted[begin : begin + MAX_RANGES], timeout=_left(until))[1]
        return found

    def _firsts(self, names: Sequence[str], until: float | None = None) -> list[Row | None]:
        """Of each lock, the row of its holder."""
        wanted = [ranges(keys.rows, keys.end, **FIRST) for keys in map(self._keys, names)]
        return [found[0] if found else None for found in self._read(wanted, until)]

    def _write(self, row: Row, changes: Sequence[Message], until: float | None = None) -> None:
        if not self._etcd.change([is_unchanged(row)], changes, timeout=_left(until))[0]:
            raise Changed

    def _begin(self, name: str, token: str, seconds: float, until: float | None = None, *, known: bool = False) -> int:
        """A lease of this token, which lives so many seconds from now on. Who asks twice has one. ``known``: it has."""
        lease = _lease_of(name, token, seconds)
        if known and self._etcd.keep([lease], _left(until))[0]:
            return lease
        try:
            self._etcd.ask("lease/grant", {"ID": lease, "TTL": math.ceil(seconds)}, timeout=_left(until))
        except LeaseExists:
            if not self._etcd.keep([lease], _left(until))[0]:
                raise Changed from None
        return lease

    def _end_lease(self, lease: int) -> None:
        with suppress(Changed):  # it has ended by itself
            self._etcd.ask("lease/revoke", {"ID": lease})

    def _remaining(self, row: Row) -> float:
        """Seconds of what was asked for; etcd keeps whole ones, and tells how many are over."""
        (answer,) = self._etcd.ask("lease/timetolive", {"ID": row.lease})
        return float(max(0.001, min(int(answer.get("TTL", 0)) + 1, row.value["ttl"])))


def _is_of(row: Row, token: str) -> bool:
    return bool(row.value["token"] == token and row.value["state"] == "held")


def _says(claim: Claim) -> Message:
    about = {"token": claim.token, "state": "held", "ttl": claim.expire}
    return {**about, "holder": claim.holder, "since": time.time()}


def _lease_of(name: str, token: str, seconds: float) -> int:
    """A number of 63 bits that nobody else has."""
    return int(sha256(f"{name}\0{token}\0{math.ceil(seconds)}".encode()).hexdigest()[:16], 16) >> 1


def _left(until: float | None) -> float | None:
    return None if until is None else max(0.001, until - now())
