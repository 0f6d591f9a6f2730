"""Callers that have inherited nothing from the test, so that its own locks exclude them."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeAlias

import pytest

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


@contextmanager
def no_thread(name: str, error: BaseException | None = None) -> Iterator[None]:
    """As if the system had no room for a thread of that name, or as if a signal came with ``error`` at its start.

    Others can be started: garbage of another test may be closed just now, in a thread of its own.
    """
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == name:
            raise error or RuntimeError("can't start new thread")
        start(thread)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        yield
