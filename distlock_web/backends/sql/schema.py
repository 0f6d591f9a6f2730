"""The tables: a row for each name, each waiter, each holder of a shared lock, and each record of what is done. The
migrations make the same.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    name: str
    columns: tuple[tuple[str, str], ...]  #: with their types; the first is the key
    indexes: tuple[tuple[str, str], ...] = ()  #: their names, and of which columns

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.columns)


LEASE = Table(
    "distlock_lease",
    (
        ("name_key", "VARCHAR(64)"),  # the digest of the name
        ("name", "TEXT"),  # for people
        ("token", "VARCHAR(100)"),  # whose it is until ``expires_at``; empty: free
        # held; granted: handed over and not yet heard of by its new owner; transit; cooldown; done; shared: by several
        ("state", "VARCHAR(10)"),
        ("fence", "BIGINT"),
        ("since", "BIGINT"),  # these two in microseconds, by the database's clock
        ("expires_at", "BIGINT"),
        ("holder", "TEXT"),
        # The last that released it, and the last that it was taken from by force: a verb may be sent twice.
        ("released", "VARCHAR(100)"),
        ("revoked", "VARCHAR(100)"),
        ("queued", "SMALLINT"),  # 1: a claim may be waiting
    ),
    (("distlock_lease_expires_at", "expires_at"),),
)
WAITER = Table(
    "distlock_waiter",
    (
        ("token", "VARCHAR(100)"),
        ("name_key", "VARCHAR(64)"),
        ("place", "BIGINT"),
        ("expire", "BIGINT"),  # of the lease that it wants, in microseconds
        ("deadline", "BIGINT"),  # who has not asked again by then is dead
        ("holder", "TEXT"),
        ("wake", "SMALLINT"),  # 1: it is to ask again now
    ),
    (("distlock_waiter_queue", "name_key, place"),),
)
HOLDER = Table(
    "distlock_holder",
    (
        ("token", "VARCHAR(100)"),
        ("name_key", "VARCHAR(64)"),
        ("state", "VARCHAR(10)"),
        ("fence", "BIGINT"),
        ("since", "BIGINT"),
        ("expires_at", "BIGINT"),
        ("holder", "TEXT"),
    ),
    (("distlock_holder_name_key", "name_key"), ("distlock_holder_expires_at", "expires_at")),
)
RECORD = Table(
    "distlock_record",
    (
        ("name_key", "VARCHAR(64)"),
        ("fence", "BIGINT"),  # of the run that has left it: it counts where the lease is done, with this fence
        ("expires_at", "BIGINT"),
        ("record", "LONGTEXT"),
    ),
    (("distlock_record_expires_at", "expires_at"),),
)
TABLES = (LEASE, WAITER, HOLDER, RECORD)
