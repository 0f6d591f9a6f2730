"""``until="commit"``: the decorator owns the transaction, so that the lock is released after the commit.

A plain decorator cannot do that under ``ATOMIC_REQUESTS``: Django opens its transaction around the already decorated
view. So the view is marked non-atomic for the database that is taken over, and the order is: lock, BEGIN, view, extend
the lease, COMMIT, ``on_commit`` hooks, release.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, Literal, TypeVar
from weakref import ref

from django.db import DEFAULT_DB_ALIAS, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from ..core.backend import StatementResult
from ..core.database_address import DatabaseAddress
from ..core.errors import ConfigurationError
from ..locks.commit import before_commit, before_judging, rolled_back, transaction_begun
from ..locks.hooks import Context
from ..locks.lease import Lease
from .databases import address_of

R = TypeVar("R")


class DjangoTransactions:
    """The transactions of ``until="commit"`` on Django's databases: ``database=`` is an alias, or left out."""

    def mark(self, wrapper: Callable[..., Any], database: Any) -> None:
        alias = database or DEFAULT_DB_ALIAS
        if alias not in connections.settings:
            known = ", ".join(map(repr, connections.settings))
            raise ConfigurationError(f'until="commit": database={alias!r} is not in DATABASES, which has {known}.')
        # What transaction.non_atomic_requests sets; a copy, for the function's own opt-outs are the function's.
        own: set[str] = getattr(wrapper, "_non_atomic_requests", set())
        wrapper._non_atomic_requests = {*own, alias}  # type: ignore[attr-defined]

    def context(self) -> Context:
        return "none"

    def refuse_open(self, function_name: str, database: Any) -> None:
        _refuse_open(function_name, transaction.get_connection(database))

    def run(self, function_name: str, call: Callable[[], R], lease: Lease, database: Any) -> R:
        def is_to_be_committed(result: object) -> bool:
            if getattr(result, "exception", False) is True:
                # REST framework made a response of an exception. It rolls back itself, but only under ATOMIC_REQUESTS.
                transaction.set_rollback(True, using=database)
            return not transaction.get_rollback(using=database)

        own: Any = transaction.atomic(using=database, durable=True)
        own.distlock_function = function_name
        with own:
            transactions = _committing(transaction.get_connection(database))
            for each in transactions:
                transaction_begun(lease, each)
            before_judging(lease, is_to_be_committed)
            result = call()
            if is_to_be_committed(result):
                # Not merely a look at the deadline: the commit has a full lease before it. LeaseLost rolls back.
                before_commit(lease, transactions)
            else:
                rolled_back(lease)
        return result

    def run_open(self, function: Callable[..., Any], call: Callable[[], R], database: Any) -> R:
        """In the transaction of ``ATOMIC_REQUESTS`` that :meth:`mark` takes the view out of."""
        alias = database or DEFAULT_DB_ALIAS
        own: set[str] = getattr(function, "_non_atomic_requests", set())
        atomic = connections[alias].settings_dict["ATOMIC_REQUESTS"] and alias not in own
        with transaction.atomic(using=alias) if atomic else nullcontext():
            return call()


class _DjangoTransaction:
    """One of Django's, for a store that is in the same database."""

    placeholder: Literal["%s", "?"] = "%s"

    def __init__(self, connection: BaseDatabaseWrapper) -> None:
        self._connection = connection

    @property
    def address(self) -> DatabaseAddress:
        return address_of(self._connection)

    def execute(self, statement: str, parameters: Sequence[str | int]) -> StatementResult:
        with self._connection.cursor() as cursor:
            cursor.execute(statement, parameters)
            if cursor.description is None:
                return StatementResult([], cursor.rowcount)
            columns = [column[0] for column in cursor.description]
            rows = [SimpleNamespace(**dict(zip(columns, row, strict=True))) for row in cursor.fetchall()]
            return StatementResult(rows, cursor.rowcount)


def _committing(connection: BaseDatabaseWrapper) -> list[_DjangoTransaction]:
    """None: nothing is committed, in a TestCase."""
    testing = any(getattr(block, "_from_testcase", False) for block in connection.atomic_blocks)
    return [] if testing else [_DjangoTransaction(connection)]


