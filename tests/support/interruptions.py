"""Exceptions that come anywhere, as those of a signal's handler do: at each of the moments at which one may come."""

from __future__ import annotations

import dis
import gc
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from types import CodeType, FrameType
from typing import Any


class Limit(Exception):
    """What a time limit raises from its handler."""


class HardLimit(BaseException):
    """One that code which expects errors lets through, as KeyboardInterrupt."""


def in_a_thread_of_its_own(block: Callable[[], None]) -> None:
    """Interrupted at some op codes, a thread goes on for good as if it handled the exception that it had there."""

    def run() -> None:
        with suppress(Limit, HardLimit):
            block()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()


@cache
def moments(code: CodeType) -> frozenset[int]:
    """Where Python runs the handlers of signals, beside the beginning of a function: at each turn of a loop, and after
    a call. Not so after a call whose result is returned at once: there it is before the ``try`` around has ended."""
    found, called = set(), False
    for instruction in dis.get_instructions(code):
        if (called and instruction.opname != "RETURN_VALUE") or instruction.opname.startswith("JUMP_BACKWARD"):
            found.add(instruction.offset)
        called = instruction.opname.startswith("CALL")
    return frozenset(found)


def interrupted_at(
    step: int, call: Callable[[], object], concerns: Callable[[str], bool], limit: type[BaseException] = Limit
) -> bool:
    """Raise ``limit`` at this moment in the files that it concerns; False: there are not so many."""

    def interrupt() -> None:
        raise limit

    return at_moment(step, call, concerns, interrupt)


def at_moment(
    step: int, call: Callable[[], object], concerns: Callable[[str], bool], happens: Callable[[], object]
) -> bool:
    """This happens at this moment in the files that it concerns, once; False: there are not so many.

    Garbage is not collected meanwhile. A collection calls back into those files, so it would be a moment that comes now
    and then; and CPython 3.11 traces on after it, though it was told to stop there.
    """
    left = step

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal left
        if left < 0 or not concerns(frame.f_code.co_filename):
            return None
        frame.f_trace_opcodes = True
        if event == "call" or (event == "opcode" and frame.f_lasti in moments(frame.f_code)):
            left -= 1
            if left < 0:
                sys.settrace(None)
                happens()
        return trace

    before, collects = sys.gettrace(), gc.isenabled()
    gc.disable()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
        if collects:
            gc.enable()
    return left < 0
