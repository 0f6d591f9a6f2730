"""How long a test waits for what has to happen, on a machine that is busy otherwise."""

from __future__ import annotations

import time
from collections.abc import Callable

#: Seconds after which a test gives up waiting for something that has to happen.
PATIENCE = 60.0
#: Seconds within which something happens that nobody has to wait for.
SOON = 15.0
#: Seconds for what takes milliseconds on an idle machine: a process that is woken, a message that is read.
SLACK = 10.0
#: A lease that does not end during a test: who gets the lock earlier was woken.
LONG = 60.0


def eventually(condition: Callable[[], object], what: str, patience: float = PATIENCE) -> None:
    """Wait until it is true. ``TimeoutError`` with ``what`` if it never is."""
    until = time.monotonic() + patience
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError(f"never happened: {what}")
        time.sleep(0.005)


def fastest(measure: Callable[[], float], within: float, tries: int = 4) -> float:
    """The shortest of a few measurements in seconds; none is made after one that lies within the bound.

    What the code needs at least it needs each time; what a busy machine adds, it does not add each time.
    """
    best = measure()
    for _ in range(tries - 1):
        if best <= within:
            break
        best = min(best, measure())
    return best
