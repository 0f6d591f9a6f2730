"""``manage.py distlock`` as a process, in a project of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from distlock_web import lock
from tests.support.cli import COMMAND
from tests.support.database_servers import PostgresServer
from tests.support.databases import new_database
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.slow

MANAGE = """
import os, sys
from django.conf import settings
from django.core.management import execute_from_command_line

settings.configure(
    INSTALLED_APPS=["distlock_web.django", "distlock_web.django.sql"], USE_TZ=True, SECRET_KEY="a secret",
    DATABASES={{"default": {database}}},
    DISTLOCK={{"default": {store}}},
)
execute_from_command_line(sys.argv)
"""


def test_migrate_under_a_lock_of_the_database_that_it_fills(postgres_server: PostgresServer, tmp_path: Path) -> None:
    """The lock wanted the tables that the command would have made."""
    with new_database("postgres", postgres_server.port, tmp_path) as database:
        _migrate_twice(tmp_path, database.django)


def _migrate_twice(tmp_path: Path, database: dict[str, Any]) -> None:
    (tmp_path / "manage.py").write_text(MANAGE.format(database=database, store={"DATABASE": "default"}))
    manage = [sys.executable, "manage.py"]
    for _ in range(2):
        ended = subprocess.run(
            [*manage, "distlock", "run", "--key", "migrate", "--", *manage, "migrate"],
            cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=False,
        )  # fmt: skip
        assert ended.returncode == 0, ended.stderr
    assert "No migrations to apply." in ended.stdout


@pytest.mark.parametrize("program", ["distlock", "manage.py"])
def test_a_reader_that_leaves_early_is_no_error(redis_store: str, tmp_path: Path, program: str) -> None:
    """``distlock list | head -1``"""
    (tmp_path / "manage.py").write_text(MANAGE.format(database={}, store='{"LOCATION": os.environ["DISTLOCK_URL"]}'))
    command = {"distlock": COMMAND, "manage.py": (sys.executable, "manage.py", "distlock")}[program]
    reading, writing = os.pipe()
    os.close(reading)
    with lock("order:7", expire=60):
        ended = subprocess.run(
            [*command, "list"], cwd=tmp_path, env={**os.environ, "DISTLOCK_URL": redis_store},
            stdout=writing, stderr=subprocess.PIPE, text=True, timeout=PATIENCE, check=False,
        )  # fmt: skip
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (128 + 13, "")
