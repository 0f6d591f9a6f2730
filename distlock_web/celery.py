"""Locks in the tasks of Celery. Loaded by itself where Celery is, before the first function is decorated.

``on_busy="retry"``: a task that finds its lock taken is sent again, for when the lock may be free.
"""

from __future__ import annotations

import random
from typing import Any

from celery import current_task
from celery.exceptions import Retry

from .core.errors import LockBusy
from .locks.hooks import Integration, RunningTask, install

__all__: list[str] = []

#: Seconds until a task is sent again, at least: the holder may release it and take it again meanwhile.
MIN_COUNTDOWN = 1.0
#: And at most: a broker that has no answer for longer delivers the message to another worker, too (in Redis an hour).
MAX_COUNTDOWN = 900.0
#: So much later each, at random, and never sooner: of many that found the lock taken not all come at once.
JITTER = 0.25


class CeleryTasks(Integration):
    """Knows which task runs."""

    def running_task(self) -> RunningTask | None:
        task = current_task._get_current_object()
        return None if task is None else Run(task)


class Run:
    """A run of a task of Celery's: a :class:`~distlock_web.locks.hooks.RunningTask`."""

    def __init__(self, task: Any) -> None:
        self._task = task

    def retry(self, error: LockBusy) -> Exception:
        """Not ``task.retry``, which counts: waiting for a lock is no failure, and leaves ``max_retries`` to those."""
        request = self._task.request
        if request.called_directly or request.is_eager:  # nobody would send it, or it would come back at once
            return error
        soonest = min(max(error.estimate, MIN_COUNTDOWN), MAX_COUNTDOWN)
        countdown = soonest * random.uniform(1, 1 + JITTER)  # noqa: S311 - no secret
        again = self._task.signature_from_request(request, countdown=countdown)
        again.apply_async()
        retry: Exception = Retry(exc=error, when=countdown, sig=again)
        return retry


install(CeleryTasks())
