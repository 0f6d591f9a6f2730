"""One pool of connections, and short transactions on them: tried again where nothing has happened, bounded in time."""

from __future__ import annotations

import logging
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from typing import Any, TypeVar

from ...core.backend import StatementResult
from ...core.errors import BackendUnavailable, ConfigurationError, DistLockError, NotSent
from ...core.runtime import DICE, THREADS, drive, now
from ...kit import pool
from ...kit.outage import Outage
from ...kit.wakeups import Wakeups
from . import sqlite_fork
from .address import SQLAddress
from .dialects import SQLite, channel_of
from .faults import GONE, SILENT, Fault
from .schema import TABLES
from .statement import Statement, execute, execute_many
from .tables import Tables

logger = logging.getLogger("distlock_web")
T = TypeVar("T")

#: How often a transaction is tried of which the database says that nothing was done.
TRIES = 5

_this_thread = threading.local()


def in_transaction() -> bool:
    """Whether this thread is in a transaction of ours: this is code that garbage runs which was collected inside of it.

    A transaction of its own would wait for the one around it.
    """
    return getattr(_this_thread, "depth", 0) > 0


class NoConnectionFree(NotSent):
    """No connection became free."""


class NoAnswer(BackendUnavailable):
    """The server cannot be reached, or has not answered."""


class Locked(NotSent):
    """Others keep the row locked, or the whole file: the database answers, and has undone what was sent."""


class Unopened(Locked):
    """Others keep the whole file locked from each that opens it: it cannot be asked either who has a lock."""


class Transaction:
    """A transaction on a connection of ours; the caller's are never touched."""

    def __init__(self, connection: Any, database: Database, seconds: float) -> None:
        self.tables = database.tables
        self.woken: list[str] = []  #: tokens of waiters that have something to hear when it is committed
        self.begun = False
        self.ending = False  #: whether it was asked to commit: without an answer it is not known what was done
        self._connection = connection
        self._dialect = database.address.dialect
        self._database = database
        self._seconds = seconds
        self._until: float | None = now() + seconds  #: None: as long as the connection lives

    def run(self, statement: Statement, parameters: Mapping[str, Any] = {}) -> StatementResult:
        self._limit()
        return execute(self._connection, *statement.bound(self._dialect.placeholder, parameters))

    def run_many(self, statement: Statement, several: Sequence[Mapping[str, Any]]) -> None:
        """The same with each of these parameters, without an answer."""
        if len(several) == 1:
            self.run(statement, several[0])
            return
        self._limit()
        bound = [statement.bound(self._dialect.placeholder, parameters) for parameters in several]
        execute_many(self._connection, bound[0][0], [values for _, values in bound])

    def wake(self, tokens: Sequence[str]) -> None:
        """The waiters with these tokens have something to hear, when this is committed."""
        self.woken += tokens
        if self._database.notify is not None:
            others = [token for token in tokens if not self._database.wakeups.expects(token)]
            if others:
                self.run_many(
                    self._database.notify, [{"channel": channel_of(token), "token": token} for token in others]
                )

    def begin(self) -> None:
        """Within half of the time: no row is waited for yet."""
        until, self._until = self._until, now() + self._seconds / 2
        self._say(self._dialect.begin(self._connection, self._seconds))
        self._until, self.begun = until, True

    def commit(self) -> None:
        self.ending = True
        self._say("COMMIT")

    def wait_for_the_commit(self) -> None:
        """For as long as the connection lives: another one would only hang beside it."""
        self._until = None

    def roll_back(self, fault: Fault) -> bool:
        """Nothing of it stays. False: that takes the end of the connection, which does not answer."""
        if fault.kind in ("gone", "silent"):
            return False
        try:
            self._say("ROLLBACK")
        except self._database.address.way.errors:
            return False
        return True

    def _say(self, text: str) -> None:
        self._limit()
        execute(self._connection, text)

    def _limit(self) -> None:
        left = None if self._until is None else max(0.05, self._until - now())
        self._dialect.limit(self._connection, left)


