"""What a lock may outlive: the seams that a framework fills in. Core knows no transaction and no response.

``until`` left out: the lock ends with the function, or with the body of a streaming response that it returns.
``until="return"``: with the function, whatever it returns. ``until="commit"``: after the commit of the transaction that
the decorator opens around the function.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from .errors import ConfigurationError, OpenTransactionWarning

if TYPE_CHECKING:
    from .carry import Carried
    from .decorator import Guard
    from .lease import Lease

Until: TypeAlias = Literal["return", "commit"]


class TransactionOwner(Protocol):
    """Opens and commits the transactions of one kind of database."""

    def owns(self, database: object) -> bool:
        """Whether ``database=`` (None where it is left out) means one of its own."""

    def mark(self, function: Callable[..., Any], database: object) -> None:
        """The decorated function takes its transaction over: keep the framework from opening one around it."""

    def around(self, lease: Lease, database: object) -> AbstractContextManager[object]:
        """A transaction for one call: at its end the lease is extended, then committed; an error rolls back.

        Raises ``ConfigurationError`` if a transaction is open already: its commit would come after the lock is gone.
        """


class Carrier(Protocol):
    """Finds the streaming responses of one framework."""

    def __call__(self, result: Any, guard: Guard, carry: Callable[[object], Carried]) -> Any:
        """None if ``result`` is not one; else the response, whose body goes on under ``carry(response)``."""


transaction_owners: list[TransactionOwner] = []
carriers: list[Carrier] = []
#: Each says in which transaction of its kind the running code is, or None: there a plain lock ends before the commit.
open_transactions: list[Callable[[], str | None]] = []


def transaction_owner(database: object, function: str) -> TransactionOwner:
    """Who opens the transaction of ``until="commit"``. Raises ``ConfigurationError`` if nobody can."""
    for owner in transaction_owners:
        if owner.owns(database):
            return owner
    raise ConfigurationError(
        f'{function}: until="commit" needs to know the transaction. Django: put "distlock_web.django" into '
        f"INSTALLED_APPS (database= names an alias). SQLAlchemy: import distlock_web.sqlalchemy and give "
        f"database=session; with Flask-SQLAlchemy and distlock_web.flask it may be left out."
    )


def warn_if_in_transaction(what: str) -> bool:
    """Warn if the running code is inside a transaction, whose commit then comes after the release of a plain lock."""
    for look in open_transactions:
        transaction = look()
        if transaction is not None:
            # No lock's name in the text: Python remembers every different warning for ever.
            warnings.warn(
                f"{what or 'A lock'} is held inside {transaction}, which commits after the lock is given back: the "
                f'next holder does not see the changes yet. Use @distributed_lockable(..., until="commit"), or take '
                f"the lock outside of the transaction.",
                OpenTransactionWarning,
                stacklevel=4,
            )
            return True
    return False