def alias_of(database: object) -> str | None:
    """The alias that ``database=`` means; None if it means something else, such as an SQLAlchemy session."""
    if database is None:
        return DEFAULT_DB_ALIAS
    return database if isinstance(database, str) else None


def _refuse_open(function_name: str, connection: BaseDatabaseWrapper) -> None:
    if in_real_transaction(connection):
        raise ConfigurationError(
            f'{function_name}: until="commit" opens the transaction itself, but one is open already on '
            f"{connection.alias!r}: its commit would come after the lock is released. {_remedy(connection)}"
        )
    if not connection.in_atomic_block and not connection.get_autocommit():
        raise ConfigurationError(
            f'{function_name}: until="commit" needs autocommit on {connection.alias!r}; it is off, so nothing would '
            f"be committed at the end."
        )


def _remedy(connection: BaseDatabaseWrapper) -> str:
    """What to do about the transaction that is open, by who has opened it."""
    ours = [found for block in connection.atomic_blocks if (found := getattr(block, "distlock_function", None))]
    if ours:
        return f'It is that of {ours[-1]}, which has until="commit", too: say it in one of the two alone.'
    if not connection.settings_dict["ATOMIC_REQUESTS"]:
        return "Call it outside of atomic()."
    return (
        "Put the decorator outermost: above @api_view, on a class-based view's dispatch "
        "(method_decorator(..., name='dispatch')), outside of atomic(). Leave once below @api_view, and put "
        "@transaction.non_atomic_requests above that; also above a decorator that lacks functools.wraps, which hides "
        "this one from Django. For single handlers or actions of a class, and not for what they call, there is "
        "distlock_web.django.views.UntilCommitMixin. `manage.py check` says which of these it is."
    )


def in_real_transaction(connection: BaseDatabaseWrapper) -> bool:
    """Whether a transaction is open that other code will commit; the one that a TestCase wraps a test in is none."""
    return connection.in_atomic_block and not in_test_case(connection)


def _begun_without_autocommit(connection: BaseDatabaseWrapper) -> bool:
    """Whether a transaction is open that no ``atomic()`` has opened: without autocommit each statement begins one."""
    driver = connection.connection
    if driver is None or connection.autocommit:
        return False
    status = getattr(getattr(driver, "info", None), "transaction_status", None)  # psycopg's, of which 0 is idle
    return bool(getattr(driver, "in_transaction", True) if status is None else status)  # sqlite3's; MySQL's do not tell


def in_test_case(connection: BaseDatabaseWrapper) -> bool:
    """Whether nothing is open but the transaction that a TestCase wraps a test in."""
    blocks = connection.atomic_blocks
    return bool(blocks) and getattr(blocks[-1], "_from_testcase", False)


def savepoint_of_test_case(alias: str) -> transaction.Atomic:
    """A savepoint in that transaction. It does not count as an open transaction."""
    savepoint = transaction.atomic(using=alias)
    savepoint._from_testcase = True  # type: ignore[attr-defined]
    return savepoint


def open_transaction() -> str | None:
    """For the warning about plain locks: the transaction that the running code is inside of."""
    for known in getattr(_opened, "connections", ()):
        connection = known()
        if connection is None:
            continue
        if in_real_transaction(connection) if connection.in_atomic_block else _begun_without_autocommit(connection):
            return f"a transaction on the database {connection.alias!r}"
    return None


# Which connections this thread has opened. Every lock asks, and connections.all() costs as much as a tenth of a lock.
# Weakly: a project may make one for each job, and let go of it.
_opened = threading.local()


def _remember(connection: BaseDatabaseWrapper, **kwargs: object) -> None:
    known = [each for each in getattr(_opened, "connections", ()) if each() not in (None, connection)]
    if not hasattr(connection, "distlock"):  # the locks' own
        known.append(ref(connection))
    _opened.connections = known


connection_created.connect(_remember, dispatch_uid="distlock_web")
