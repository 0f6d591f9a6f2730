"""Functions that are tasks of any queue: a worker imports them by their names."""

from __future__ import annotations

import math
from typing import Any

import dramatiq.errors
import huey.exceptions
import rq

from distlock_web import LockBusy, attach, distributed_lockable, lock


@distributed_lockable("report:{month}", expire=10)
def report(month: str) -> str:
    assert lock(f"report:{month}").locked()
    return month


@distributed_lockable("report:{month}", expire=10)
async def areport(month: str) -> str:
    assert await lock(f"report:{month}").alocked()
    return month


@distributed_lockable("report:{month}", expire=10, on_busy="skip")
def skipped(month: str) -> str:
    return month


def received(ticket: str) -> bool:
    """Goes on under the lock that the sender has taken."""
    with attach(ticket):
        return lock("report:May").locked()


def rq_again(error: LockBusy, *args: Any, **kwargs: Any) -> rq.Retry:
    return rq.Retry(max=1000, interval=math.ceil(error.estimate))


def dramatiq_again(error: LockBusy, *args: Any, **kwargs: Any) -> None:
    raise dramatiq.errors.Retry(delay=math.ceil(1000 * error.estimate))


def huey_again(error: LockBusy, *args: Any, **kwargs: Any) -> None:
    raise huey.exceptions.RetryTask(delay=error.estimate)


@distributed_lockable("report:{month}", expire=10, on_busy=rq_again)
def sent_again_by_rq(month: str) -> str:
    return month


@distributed_lockable("report:{month}", expire=10, on_busy=dramatiq_again)
def sent_again_by_dramatiq(month: str) -> str:
    return month


@distributed_lockable("report:{month}", expire=10, on_busy=huey_again)
def sent_again_by_huey(month: str) -> str:
    return month