class Database:
    """The connections for one purpose.

    ``outage``: what is known of the server; None for those that find it out. ``patient``: it asks even where that is
    silent.
    """

    def __init__(
        self,
        address: SQLAddress,
        tables: Tables,
        wakeups: Wakeups,
        outage: Outage | None,
        *,
        connections: int,
        patient: bool = False,
    ) -> None:
        self.address = address
        self.tables = tables
        self.wakeups = wakeups
        self.notify = address.dialect.notify
        self.on_left: Callable[[], None] = lambda: None  #: told when the server takes no writes any more
        self._outage = outage
        self._patient = patient
        self._version = address.way.version
        #: Their COMMIT has no answer yet. The server has these connections still, so they keep their places.
        self._hanging: list[pool.Lent[Any]] = []
        self._closed = False
        new = partial(pool.Lent[Any], self._connect, self._close)
        self.connections: pool.Pool[pool.Lent[Any]] = pool.Pool(connections, address.pool_timeout, new)
        self._passing: Callable[[], AbstractContextManager[None]] = nullcontext
        if isinstance(address.dialect, SQLite):
            self._passing = sqlite_fork.gate.passing
            sqlite_fork.gate.pools.add(self.connections)

    def run(
        self,
        work: Callable[[Transaction], T],
        timeout: float | None = None,
        *,
        begin: bool = True,
        create: bool = True,
    ) -> T:
        """Do the work in a transaction: all of it, or nothing. Without ``begin`` each statement is one of its own.

        ``timeout``: as ``Outage.seconds_for`` gives it; None: as long as an answer may take. Tables that are missing
        are made first, if the settings have us make them; not without ``create``.

        ``BackendUnavailable`` within a bounded time; it may have been done all the same, if that came of the commit.
        """
        if self._outage is not None and not self._patient:
            self._outage.refuse_if_silent()
        seconds = self.address.timeout if timeout is None else timeout
        for tried in range(1, TRIES + 1):
            try:
                with self._passing():
                    return self._attempt(work, seconds, begin, create and self.address.create)
            except _Undone as undone:
                kind = undone.fault.kind
                if (
                    tried == TRIES
                    or (kind != "again" and tried > 1)
                    or (kind == "silent" and not self._answers(seconds / 2))
                ):
                    raise self._translated(undone.error, undone.fault, seconds) from undone.error
                if kind == "no_table":
                    self.create_tables()
                elif kind == "again":
                    time.sleep(DICE.random() * 0.005 * 2**tried)  # to meet the others not again
        raise AssertionError("the last try raises")

    def read(self, statement: Statement, parameters: Mapping[str, Any]) -> Sequence[Any]:
        """One question that locks and changes nothing, in one request. ``BackendUnavailable``."""
        return self.run(lambda transaction: transaction.run(statement, parameters).all(), begin=False)

    def create_tables(self) -> None:
        """Make the tables where they are missing. Another process may do the same at the same moment."""
        # SQLite: in one transaction. A dozen of them, of processes that start together, keep its file for seconds.
        self.run(self._create_tables, begin=isinstance(self.address.dialect, SQLite), create=False)

    def _create_tables(self, transaction: Transaction) -> None:
        for table in TABLES:
            try:
                transaction.run(self.tables.look_at(table))
            except self.address.way.errors as error:
                if self.address.dialect.fault(error).kind != "no_table":
                    raise
                for statement in self.tables.create(table):
                    transaction.run(statement)

    def _attempt(self, work: Callable[[Transaction], T], seconds: float, begin: bool, create: bool) -> T:
        # After an exception of a signal's handler nothing more is sent on the connection: its end undoes what was not
        # committed. One that comes outside of the block leaves garbage, which keeps no place.
        lent, usable, hangs = self._borrow(), False, False
        transaction = Transaction(lent.connection, self, seconds)
        around = getattr(_this_thread, "depth", 0)
        try:
            _this_thread.depth = around + 1
            if begin:
                transaction.begin()
            result = work(transaction)
            if begin:
                transaction.commit()
            usable = True
            return result
        except self.address.way.errors as error:
            fault = self._fault(error, lent.connection)
            if transaction.ending and fault.kind == "locked":  # a COMMIT may be done all the same
                fault = Fault("not_now", fault.meaning)
            hangs = transaction.ending and fault == SILENT
            usable = transaction.roll_back(fault)
            if self._nothing_done(fault, transaction, create, lent.was_idle):
                raise _Undone(error, fault) from error
            # A COMMIT waits for no row; and while the server is silent one that hangs keeps its place.
            raise self._translated(error, fault, None if hangs else seconds) from error
        finally:
            _this_thread.depth = around  # before any call, after which an exception may come
            if hangs:
                self._hanging.append(lent)
                if self._closed:  # no later use may come, which would give it up
                    self._give_up_hanging()
            else:
                lent.end(usable=usable)
            del lent  # an error that is kept has this frame, and would keep the place of a later user
            if transaction.ending:
                for token in transaction.woken:
                    self.wakeups.wake(token)

    def _borrow(self) -> pool.Lent[Any]:
        if self._hanging and not (self._outage is not None and self._outage.silent):
            self._give_up_hanging()  # a COMMIT has been answered since, and so were those before it
        if (version := self.address.way.version) != self._version:
            self.connections.drop()
            self._version = version  # last: until then another thread is lent none of the old ones either
        try:
            return self.connections.borrow()
        except pool.AllInUse:
            raise NoConnectionFree(
                f"{self.address.name}: all {self.connections.size} connections of this process are in use "
                f'for {self.address.pool_timeout:g} s; see OPTIONS["max_connections"].'
            ) from None

    def _give_up_hanging(self) -> None:
        for _ in range(len(self._hanging)):
            with suppress(IndexError):  # two threads may do this
                self._hanging.pop(0).end(usable=False)

    @contextmanager
    def open(self) -> Iterator[Any]:
        """A connection for long, closed at the end."""
        connection = self._connect(None)
        try:
            yield connection
        finally:
            self._close(connection)

    def _answers(self, seconds: float) -> bool:
        """Whether a fresh connection has an answer within so many seconds: then it was ours that had died, idle."""
        outage = self._outage
        return outage is not None and drive(outage.answers(outage.ask(), seconds, THREADS))

    def _nothing_done(self, fault: Fault, transaction: Transaction, create: bool, was_idle: bool) -> bool:
        """Whether the same may be tried again."""
        if fault.kind == "no_table":
            return create
        if fault.kind == "silent":
            return not transaction.begun
        if fault.kind == "not_here":  # on a fresh connection, which may lead to another server
            return was_idle and not transaction.ending
        return fault.kind == "again" or (fault.kind == "gone" and not transaction.ending)

    def _connect(self, _timeout: float | None) -> Any:  # the driver has its own
        """A connection of the driver, each of whose statements is a transaction of its own: we begin and end ourselves.

        Then it is known what an error is the answer to.
        """
        connection = None
        try:
            connection = self.address.way.connect()
            self.address.dialect.connected(connection)
            usable, connection = connection, None
            return usable
        except self.address.way.errors as error:
            # psycopg's has a connection that was not answered in its frames, in a circle: it would stay open until the
            # next garbage collection, and an outage has one for each try.
            traceback.clear_frames(error.__traceback__)
            fault = self.address.dialect.fault(error)
            if fault.kind in ("unknown", "gone"):
                fault = Fault("gone", "cannot be reached")
            told = self._translated(error, fault)
            raise (Unopened(str(told)) if isinstance(told, Locked) else told) from error
        except (RuntimeError, TypeError) as error:
            # Of PyMySQL: what a password needs beside it; a keyword it has not. Of pytest-django: a test has no mark.
            why = str(error).rstrip(".")
            raise ConfigurationError(f"{self.address.name} cannot be connected to: {why}.") from error
        finally:
            if connection is not None:
                self._close(connection)

    def _close(self, connection: Any) -> None:
        with suppress(*self.address.way.errors, OSError):  # what is broken is closed
            if isinstance(self.address.dialect, SQLite):
                # While a cursor of it is alive, in an exception's frames, it is not really closed.
                with suppress(*self.address.way.errors):  # a disk that fails: it is closed all the same
                    connection.rollback()
            connection.close()

    def _fault(self, error: Exception, connection: Any) -> Fault:
        fault = self.address.dialect.fault(error)
        if self.address.dialect.is_broken(connection) and fault != SILENT:
            fault = GONE
        if fault.kind in ("gone", "silent", "not_here"):
            # The others are most likely dead, too, or lead to the same server: this need not be found out of each.
            self.connections.drop()
        if fault.kind == "not_here":
            self.on_left()
        return fault

    def _translated(self, error: Exception, fault: Fault, seconds: float | None = None) -> DistLockError:
        """The error for our caller; the driver's own stays behind it as ``__cause__``.

        ``seconds`` that there were for an answer; None: all that it may take.
        """
        words = _words(error)
        if fault.kind == "silent" and self._outage is not None:
            self._outage.begin(NoAnswer(words), seconds)
        text = f"{self.address.name} {fault.meaning or 'broke the connection'} ({words})."
        if fault.kind == "no_table":
            return ConfigurationError(f"{text[:-1]}: {self.address.remedy}.")
        if fault.kind == "wrong":
            return ConfigurationError(text)
        if fault.kind == "unknown":
            return DistLockError(f"{self.address.name} answered with an unknown error: {words}")
        if fault.kind == "again":
            text = f"{self.address.name} undid the transaction {TRIES} times, for others were in its way ({words})."
        kinds = {"gone": NoAnswer, "silent": NoAnswer, "locked": Locked}
        return kinds.get(fault.kind, BackendUnavailable)(text)

    def close(self) -> None:
        self._closed = True  # first: what hangs from now on is given up by its own thread
        self._give_up_hanging()
        self.connections.drop()


class _Undone(Exception):
    """Nothing was done, and the same may be tried again."""

    def __init__(self, error: Exception, fault: Fault) -> None:
        self.error = error
        self.fault = fault


def _words(error: Exception) -> str:
    """What the database said, in one line; never the statement, nor its parameters."""
    text = " ".join(str(error).split())
    return text.rstrip(".") or type(error).__name__
