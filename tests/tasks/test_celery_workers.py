"""Locks in real workers of Celery: handed over to one, sent with the message, and left behind by one that dies."""

from __future__ import annotations

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
