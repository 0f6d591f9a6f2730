"""``manage.py distlock`` as a process, in a project of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from distlock_web import LeaseLost, lock
from distlock_web.cli.exit_codes import CommandFailed
from distlock_web.cli.main import execute
from distlock_web.core.registry import registry
from distlock_web.ops.held_locks import list_all
from distlock_web.testing.servers import free_port
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


@contextmanager
def nobody() -> Iterator[int]:
    """What has no reader."""
    reading, writing = os.pipe()
    os.close(reading)
    yield writing
    os.close(writing)


@contextmanager
def full_disk() -> Iterator[int]:
    with open("/dev/full", "wb") as file:
        yield file.fileno()


LOST = {"nobody": (nobody, 128 + 13, ""), "a full disk": (full_disk, 74, "Output was lost: [Errno 28]")}
#: Many locks are more than a stream keeps for later.
SAYS = {
    "the help": ["--help"], "the version": ["--version"], "the help of one": ["release", "--help"],
    "one lock": ["list"], "many": ["list", "--json"], "a release": ["release", "order:7", "--yes"],
}  # fmt: skip


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has such a file")
@pytest.mark.parametrize(
    ("program", "said", "buffered"),
    [
        *(("distlock", said, True) for said in SAYS),
        *(("distlock", said, False) for said in ("the help", "a release")),
        *(("manage.py", said, True) for said in ("the help of one", "a release")),
    ],
)
@pytest.mark.parametrize("sink", LOST)
def test_what_cannot_be_written_has_a_status_of_its_own(
    redis_store: str, tmp_path: Path, program: str, said: str, buffered: bool, sink: str
) -> None:
    """A lock was released, and the status was that of one that is not; help had Python's own words, and 120."""
    (tmp_path / "manage.py").write_text(MANAGE.format(database={}, store='{"LOCATION": os.environ["DISTLOCK_URL"]}'))
    command = {"distlock": COMMAND, "manage.py": (sys.executable, "manage.py", "distlock")}[program]
    make, code, words = LOST[sink]
    environment = {**os.environ, "DISTLOCK_URL": redis_store, "PYTHONUNBUFFERED": "" if buffered else "1"}
    with ExitStack() as held, make() as writing:
        for number in range(100 if said == "many" else 8):
            held.enter_context(suppress(LeaseLost))
            held.enter_context(lock(f"order:{number}", expire=60))
        ended = subprocess.run(
            [*command, *SAYS[said]], cwd=tmp_path, env=environment,
            stdout=writing, stderr=subprocess.PIPE, text=True, timeout=PATIENCE, check=False,
        )  # fmt: skip
        names = {row.lock.name for row in list_all(registry()).rows}
    assert ended.returncode == code, ended.stderr
    assert words in ended.stderr
    assert "Traceback" not in ended.stderr
    assert "Exception ignored" not in ended.stderr
    assert ("disLock:order:7" in names) is (said != "a release")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has such a file")
def test_what_has_failed_keeps_its_status_though_its_first_lines_are_lost() -> None:
    """Those of the stores that do answer come first."""
    environment = {**os.environ, "DISTLOCK_URL": f"redis://127.0.0.1:{free_port()}/0", "PYTHONUNBUFFERED": ""}
    with full_disk() as writing:
        ended = subprocess.run(
            [*COMMAND, "list", "--json"], env=environment, stdout=writing, stderr=subprocess.PIPE, text=True,
            timeout=PATIENCE, check=False,
        )  # fmt: skip
    assert ended.returncode == 69, ended.stderr
    assert "Exception ignored" not in ended.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has such a file")
def test_a_file_that_cannot_be_written_leaves_standard_output_alone(
    redis_store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of ``call_command(..., stdout=file)``: all that its caller printed afterwards went to nowhere."""
    file = open("/dev/full", "w")  # noqa: SIM115 - to close it fails, too
    with open(tmp_path / "out", "w") as ours, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", ours)
        with pytest.raises(CommandFailed, match="Output was lost") as failed:
            execute(["list"], "distlock", stream=file)
        print("more", flush=True)
    assert failed.value.exit_code == 74
    assert (tmp_path / "out").read_text() == "more\n"
    assert os.path.samestat(os.fstat(file.fileno()), os.stat("/dev/full")), "nor is the file another"
    with suppress(OSError):
        file.close()
