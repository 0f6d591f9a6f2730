"""``on_busy="retry"``: a task of Celery that finds its lock taken is sent again, by a real worker."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from celery import chord

from distlock_web import ConfigurationError, Lease, LockBusy, configure, distributed_lockable, lock
from distlock_web.core import integrations
from tests.support.celery_mailbox import Mailbox
from tests.support.celery_workers import CeleryWorkers
from tests.support.programs import celery_shop as shop
from tests.support.waiting import LONG, PATIENCE


@pytest.mark.slow
class TestWithAWorker:
    @pytest.mark.timing
    def test_it_runs_when_the_lease_is_over_and_counts_no_retry(self, pool: str, workers: CeleryWorkers) -> None:
        """Its ``max_retries`` is 0. It comes back once, for the holder's lease is known, and not again and again."""
        lock(f"report:{pool}", expire=3).acquire()  # and never released
        result = shop.report.apply_async([pool], queue=pool)
        assert result.get(PATIENCE) == 0
        assert 2 <= workers.said().count(f"delivered report {pool}") <= 3

    def test_retries_of_its_own_are_all_left_to_it(self, pool: str, workers: CeleryWorkers) -> None:
        lease = lock(f"flaky:{pool}", expire=2).acquire()
        result = shop.flaky.apply_async([pool], queue=pool)
        assert result.get(PATIENCE) == 1
        assert workers.said().count(f"ran {pool}") == 2
        assert lease.lost

    def test_a_group_waits_for_a_task_that_was_sent_again(self, workers: CeleryWorkers) -> None:
        """What belongs to its message goes along: the chord that counts it, the callbacks, the queue."""
        workers.start("prefork")
        lock("report:chord", expire=2).acquire()
        parts = [shop.report.s(name).set(queue="prefork") for name in ("chord", "other")]
        assert chord(parts)(shop.total.s().set(queue="prefork")).get(PATIENCE) == 0

    def test_a_busy_lock_can_be_stored_as_a_result(self, workers: CeleryWorkers) -> None:
        workers.start("prefork")
        lease = lock("plain:a", expire=LONG).acquire()
        with pytest.raises(LockBusy, match="'disLock:plain:a'"):
            shop.plain.apply_async(["a"], queue="prefork").get(PATIENCE)
        lease.release()


def report(month: str) -> str:
    return month


@pytest.mark.usefixtures("memory_store")
class TestWhereNoWorkerIs:
    def test_outside_of_a_task_it_is_refused_though_the_lock_is_free(self) -> None:
        """Else the first busy lock would show it, in production."""
        with pytest.raises(ConfigurationError, match=r"report: on_busy=\"retry\".* no task runs here"):
            distributed_lockable("report:{month}", on_busy="retry")(report)("May")

    @pytest.mark.parametrize("call", ["apply", "__call__"])
    def test_nobody_would_send_it_again_so_the_caller_is_told(self, call: str, elsewhere: Callable[..., Lease]) -> None:
        task = Mailbox().task()(distributed_lockable("report:{month}", on_busy="retry")(report))
        elsewhere("report:May")
        run: dict[str, Callable[[], Any]] = {
            "apply": lambda: task.apply(["May"]).get(),
            "__call__": lambda: task("May"),
        }
        with pytest.raises(LockBusy, match="report:May"):
            run[call]()

    def test_above_what_makes_a_task_of_it_the_decorator_is_refused_by_name(self) -> None:
        with pytest.raises(ConfigurationError, match=r"goes below @shared_task .*test_celery_retry\.report"):
            distributed_lockable("a")(Mailbox().task()(report))

    @pytest.mark.parametrize("module", [None, ModuleType("celery")], ids=["none", "one of the project's own"])
    def test_without_celery_it_is_refused_where_it_is_said(
        self, monkeypatch: pytest.MonkeyPatch, module: ModuleType | None
    ) -> None:
        monkeypatch.setitem(sys.modules, "celery", module)  # where it is None an import fails
        monkeypatch.delitem(sys.modules, "distlock_web.celery", raising=False)
        monkeypatch.setattr(integrations, "installed", integrations.Installed())
        with pytest.raises(ConfigurationError, match=r"pip install 'distlock_web\[celery\]'"):
            distributed_lockable("report:{month}", on_busy="retry")(report)

    def test_no_setting_says_it_for_all(self) -> None:
        with pytest.raises(ConfigurationError, match="ON_BUSY"):
            configure({"default": {"BACKEND": "memory", "ON_BUSY": "retry"}})


@pytest.mark.slow
@pytest.mark.parametrize("library", ["celery", "json"])
def test_a_worker_that_imports_the_tasks_alone_knows_of_them(library: str) -> None:
    """And who has no Celery, or does not use it in this process, does not load it."""
    program = f"import sys, {library}, distlock_web; distlock_web.distributed_lockable('a')(lambda: 1)"
    loaded = f"{program}; sys.exit(('distlock_web.celery' in sys.modules) != {library == 'celery'})"
    assert subprocess.run([sys.executable, "-c", loaded], check=False).returncode == 0
