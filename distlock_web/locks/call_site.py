"""The line of code that makes a lock, ``module:line``: for people."""

from __future__ import annotations

import os
from types import CodeType, FrameType

_PACKAGE = __name__.partition(".")[0] + "."
#: What stands between us and the line that is meant.
_BETWEEN = ("contextlib",)
_MAX_KNOWN = 4096

#: By code object and instruction; the code object is kept, so that its id is not another's later.
known_sites: dict[tuple[int, int], tuple[CodeType, str]] = {}


def call_site(frame: FrameType) -> str:
    """The line that a frame is at; outside of this package, and empty in a task of asyncio's own making."""
    if (known := known_sites.get((id(frame.f_code), frame.f_lasti))) is not None:  # ``lock()`` asks without this call
        return known[1]
    found = outside(frame)
    module = "" if found is None else found.f_globals.get("__name__") or "?"
    if found is None or module.startswith("asyncio."):
        return ""
    if module == "__main__":
        module = os.path.basename(found.f_code.co_filename)
    if len(known_sites) >= _MAX_KNOWN:
        known_sites.clear()  # code that is made at run time would fill it
    line = f"{module}:{found.f_lineno}"
    known_sites[id(found.f_code), found.f_lasti] = found.f_code, line
    return line


def outside(frame: FrameType | None) -> FrameType | None:
    """The innermost frame that is none of ours."""
    while frame is not None:
        module = frame.f_globals.get("__name__") or "?"
        if not module.startswith(_PACKAGE) and module not in _BETWEEN:
            return frame
        frame = frame.f_back
    return None
