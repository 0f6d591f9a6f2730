"""Tasks of Celery under locks, as a worker of its own runs them, and as a test sends them.

What a run does it writes into a list in Redis; a run that is to wait does so until the test says go.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import redis
from celery import Celery, signals

from distlock_web import NotHeld, attach, configure, distributed_lockable

app = Celery("shop", set_as_current=False)


def use(url: str) -> None:
    """The Redis of all: the queues, the results, the locks, and what the runs write."""
    app.conf.update(
        broker_url=f"{url}/0",
        result_backend=f"{url}/1",
        task_create_missing_queues=True,
        broker_connection_retry_on_startup=True,
        task_publish_retry=False,
        worker_prefetch_multiplier=1,
    )


def locks(url: str) -> dict[str, Any]:
    return {"default": {"LOCATION": f"{url}/2"}}


def notes() -> redis.Redis:
    return redis.Redis.from_url(f"{app.conf.broker_url.rpartition('/')[0]}/3", decode_responses=True)


def note(text: str) -> None:
    with notes() as client:
        client.rpush("said", text)


def wait_for_go(name: str) -> None:
    with notes() as client:
        client.blpop([f"go:{name}"], 60)


@signals.task_prerun.connect
def _delivered(task: Any, args: Any, **_: object) -> None:
    if task.app is app:
        note(f"delivered {task.name.rpartition('.')[2]} {args[0]}")


@app.task(bind=True, max_retries=0)
@distributed_lockable("report:{month}", expire=2, on_busy="retry")
def report(self: Any, month: str) -> int:
    """How often it says that it was retried."""
    return self.request.retries


@app.task(bind=True, max_retries=1)
@distributed_lockable("flaky:{name}", expire=2, on_busy="retry")
def flaky(self: Any, name: str) -> int:
    note(f"ran {name}")
    if self.request.retries == 0:
        raise self.retry(countdown=0)
    return self.request.retries


@app.task
@distributed_lockable("plain:{name}", expire=5)
def plain(name: str) -> None:
    pass


@app.task
def total(numbers: list[int]) -> int:
    return sum(numbers)


@app.task
def finish(name: str, ticket: str) -> str:
    """Goes on under the lock that the sender has taken."""
    try:
        lease = attach(ticket, expire=5, renew=True)
    except NotHeld:
        return "given up"
    with lease:
        wait_for_go(name)
        lease.raise_if_lost()
    return "finished"


@app.task
@distributed_lockable("export:{name}", expire=2, renew=True)
def export(name: str) -> str:
    note(f"exporting {name}")
    wait_for_go(name)
    return name


@app.task(acks_late=True, reject_on_worker_lost=True)
@distributed_lockable("killed:{name}", expire=2, on_busy="retry")
def killed_once(name: str) -> str:
    """Its process is killed in its first run."""
    with notes() as client:
        if client.incr(f"runs:{name}") == 1:
            os.kill(os.getpid(), 9)
    return "done"


@app.task(time_limit=1)
@distributed_lockable("endless:{name}", expire=3)
def endless(name: str) -> None:
    wait_for_go(name)


if url := os.environ.get("CELERY_SHOP_REDIS"):
    use(url)
    configure(locks(url))


@app.task
@distributed_lockable("reindex:{name}", expire=2, renew=True)
def reindex(name: str) -> None:
    """Says which version it has seen when it began; the first run of a name that begins with "killed" is killed."""
    with notes() as client:
        version = client.get(f"version:{name}")
        if client.incr(f"running:{name}") > 1:
            note(f"two run {name}")
        note(f"reindexing {name} {version}")
        if name.startswith("killed") and client.incr(f"runs:{name}") == 1:
            wait_for_go(name)
            client.decr(f"running:{name}")
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.05)
        client.decr(f"running:{name}")
        note(f"reindexed {name} {version}")
