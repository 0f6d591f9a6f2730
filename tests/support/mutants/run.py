"""mutmut itself, without the stack of calls that it keeps in a context variable.

It sets that in each function that it has changed, and some of ours run while garbage is collected, perhaps within
``ContextVar.set()``: before Python 3.12 that is a crash. The stack is only for who looks at results of an earlier run.
"""

from __future__ import annotations

import sys
from importlib import import_module


class NoStack:
    @staticmethod
    def get() -> tuple[str, int]:
        return "", 0

    @staticmethod
    def set(_: tuple[str, int]) -> None:
        return None

    @staticmethod
    def reset(_: object) -> None:
        return None


if __name__ == "__main__":
    import_module("mutmut.core").MutmutCallStack = NoStack  # type: ignore[attr-defined]
    sys.argv[0] = "mutmut"
    import_module("mutmut.__main__").cli()
