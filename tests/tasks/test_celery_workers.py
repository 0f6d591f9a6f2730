"""Locks in real workers of Celery: handed over to one, sent with the message, and left behind by one that dies."""

from __future__ import annotations

import random
import time

import pytest
from celery.exceptions import TaskRevokedError, TimeLimitExceeded

from distlock_web import lock
from distlock_web.celery import unique
from tests.support.celery_workers import CeleryWorkers
from tests.support.programs import celery_shop as shop
from tests.support.waiting import LONG, PATIENCE, eventually

pytestmark = pytest.mark.slow


@pytest.fixture
def prefork(workers: CeleryWorkers) -> CeleryWorkers:
    workers.start("prefork")
    return workers


def test_a_lock_goes_from_a_view_to_the_task_and_is_never_free(pool: str, workers: CeleryWorkers) -> None:
    with lock(f"order:{pool}", expire=10) as lease:
        ticket = lease.detach(LONG)
    first = shop.finish.apply_async([pool, ticket], queue=pool)
    assert not lock(f"order:{pool}").try_acquire()
    workers.go(pool)
    assert first.get(PATIENCE) == "finished"
    assert not lock(f"order:{pool}").locked()
    assert shop.finish.apply_async([pool, ticket], queue=pool).get(PATIENCE) == "given up", "its second delivery"


@pytest.mark.timing
def test_a_task_is_not_sent_while_it_is_queued_or_running(pool: str, workers: CeleryWorkers) -> None:
    export = unique(shop.export)
    first = export.apply_async([pool], queue=pool, countdown=1)
    assert export.apply_async([pool], queue=pool) is None
    eventually(lambda: f"exporting {pool}" in workers.said(), "it runs")
    assert export.apply_async([pool], queue=pool) is None
    assert not lock(f"export:{pool}", wait=3).try_acquire(), "its lease of 2 s is renewed"
    workers.go(pool)
    assert first.get(PATIENCE) == pool
    second = export.apply_async([pool], queue=pool)
    assert second is not None, "who has the result of the first may send the second"
    workers.go(pool)
    assert second.get(PATIENCE) == pool
    assert workers.said().count(f"exporting {pool}") == 2


def test_a_revoked_task_frees_its_lock(prefork: CeleryWorkers) -> None:
    shop.app.control.revoke("to-be-revoked")
    sent = unique(shop.export).apply_async(["revoked"], queue="prefork", task_id="to-be-revoked")
    with pytest.raises(TaskRevokedError):
        sent.get(PATIENCE)
    eventually(lambda: not lock("export:revoked").locked(), "the lock is free")
    assert "exporting revoked" not in prefork.said()


@pytest.mark.parametrize("how", ["as usual", "with its lock"])
def test_the_message_of_a_killed_process_runs_when_its_lease_is_over(prefork: CeleryWorkers, how: str) -> None:
    """SIGKILL: ``acks_late`` and ``reject_on_worker_lost`` bring it back at once, while its lock is taken."""
    sender = shop.killed_once if how == "as usual" else unique(shop.killed_once)
    assert sender.apply_async([how], queue="prefork").get(PATIENCE) == "done"
    with shop.notes() as client:
        assert client.get(f"runs:{how}") == "2"


def test_the_lock_of_a_task_beyond_its_hard_limit_ends_with_its_lease(prefork: CeleryWorkers) -> None:
    with pytest.raises(TimeLimitExceeded):
        shop.endless.apply_async(["a"], queue="prefork").get(PATIENCE)
    lock("endless:a", wait=PATIENCE).acquire().release()


def arrive(name: str, pool: str) -> None:
    """Something has changed: the last run has to see it."""
    with shop.notes() as client:
        client.incr(f"version:{name}")
    unique(shop.reindex, again=True).apply_async([name], queue=pool)


def runs(workers: CeleryWorkers, name: str, what: str = "reindexed") -> list[int]:
    """Which version each run has seen, in order."""
    return [int(said.split()[2]) for said in workers.said() if said.startswith(f"{what} {name} ")]


def test_of_60_changes_at_random_moments_the_last_one_is_seen(pool: str, workers: CeleryWorkers) -> None:
    name, moments = f"often-{pool}", random.Random(4711)
    for _ in range(60):
        arrive(name, pool)
        time.sleep(moments.uniform(0, 0.1))
    eventually(lambda: runs(workers, name)[-1:] == [60], "the last change is seen")
    seen = runs(workers, name)
    assert seen == sorted(seen)
    assert len(seen) < 60, "some were not sent"
    assert f"two run {name}" not in workers.said()
    eventually(lambda: not lock([f"reindex:{name}", f"again:reindex:{name}"]).locked(), "nothing is left behind")


def test_a_change_during_a_run_that_is_killed_is_seen_by_the_one_that_follows(prefork: CeleryWorkers) -> None:
    name = "killed"
    arrive(name, "prefork")
    eventually(lambda: runs(prefork, name, "reindexing") == [1], "it runs")
    for _ in range(5):
        arrive(name, "prefork")
    prefork.go(name)
    eventually(lambda: runs(prefork, name)[-1:] == [6], "the next one has begun when the lease was over")
    assert runs(prefork, name, "reindexing") == [1, 6], "five changes were one run"
    arrive(name, "prefork")
    eventually(lambda: runs(prefork, name)[-1:] == [7], "and it goes on")
