from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connections

from tests.support.databases import Database, django_alias
from tests.support.fenced_tables import TABLES


@pytest.fixture
def tables(database: Database, django_db_blocker: Any) -> Iterator[Database]:
    """The fenced tables in the default database, which is of each kind."""
    with django_db_blocker.unblock(), django_alias("default", database, *TABLES):
        yield database


@pytest.fixture
def elsewhere() -> Iterator[Callable[..., Future[Any]]]:
    """Do something in another thread, on a connection of its own."""

    def call(work: Callable[[], Any]) -> Any:
        try:
            return work()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(4) as pool:
        yield lambda work: pool.submit(call, work)
