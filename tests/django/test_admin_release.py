"""A release by force from page to row: the holder hears of it, the next has the lock, a late write is refused."""

from __future__ import annotations

import contextvars
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client

from distlock_web import Lease, StaleFence, lock
from distlock_web.core.registry import registry
from distlock_web.web.lock_browser import LockQuery, browse
from tests.support.callers import Beside
from tests.support.fenced_tables import Stock, Warehouse
from tests.support.waiting import eventually

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

RELEASE = "/admin/distlock_web/heldlock/release/"


@pytest.fixture
def stock(transactional_db: None) -> Iterator[Stock]:
    with connection.schema_editor() as editor:
        editor.create_model(Warehouse)
        editor.create_model(Stock)
    yield Stock.objects.create(name="bicycle", count=10)
    with connection.schema_editor() as editor:
        editor.delete_model(Stock)
        editor.delete_model(Warehouse)


def test_from_the_page_to_the_row(settings: Any, redis_url: str, stock: Stock, beside: Beside) -> None:
    settings.DISTLOCK = {"default": {"BACKEND": "redis", "LOCATION": redis_url}}
    User.objects.create_superuser("ann", password="x")
    client = Client()
    client.login(username="ann", password="x")
    over, told, granted = threading.Event(), threading.Event(), threading.Event()
    leases: dict[str, Lease] = {}

    def hold(who: str, **options: Any) -> None:
        with lock("stock", expire=3, renew=True, **options) as lease:
            leases[who] = lease
            granted.set()
            over.wait(30)

    holder = contextvars.Context()
    first = holder.run(lock("stock", expire=3, renew=True, on_lost=lambda lease: told.set()).acquire)
    late = Stock.objects.fenced_get(first.fence, pk=stock.pk)
    next_one = beside(hold, "next", wait=30)
    eventually(lambda: browse(registry(), LockQuery()).totals.waiting == 1, "somebody waits")

    key = json.dumps(["default", first.name, str(first.fence)])
    page = client.post(RELEASE, {"lock": key, "confirmed": "1"}, follow=True)
    assert "was released" in str(next(iter(page.context["messages"])))

    assert granted.wait(20)
    assert told.wait(20)
    assert first.state == "lost"
    Stock.objects.fenced_get(leases["next"].fence, pk=stock.pk)
    late.count -= 1
    with pytest.raises(StaleFence):
        late.fenced_save(first.fence)
    entry = LogEntry.objects.get()
    assert (entry.user.get_username(), entry.object_id) == ("ann", first.name)
    over.set()
    next_one.result(20)
