"""Locks in a database, MariaDB or MySQL, PostgreSQL, SQLite: ``"BACKEND": "sql"``. See docs/sql.md."""

from __future__ import annotations

import logging

from ...core.backend import CallersTransaction, Capabilities, Claim, Loss
from ...core.config import StoreConfig
from ...core.database_address import DatabaseAddress
from ...core.errors import DistLockError
from ...core.findings import Finding
from ...core.runtime import new_ident
from ...kit.blocking_port import BlockingBackend
from ...kit.outage import Outage
from ...kit.wakeups import Wakeups
from .address import OPTIONS, address
from .callers import Borrowed, is_at
from .database import Database, NoAnswer, NoConnectionFree, Transaction
from .diagnose import diagnose
from .dialects import PostgreSQL, SQLite
from .locked_row import NOBODY, microseconds
from .news import Poller, PostgresListener
from .schema import TABLES
from .tables import Tables, key_of
from .verbs import SQLVerbs

logger = logging.getLogger("distlock_web")

#: For the renewals alone: a crowd that releases keeps no lease from being renewed.
RENEWAL_CONNECTIONS = 2
#: Opened when all others are in use, for those that have a lock: else those that want one keep it from being released.
RESERVE_CONNECTIONS = 2


class SQLBackend(BlockingBackend):
    """One database: connections for requests, for renewals, a reserve, and one that finds out whether it answers."""

    capabilities = Capabilities(
        queue=True,
        transfer=True,
        records=True,
        bounded_queue=True,
        sharing=True,
        min_expire=0.05,
    )
    settings = frozenset({"LOCATION", "DATABASE", "OPTIONS"})
    options = OPTIONS

    def __init__(self, config: StoreConfig) -> None:
        self._address = address(config)
        # Django's migrations may be what is to run under a lock; but "create": False in the settings is a prohibition.
        self.makes_tables = config.options.get("create") is not False
        self._tables = Tables(self._address.dialect, self._address.schema)
        self._wakeups = Wakeups()
        self._outage = Outage(self._address.name, self._probe, self._address.timeout)
        self._requests = self._database(self._address.max_connections)
        self._renewals = self._database(RENEWAL_CONNECTIONS, patient=True)
        self._reserve = self._database(RESERVE_CONNECTIONS)
        self._probing = Database(self._address, self._tables, self._wakeups, None, connections=1)
        listens = isinstance(self._address.dialect, PostgreSQL)
        self._news = (PostgresListener if listens else Poller)(self._wakeups, self._requests)
        for database in (self._requests, self._renewals, self._reserve):
            database.on_left = self._news.leave
        verbs = SQLVerbs(self._requests, self._reserve, self._news, self._outage)
        renewing = SQLVerbs(self._renewals, self._reserve, self._news, self._outage)
        super().__init__("sql", verbs, self._wakeups, renewing=renewing)

    def _database(self, connections: int, patient: bool = False) -> Database:
        return Database(
            self._address, self._tables, self._wakeups, self._outage, connections=connections, patient=patient
        )

    def _probe(self) -> None:
        """Does what requests do, a write and its COMMIT. Raises ``BackendUnavailable`` if there is no answer at all."""

        def work(transaction: Transaction) -> None:
            tables, key = transaction.tables, f"probe:{new_ident()}"
            transaction.run(tables.insert, {**NOBODY, "name_key": key, "name": ""})
            transaction.run(tables.forget, {"keys": [key]})
            if self._outage.is_own_thread:
                transaction.wait_for_the_commit()

        try:
            self._probing.run(work)
        except (NoAnswer, NoConnectionFree):
            raise
        except DistLockError as error:  # an answer all the same: the next caller is told
            logger.debug("%s", error)
        finally:
            self._probing.connections.drop()  # each time on a fresh one

    def is_at(self, address: DatabaseAddress) -> bool:
        return is_at(self._address, address)

    @property
    def one_writer(self) -> bool:
        return isinstance(self._address.dialect, SQLite)

    def begin_within(self, transaction: CallersTransaction) -> None:
        """It writes nothing, and has the file's write lock all the same.

        Else it would have to be had when the caller first writes: SQLite refuses that at once, and for good, if
        another caller has written since this one has read, such as one that waits for this very lock.
        """
        Borrowed(transaction).run(self._tables.touch)

    def record_within(
        self, transaction: CallersTransaction, claim: Claim, fence: int | None, cooldown: float, record: str
    ) -> Loss | None:
        borrowed = Borrowed(transaction)
        if self.one_writer:
            row = borrowed.run(self._tables.lock_one, {"key": key_of(claim.name)}).first()
            if row is None or row.token != claim.token or row.expires_at <= row.now:
                return "expired"
        key = key_of(claim.name)
        try:
            row = {"key": key, "fence": fence or 0, "lives": microseconds(cooldown), "record": record}
            borrowed.run(self._tables.add_record, row)
        except Exception:  # of whatever library the caller's connection is
            if not self.one_writer and self._is_recorded(key):
                return "taken"
            raise
        return None

    def _is_recorded(self, key: str) -> bool:
        """Whether another run has committed: one whose lease had ended, or that began when ours had."""
        try:
            return bool(self._requests.read(self._tables.any_record, {"key": key}))
        except DistLockError:  # then the error of the caller's connection is the one to be told of
            return False

    def prepare(self) -> str:
        """Make the tables where they are missing, whatever ``OPTIONS["create"]`` says; what was done, in words."""
        self._requests.create_tables()
        return f"{self._address.name} has the tables {', '.join(table.name for table in TABLES)}."

    def diagnose(self) -> list[Finding]:
        return diagnose(self._requests)

    def close(self) -> None:
        self._outage.close()
        self._news.close()
        for database in (self._requests, self._renewals, self._reserve, self._probing):
            database.close()
        super().close()
