"""What a lock may outlive: the seams that a framework fills in. Core knows no transaction and no response.

``until`` left out: the lock ends with the function, or with the body of a streaming response that it returns.
``until="return"``: with the function, whatever it returns. ``until="commit"``: after the commit of the transaction that
the decorator opens around the function.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from types import CodeType
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, TypeVar

from ..core.errors import ConfigurationError, OpenTransactionWarning

if TYPE_CHECKING:
    from ..web.streaming import StreamLock
    from .decorator import LockedFunction
    from .lease import Lease
    from .scope import Spec

R = TypeVar("R")
_PACKAGE = __name__.partition(".")[0] + "."
Until: TypeAlias = Literal["return", "commit"]


class TransactionManager(Protocol):
    """Opens and commits the transactions of one kind of database."""

    def owns(self, database: object) -> bool:
        """Whether ``database=`` (None where it is left out) means one of its own."""

    def mark(self, function: Callable[..., Any], database: object) -> None:
        """The decorated function takes its transaction over: keep the framework from opening one around it."""

    def here(self) -> bool:
        """Whether the running code can mean it. Asked for each call where several own the same ``database=``."""

    def refuse_open(self, what: str, database: object) -> None:
        """``ConfigurationError`` if a transaction is open already: its commit would come after the lock is gone.

        Asked before the lock is taken, and the key is known.
        """

    def run(self, call: Callable[[], R], lease: Lease, database: object) -> R:
        """Make the call in a transaction: at its end the lease is extended, then committed; an error rolls back."""


class StreamAdapter(Protocol):
    """Finds the streaming responses of one framework."""

    def __call__(self, result: Any, guard: LockedFunction, carry: Callable[[object], StreamLock]) -> Any:
        """None if ``result`` is not one; else the response, whose body goes on under ``carry(response)``."""


transaction_managers: list[TransactionManager] = []
stream_adapters: list[StreamAdapter] = []
#: Each says in which transaction of its kind the running code is, or None: there a plain lock ends before the commit.
open_transactions: list[Callable[[], str | None]] = []


def transaction_manager(database: object, function: str) -> TransactionManager:
    """Who opens the transaction of ``until="commit"``. Raises ``ConfigurationError`` if nobody can."""
    owners = [owner for owner in transaction_managers if owner.owns(database)]
    if owners:
        return owners[0] if len(owners) == 1 else _FirstHere(owners)
    raise ConfigurationError(
        f'{function}: until="commit" needs to know the transaction. Django: put "distlock_web.django" into '
        f"INSTALLED_APPS (database= names an alias). SQLAlchemy: import distlock_web.sqlalchemy and give "
        f"database=session; with Flask-SQLAlchemy and distlock_web.flask it may be left out."
    )


class _FirstHere:
    """Django and Flask-SQLAlchemy in one process: which of them a left out ``database=`` means is known per call."""

    def __init__(self, owners: list[TransactionManager]) -> None:
        self._owners = owners

    def owns(self, database: object) -> bool:
        return True

    def mark(self, function: Callable[..., Any], database: object) -> None:
        for owner in self._owners:
            owner.mark(function, database)

    def here(self) -> bool:
        return True

    def refuse_open(self, what: str, database: object) -> None:
        self._meant().refuse_open(what, database)

    def run(self, call: Callable[[], R], lease: Lease, database: object) -> R:
        return self._meant().run(call, lease, database)

    def _meant(self) -> TransactionManager:
        return next((owner for owner in self._owners if owner.here()), self._owners[-1])


def warn_if_in_transaction(spec: Spec) -> bool:
    """Warn if the running code is inside a transaction, whose commit then comes after the release of a plain lock."""
    for look in open_transactions:
        transaction = look()
        if transaction is not None:
            # No lock's name in the text: Python remembers every different warning for ever.
            _warn(
                f"{spec.what or 'A lock'} is held inside {transaction}, which commits after the lock is given back: "
                f"the next holder does not see the changes yet. Let the decorator own this transaction, with "
                f'until="commit" (and database=), or take the lock outside of it.',
                spec.code,
            )
            return True
    return False


_shown: dict[str, dict[Any, Any]] = {}  #: by file, what has been warned of: Python's own memory of it


def _warn(text: str, code: CodeType | None) -> None:
    """Point to the function that is locked, else to the line outside of this package that the call comes from."""
    if code is not None:
        file, line = code.co_filename, code.co_firstlineno
    else:
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_PACKAGE):
            frame = frame.f_back
        file, line = frame.f_code.co_filename, frame.f_lineno
    warnings.warn_explicit(text, OpenTransactionWarning, file, line, registry=_shown.setdefault(file, {}))
