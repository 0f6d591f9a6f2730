"""A lock and a transaction of its caller's: the lock has to outlive the commit.

With ``until="commit"`` the decorator opens the transaction inside of the lock. Who does so for a framework calls
``transaction_begun`` as the first in it and ``before_commit`` as the last: that extends the lease, and writes what
``once`` keeps in that very transaction, if the store is in its database. Between them, when the function has returned,
what ``before_judging`` was given is called. A transaction of other code is that of ``open_transaction.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..core.backend import CallersTransaction
from ..core.errors import ConfigurationError
from ..core.runtime import now
from . import kept
from .lease import Lease, scope_of
from .scope import Scope


def transaction_begun(lease: Lease, transaction: CallersTransaction) -> None:
    """The first in a transaction of ``until="commit"``: its record is written at the end of it, perhaps."""
    scope = scope_of(lease)
    backend = scope.spec.store.backend
    if store_in(scope, [transaction]) is not None and backend.one_writer:
        backend.begin_within(transaction)


def before_judging(lease: Lease, settle: Callable[[Any], bool]) -> None:
    """``settle`` gets what the function returned, before anybody asks whether its work is done. False: it is undone.

    Then nobody is asked, for a transaction that is to be rolled back may not be read any more.
    """
    scope_of(lease).settle = settle


def is_once(lease: Lease) -> bool:
    """Whether it is that of a ``once``, which leaves a record."""
    return scope_of(lease).asked is not None


def before_commit(lease: Lease, transactions: Sequence[CallersTransaction]) -> None:
    """The last before the commit of ``until="commit"``, in one database or several. ``LeaseLost`` has to roll it back.

    The lease is extended: the commit has a full one before it. A record is written in the transaction, if the store is
    in that database, and there is no other that may fail to commit.
    """
    scope = scope_of(lease)
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
    kept.leave_nothing(scope_of(lease))


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
    cooldown = kept.until(scope, hold) - since
    if scope.record is None or cooldown <= 0:  # it took longer than it stays done
        return
    loss = backend.record_within(transaction, hold.claim, hold.fence, cooldown, scope.record)
    if loss is not None:
        hold.lose(loss)
        raise hold.lost_error()
    hold.keep_by_record(since, cooldown)
