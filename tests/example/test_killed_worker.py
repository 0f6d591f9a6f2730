"""A worker that is killed while it holds a lock: the lock outlives it by its lease, and by no more."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from distlock_web import lock
from distlock_web.core.registry import registry
from distlock_web.web.held_locks import LockRow, list_all
from example_project.drill import rush
from example_project.processes import Gunicorn, listen

ROOT = Path(__file__).parents[2]
DELIVER = "Stock.objects.create(item='bicycle', delivered=1, remaining=1)"
EXPIRE = 10  # what the shop's decorator says

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


@pytest.fixture
def shop(redis_store: str, tmp_path: Path) -> Iterator[Gunicorn]:
    """The Django shop under gunicorn, with a bicycle to sell and a payment that takes a minute."""
    environment = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "example_project.shop_django.settings",
        "DISTLOCK_URL": redis_store,
        "SHOP_DATABASE": str(tmp_path / "shop.sqlite3"),
        "SHOP_PAYMENT_SECONDS": "60",
    }
    for command in (["migrate", "--verbosity=0"], ["shell", "--verbosity=0", "-c", DELIVER]):
        subprocess.run([sys.executable, "manage.py", *command], cwd=ROOT, env=environment, check=True)
    server = Gunicorn("example_project.shop_django.wsgi:application", listen(0), tmp_path / "log", environment)
    server.wait_until_ready()
    yield server
    server.stop()


def test_a_killed_workers_lock_is_free_after_its_lease_and_not_before(shop: Gunicorn) -> None:
    with ThreadPoolExecutor(1) as buyer:
        purchase = buyer.submit(lambda: next(rush({"Django": shop.url}, "bicycle", locked=True, buyers=1)))
        worker = the_holder().holder.pid
        assert worker != shop.process.pid

        os.kill(worker, signal.SIGKILL)
        assert purchase.result(timeout=30).status == 0  # the buyer's connection broke: nobody is inside the view now

        before = time.monotonic()
        left = the_holder().lock.remaining
        assert left > EXPIRE / 2
        assert lock("stock:bicycle").try_acquire() is None
        with lock("stock:bicycle", wait=3 * EXPIRE):
            waited = time.monotonic() - before
    assert left - 0.01 <= waited < left + EXPIRE


def the_holder() -> LockRow:
    """Who holds the bicycle, as soon as somebody does."""
    until = time.monotonic() + 30
    while not (rows := list_all(registry(), "stock:bicycle").rows):
        assert time.monotonic() < until
        time.sleep(0.01)
    return rows[0]
