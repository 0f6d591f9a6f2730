"""Which line of code makes or takes a lock, as ``module:line``: for people, where no function is locked."""

from __future__ import annotations

import os
from types import CodeType, FrameType
from typing import Any, TypeAlias

_PACKAGE = __name__.partition(".")[0] + "."
#: What stands between us and the line that is meant.
_BETWEEN = ("contextlib",)
_MAX_KNOWN = 4096

#: Where in a code object, and in which module: what a frame is at, without the frame and its variables.
Instruction: TypeAlias = tuple[CodeType, int, dict[str, Any]]

#: By code object and instruction; the code object is kept, so that its id is not another's later.
_known: dict[tuple[int, int], tuple[CodeType, str]] = {}


def place_of(frame: FrameType) -> str:
    """The line that a frame is at; outside of this package, and empty in a task of asyncio's own making."""
    known = _known.get((id(frame.f_code), frame.f_lasti))
    return _find(frame) if known is None else known[1]


def _find(frame: FrameType | None) -> str:
    while frame is not None:
        module = frame.f_globals.get("__name__") or "?"
        if module.startswith("asyncio."):
            return ""
        if not module.startswith(_PACKAGE) and module not in _BETWEEN:
            return line_of((frame.f_code, frame.f_lasti, frame.f_globals))
        frame = frame.f_back
    return ""


def line_of(instruction: Instruction) -> str:
    """The line of an instruction. Found once, for Python counts the lines through a table."""
    code, at, variables = instruction
    known = _known.get((id(code), at))
    if known is None:
        module = variables.get("__name__") or "?"
        if module == "__main__":
            module = os.path.basename(code.co_filename)
        line = next((line for first, end, line in code.co_lines() if first <= at < end), None)
        if len(_known) >= _MAX_KNOWN:
            _known.clear()  # code that is made at run time would fill it
        known = _known[id(code), at] = (code, f"{module}:{line or code.co_firstlineno}")
    return known[1]
