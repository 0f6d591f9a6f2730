"""A lock and a transaction of its caller's: the lock has to outlive the commit.

With ``until="commit"`` the decorator opens the transaction inside of the lock. Who does so for a framework calls
``transaction_begun`` as the first in it and ``before_commit`` as the last: that extends the lease, and writes what
``once`` keeps in that very transaction, if the store is in its database. Between them, when the function has returned,
what ``before_judging`` was given is called. A plain lock that is taken or released inside of a transaction of other
code causes a warning.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from types import CodeType
from typing import Any, TypeAlias

from ..core import integrations
from ..core.backend import CallersTransaction
from ..core.errors import ConfigurationError, OpenTransactionWarning
from ..core.runtime import now
from .call_site import outside
from .scope import Scope

#: A ``distlock_web.Lease``. Not imported: it is above this, for its end warns of open transactions.
Lease: TypeAlias = Any

_warned: dict[str, dict[Any, Any]] = {}  #: by file, what has been warned of: Python's own memory of it


def transaction_begun(lease: Lease, transaction: CallersTransaction) -> None:
    """The first in a transaction of ``until="commit"``: its record is written at the end of it, perhaps."""
    scope: Scope = lease._scope
    backend = scope.spec.store.backend
    if store_in(scope, [transaction]) is not None and backend.one_writer:
        backend.begin_within(transaction)


def before_judging(lease: Lease, settle: Callable[[Any], bool]) -> None:
    """``settle`` gets what the function returned, before anybody asks whether its work is done. False: it is undone.

    Then nobody is asked, for a transaction that is to be rolled back may not be read any more.
    """
    scope: Scope = lease._scope
    scope.settle = settle


def is_once(lease: Lease) -> bool:
    """Whether it is that of a ``once``, which leaves a record."""
    scope: Scope = lease._scope
    return scope.asked is not None


def before_commit(lease: Lease, transactions: Sequence[CallersTransaction]) -> None:
    """The last before the commit of ``until="commit"``, in one database or several. ``LeaseLost`` has to roll it back.

    The lease is extended: the commit has a full one before it. A record is written in the transaction, if the store is
    in that database, and there is no other that may fail to commit.
    """
    scope: Scope = lease._scope
    if scope.asked and scope.record is None:
        raise ConfigurationError(
            f'{scope.spec.function}: once with until="commit" commits when the function has ended, together with the '
            f"record that it is done. The function must not commit by itself: leave out commit() and session.begin(), "
            f"and call flush() where it needs what the database has made."
        )
    at_store = store_in(scope, transactions)
    backend = scope.spec.store.backend
    if at_store is not None and backend.one_writer:  # to extend would wait for the end of this very transaction
        lease.raise_if_lost()
    else:
        lease.extend()
    if at_store is not None and len(transactions) == 1:
        record_within(scope, at_store)


def rolled_back(lease: Lease) -> None:
    """Without an exception: what was done is undone. Nothing is recorded, and the lock is free at its release."""
    scope: Scope = lease._scope
    scope.record, scope.keep_for = None, 0.0


def store_in(scope: Scope, transactions: Sequence[CallersTransaction]) -> CallersTransaction | None:
    """Of these transactions of a caller's, the one in the database where ``once`` keeps its records; None: none is."""
    if not scope.asked:
        return None
    backend = scope.spec.store.backend
    return next((each for each in transactions if backend.is_at(each.address)), None)


def record_within(scope: Scope, transaction: CallersTransaction) -> None:
    """Write the record in the caller's transaction, the last before that commits. The release comes after the commit.

    ``LeaseLost``: it must not commit.
    """
    backend = scope.spec.store.backend
    (hold,) = scope.acquired
    since = now()
    cooldown = hold.since + scope.keep_for - since
    if scope.record is None or cooldown <= 0:  # it took longer than it stays done
        return
    loss = backend.record_within(transaction, hold.claim, hold.fence, cooldown, scope.record)
    if loss is not None:
        hold.lose(loss)
        raise hold.lost_error()
    hold.keep_by_record(since, cooldown)


# A transaction of other code ----------------------------------------------------------------------------------------


def open_transaction() -> str | None:
    """In words, the transaction that the running code is inside of, and that other code will end; or None."""
    return next((found for ask in integrations.installed.open_transactions if (found := ask()) is not None), None)


def warn_once(scope: Scope) -> None:
    """Warn, once, if the running code is inside a transaction that ends after this block."""
    if scope.acquired and not scope.warned:
        scope.warned = _warn_of_open_transaction(scope.spec.function, scope.spec.code)


def _warn_of_open_transaction(function: str, code: CodeType | None) -> bool:
    """Warn if the running code is inside a transaction, which commits after the lock is released; whether it is.

    ``function`` is what is locked, if it is one: the warning points to its ``code``, else to the calling line.
    """
    transaction = open_transaction()
    if transaction is None:
        return False
    # No lock's name in the text: Python remembers every different warning for ever.
    text = (
        f"{function or 'A lock'} is held inside {transaction}, which commits after the lock is released: "
        f"the next holder does not see the changes yet. Let the decorator own this transaction, with "
        f'until="commit" (and database=), or take the lock outside of it.'
    )
    if code is not None:
        file, line = code.co_filename, code.co_firstlineno
    else:
        frame = sys._getframe(1)
        frame = outside(frame) or frame
        file, line = frame.f_code.co_filename, frame.f_lineno
    warnings.warn_explicit(text, OpenTransactionWarning, file, line, registry=_warned.setdefault(file, {}))
    return True
