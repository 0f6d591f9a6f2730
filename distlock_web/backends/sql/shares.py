"""Those that hold one lock together: ``limit``, ``shared``.

The row of such a lock says that it is ``shared`` until the last of its leases ends, so that one that wants to be alone
finds it taken. Its holders have a row each in a table of their own. That table is used only while the row of the lock
is locked, and only for a shared lock, or a token that would share it.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ...core.backend import SHARED, Ends, LockInfo, at_once
from ...core.runtime import Token
from .database import Transaction
from .tables import MICROSECONDS, from_ascii, to_ascii

#: What the row of such a lock has for its token and its state.
SEVERAL = "shared"


@dataclass(slots=True)
class Share:
    """One of the holders, with what a row of ``distlock_lease`` says of a lock's only one."""

    token: Token
    state: str  # held, granted, cooldown; revoked: it holds nothing, and is told so until its lease would have ended
    fence: int
    since: int
    expires_at: int
    holder: str


def _by_end(share: Share) -> tuple[int, int]:
    return share.expires_at, share.fence


class Shares:
    """The holders of one lock, by token. Changed here, and written by :meth:`save`."""

    def __init__(self, rows: Iterable[Any], now: int) -> None:
        self._read = {row.token: row for row in rows}
        self._by_token = {
            row.token: Share(Token(row.token), row.state, row.fence, row.since, row.expires_at, from_ascii(row.holder))
            for row in self._read.values()
            if row.expires_at > now
        }
        self._holding: list[Share] | None = None
        self._limit = SHARED
        self.known = self.ends  #: as those know it who wait
        #: They were handed a place, and their lease has ended without a word of theirs.
        self.unheard = [
            Token(token) for token, row in self._read.items() if row.state == "granted" and token not in self._by_token
        ]

    def get(self, token: str) -> Share | None:
        return self._by_token.get(token)

    def add(self, share: Share) -> None:
        self._by_token[share.token] = share
        if self._holding is not None:  # put where it belongs: a thousand may enter in one transaction
            insort(self._holding, share, key=_by_end)
            self._limit = min(self._limit, share.token.limit)

    def remove(self, token: str) -> None:
        del self._by_token[token]
        self.changed()

    def changed(self) -> None:
        """One of them has another state, or its lease another end."""
        self._holding = None

    @property
    def holding(self) -> Sequence[Share]:
        """Those that have it, the one whose lease ends first in front."""
        if self._holding is None:
            self._holding = sorted(
                (share for share in self._by_token.values() if share.state != "revoked"), key=_by_end
            )
            self._limit = min((share.token.limit for share in self._holding), default=SHARED)
        return self._holding

    @property
    def limit(self) -> int:
        """How many may have it, as far as its holders are concerned."""
        return self._limit if self.holding else SHARED

    @property
    def ends(self) -> Ends[int]:
        return Ends([share.expires_at for share in self.holding], self.limit)

    def admits(self, token: Token) -> bool:
        """Whether this token may have it beside those that have it."""
        return len(self.holding) < at_once(self.limit, token.limit)

    def lines(self, row: Any, waiters: int) -> list[LockInfo]:
        """A line for each that has the lock of this row; only the first tells of those who wait."""
        holding = self.holding
        return [
            LockInfo(
                from_ascii(row.name), share.fence, share.holder, share.since / MICROSECONDS,
                (share.expires_at - row.now) / MICROSECONDS, waiters if number == 0 else 0,
                "held" if share.state == "granted" else share.state, holders=len(holding), limit=self.limit,
            )
            for number, share in enumerate(holding)
        ]  # fmt: skip

    def save(self, transaction: Transaction, key: str) -> None:
        tables = transaction.tables
        added: list[dict[str, Any]] = []
        gone = [token for token in self._read if token not in self._by_token]
        if gone:
            transaction.run(tables.drop_shares, {"tokens": gone})
        for share in self._by_token.values():
            read = self._read.get(share.token)
            now = {
                "state": share.state, "fence": share.fence, "since": share.since, "expires_at": share.expires_at,
                "holder": to_ascii(share.holder),
            }  # fmt: skip
            if read is None:
                added.append({"token": share.token, "name_key": key, **now})
            elif (read.state, read.fence, read.expires_at) != (share.state, share.fence, share.expires_at):
                transaction.run(tables.change_share, {"whose": share.token, **now})  # it may have been taken anew
        if added:
            transaction.run_many(tables.add_share, added)
