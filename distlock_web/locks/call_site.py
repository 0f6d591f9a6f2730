"""The line of code that makes a lock, ``module:line``: for people. And the warning about an open transaction."""

from __future__ import annotations

import os
import sys
import warnings
from types import CodeType, FrameType
from typing import Any

from ..core import integrations
from ..core.errors import OpenTransactionWarning

_PACKAGE = __name__.partition(".")[0] + "."
#: What stands between us and the line that is meant.
_BETWEEN = ("contextlib",)
_MAX_KNOWN = 4096

#: By code object and instruction; the code object is kept, so that its id is not another's later.
_known: dict[tuple[int, int], tuple[CodeType, str]] = {}

_warned: dict[str, dict[Any, Any]] = {}  #: by file, what has been warned of: Python's own memory of it


def call_site(frame: FrameType) -> str:
    """The line that a frame is at; outside of this package, and empty in a task of asyncio's own making."""
    known = _known.get((id(frame.f_code), frame.f_lasti))
    if known is not None:
        return known[1]
    found = _outside(frame)
    module = "" if found is None else found.f_globals.get("__name__") or "?"
    if found is None or module.startswith("asyncio."):
        return ""
    if module == "__main__":
        module = os.path.basename(found.f_code.co_filename)
    if len(_known) >= _MAX_KNOWN:
        _known.clear()  # code that is made at run time would fill it
    line = f"{module}:{found.f_lineno}"
    _known[id(found.f_code), found.f_lasti] = found.f_code, line
    return line


def _outside(frame: FrameType | None) -> FrameType | None:
    while frame is not None:
        module = frame.f_globals.get("__name__") or "?"
        if not module.startswith(_PACKAGE) and module not in _BETWEEN:
            return frame
        frame = frame.f_back
    return None


def open_transaction() -> str | None:
    """In words, the transaction that the running code is inside of, and that somebody else will end; or None."""
    return next((found for ask in integrations.installed.open_transactions if (found := ask()) is not None), None)


def warn_of_open_transaction(function: str, code: CodeType | None) -> bool:
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
        frame = _outside(frame) or frame
        file, line = frame.f_code.co_filename, frame.f_lineno
    warnings.warn_explicit(text, OpenTransactionWarning, file, line, registry=_warned.setdefault(file, {}))
    return True
