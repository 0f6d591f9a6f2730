"""How long locks were held lately in this process: for an honest ``Retry-After``."""

from __future__ import annotations

from statistics import median

#: How many holds are remembered of one function or name, and of how many.
LATELY, MAX_REMEMBERED = 15, 1000


class HoldTimes:
    """Of one store: by the function that is locked, for plain blocks by the lock's name.

    Written at every release, so it is quick; a race of two threads may lose one of the times, no more.
    """

    __slots__ = ("_functions", "_names")

    def __init__(self) -> None:
        self._functions: dict[str, list[float]] = {}
        self._names: dict[str, list[float]] = {}

    def record(self, function: str, name: str, seconds: float) -> None:
        """The lock was held for so long, to the end."""
        table, key = (self._functions, function) if function else (self._names, name)
        times = table.get(key)
        if times is not None:
            times.append(seconds)
            if len(times) > LATELY:
                del times[0]
            return
        if len(table) >= MAX_REMEMBERED:
            table.clear()  # names that are never used again would fill it
        table[key] = [seconds]

    def usual(self, function: str, name: str) -> float | None:
        """The median of the last times; None: there are none. ``function`` may be a line of code: that of a block."""
        times = self._functions.get(function) or self._names.get(name)
        return median(times.copy()) if times else None
