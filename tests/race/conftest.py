from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.databases import Database, django_alias
from tests.support.race_tables import TABLES


@pytest.fixture
def shop(database: Database, django_db_blocker: Any, settings: Any) -> Iterator[Database]:
    """The shop's tables in the default database, which is of each kind; the locks in memory."""
    settings.DISTLOCK = {"default": {"BACKEND": "memory"}}
    with django_db_blocker.unblock(), django_alias("default", database, *TABLES):
        yield database
