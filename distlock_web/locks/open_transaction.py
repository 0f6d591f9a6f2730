"""A transaction of other code's: it commits after the lock is released, and the next holder does not see its changes.

Who takes or releases a lock inside of one is warned of it; ``once`` refuses it.
"""

from __future__ import annotations

import sys
import warnings
from types import CodeType
from typing import Any

from ..core import integrations
from ..core.errors import OpenTransactionWarning
from .call_site import outside
from .scope import Scope

_warned: dict[str, dict[Any, Any]] = {}  #: by file, what has been warned of: Python's own memory of it


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
        frame = sys._getframe()
        frame = outside(frame) or frame
        file, line = frame.f_code.co_filename, frame.f_lineno
    warnings.warn_explicit(text, OpenTransactionWarning, file, line, registry=_warned.setdefault(file, {}))
    return True
