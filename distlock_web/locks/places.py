"""Which line of code takes a lock, as ``module:line``: for people, where no function is locked."""

from __future__ import annotations

import os
from types import FrameType

_PACKAGE = __name__.partition(".")[0] + "."
#: What stands between us and the line that is meant.
_BETWEEN = ("contextlib",)
_MAX_KNOWN = 4096

#: By code object and instruction; the frame's code object is kept, so that its id is not another's later.
_known: dict[tuple[int, int], tuple[object, str]] = {}


def place_of(frame: FrameType) -> str:
    """The line that a frame is at; outside of this package, and empty in a task of asyncio's own making."""
    known = _known.get((id(frame.f_code), frame.f_lasti))
    return _find(frame) if known is None else known[1]


def _find(frame: FrameType | None) -> str:
    """The same, not quick: Python counts the lines through a table."""
    while frame is not None:
        module = frame.f_globals.get("__name__") or "?"
        if module.startswith("asyncio."):
            return ""
        if not module.startswith(_PACKAGE) and module not in _BETWEEN:
            return _remember(frame, module)
        frame = frame.f_back
    return ""


def _remember(frame: FrameType, module: str) -> str:
    code = frame.f_code
    if module == "__main__":
        module = os.path.basename(code.co_filename)
    place = f"{module}:{frame.f_lineno}"
    if len(_known) >= _MAX_KNOWN:
        _known.clear()  # code that is made at run time would fill it
    _known[id(code), frame.f_lasti] = (code, place)
    return place
