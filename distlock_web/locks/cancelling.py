"""``on_lost="cancel"``: a loss cancels the task in the block, which then hears ``LeaseLost`` in its place."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from ..core.runtime import in_event_loop


class Block(Protocol):
    """What runs under the locks: a scope."""

    @property
    def alive(self) -> bool: ...
    @property
    def state(self) -> str: ...


def _no_task() -> None:
    return None


class Cancelling:
    """Which task that is, and whether it was cancelled."""

    __slots__ = ("_before", "_block", "_cancelled", "_task")

    def __init__(self, block: Block) -> None:
        self._block = weakref.ref(block)
        self._cancelled: asyncio.Task[Any] | None = None
        self.bind_task()

    def bind_task(self) -> None:
        """The running task is the one in the block."""
        self._task: Callable[[], asyncio.Task[Any] | None] = _no_task
        self._before = 0  # how often it had been cancelled when its block began: that is not the block's business
        if in_event_loop() and (task := asyncio.current_task()):
            # Weakly: a task refers to what it returns, which may be the lease.
            self._task, self._before = weakref.ref(task), task.cancelling()
        if (block := self._block()) is not None and block.state == "lost":  # while the one before was to be told
            self._cancel()

    def cancel_soon(self, _: object) -> None:
        """The locks are lost."""
        if (task := self._task()) is not None and not (loop := task.get_loop()).is_closed():
            loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        block, task = self._block(), self._task()
        if block is not None and block.alive and self._cancelled is None and task is not None:
            self._cancelled = task if task.cancel("the lock of this task is lost") else None

    def take_back(self, by_hand: bool) -> bool:
        """The block ends in the running task. Whether that was cancelled by the loss alone, since the block began.

        Else somebody else's cancellation is on its way through it, and goes on. Another task that was in the block (of
        a generator which this one reads on) has heard of it there. ``by_hand`` the running one may be a helper of the
        task that was cancelled (``asyncio.shield(lease.arelease())``), or there is none (``asyncio.to_thread``).
        """
        task = self._cancelled
        if task is None:
            return False
        loop = task.get_loop()
        is_here = in_event_loop() and loop is asyncio.get_running_loop()
        if by_hand and not is_here:
            self._cancelled = None
            with suppress(RuntimeError):  # that loop is closed, and the task over
                loop.call_soon_threadsafe(task.uncancel)
        elif is_here and (by_hand or task is asyncio.current_task()):
            self._cancelled = None
            return task.uncancel() <= self._before
        return False
