"""Callers that have inherited nothing from the test, so that its own locks exclude them."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeAlias

from distlock_web import Lease, lock

from .waiting import LONG

#: The fixture ``beside``: runs a call in a thread and a context of its own.
Beside: TypeAlias = Callable[..., "Future[Any]"]


def unrelated(key: str, expire: float = LONG, **options: Any) -> Lease:
    """A lease that no later call of this thread re-enters."""
    return contextvars.Context().run(lock(key, expire=expire, **options).acquire)


def threads(name: str) -> int:
    """How many threads of this process have this name."""
    return sum(thread.name == name for thread in threading.enumerate())
