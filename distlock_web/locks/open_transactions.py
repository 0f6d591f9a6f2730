"""The warning about a plain lock inside a transaction, which commits only after the lock is released."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from types import CodeType
from typing import Any

from ..core.errors import OpenTransactionWarning

_PACKAGE = __name__.partition(".")[0] + "."

#: Each says in words in which transaction of its kind the running code is, or None. ``hooks.install`` fills it.
lookups: list[Callable[[], str | None]] = []


def warn_if_open(function: str, code: CodeType | None) -> bool:
    """Warn if the running code is inside a transaction; whether it is. ``function`` is what is locked, if it is one."""
    for lookup in lookups:
        transaction = lookup()
        if transaction is not None:
            # No lock's name in the text: Python remembers every different warning for ever.
            _warn(
                f"{function or 'A lock'} is held inside {transaction}, which commits after the lock is released: "
                f"the next holder does not see the changes yet. Let the decorator own this transaction, with "
                f'until="commit" (and database=), or take the lock outside of it.',
                code,
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
