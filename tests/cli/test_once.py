"""``distlock run --once`` and ``distlock once``: a job on every host, which runs once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from distlock_web import once
from tests.support.cli import distlock

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("redis_store")]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


def job(url: str, log: Path, status: int = 0) -> tuple[int, str]:
    script = f"echo ran >> {log}; exit {status}"
    ended = distlock(url, "run", "--key", "nightly", "--once", "20h", "--no-wait", "--", "sh", "-c", script)
    return ended.returncode, ended.stderr


def runs(log: Path) -> int:
    return len(log.read_text().splitlines())


def test_a_command_that_has_succeeded_is_not_run_again(redis_store: str, log: Path) -> None:
    assert job(redis_store, log) == (0, "")
    status, said = job(redis_store, log)
    assert status == 0
    assert said == "distlock: nightly was done, and is not run again for its time (`distlock once list`).\n"
    assert runs(log) == 1


def test_a_command_that_has_failed_is_run_again(redis_store: str, log: Path) -> None:
    assert [job(redis_store, log, 3)[0], job(redis_store, log)[0], job(redis_store, log)[0]] == [3, 0, 0]
    assert runs(log) == 2


def test_another_command_under_the_same_key_is_refused_and_not_run(redis_store: str, log: Path) -> None:
    """Two projects with one Redis: the second one's backup is not skipped as if it had been made."""
    job(redis_store, log)
    other = distlock(redis_store, "run", "--key", "nightly", "--once", "20h", "--", "sh", "-c", f"echo other >> {log}")
    assert other.returncode == 64
    assert "Another command was done under the key 'nightly', and this one was not run." in other.stderr
    assert runs(log) == 1
    assert job(redis_store, log)[0] == 0
    assert str(log) not in distlock(redis_store, "once", "list", "--json").stdout  # its arguments may be secret


def test_what_is_done_is_searched(redis_store: str, log: Path) -> None:
    job(redis_store, log)
    once(key="another", keep="1h")(lambda: None)()
    found = distlock(redis_store, "once", "list", "--search", "ANOTH")
    assert ("another" in found.stdout, "nightly" in found.stdout) == (True, False)
    assert distlock(redis_store, "once", "list", "--search", "x").stdout == "Nothing that is done matches 'x'.\n"
    assert distlock(redis_store, "once", "forget", "nightly", "--search", "x").returncode == 64


def test_what_is_done_is_listed_and_forgotten(redis_store: str, log: Path) -> None:
    assert distlock(redis_store, "once", "list").stdout == "Nothing is done.\n"
    job(redis_store, log)
    once(key="another", keep="1h")(lambda: None)()
    listed = distlock(redis_store, "once", "list")
    assert (listed.returncode, listed.stderr) == (0, "")
    headings, newest, older = listed.stdout.splitlines()
    assert headings.split() == ["DONE", "AGO", "KEPT", "BY"]
    assert (newest.split()[0], older.split()[0]) == ("disLock:once:another", "disLock:once:nightly")
    found = json.loads(distlock(redis_store, "once", "list", "--json").stdout)
    assert [(each["name"], each["state"]) for each in found] == [
        ("disLock:once:another", "done"), ("disLock:once:nightly", "done"),
    ]  # fmt: skip
    assert distlock(redis_store, "list").stdout == "No lock is held.\n"
    forgotten = distlock(redis_store, "once", "forget", "nightly")
    assert (forgotten.returncode, forgotten.stdout) == (
        0, "Forgotten: disLock:once:nightly. It may run again.\n",
    )  # fmt: skip
    job(redis_store, log)
    assert runs(log) == 2
    by_name = distlock(redis_store, "once", "forget", "disLock:once:another", "--json")
    assert json.loads(by_name.stdout)["name"] == "disLock:once:another"


def test_what_is_done_is_not_released(redis_store: str, log: Path) -> None:
    """A script that releases a lock would have had the work done again, where its run ended just before."""
    job(redis_store, log)
    refused = distlock(redis_store, "release", "once:nightly", "--yes")
    assert refused.returncode == 1
    assert "is done, and not held" in refused.stderr
    job(redis_store, log)
    assert runs(log) == 1


def test_what_cannot_be_forgotten(redis_store: str, log: Path) -> None:
    unknown = distlock(redis_store, "once", "list", "--store", "reprots")
    assert unknown.returncode == 64, unknown.stdout
    refused = distlock(redis_store, "once", "forget", "nightly")
    assert (refused.returncode, refused.stderr) == (1, "distlock: nightly is not done: there is nothing to forget.\n")
    for words in (["list", "nightly"], ["forget"]):
        assert distlock(redis_store, "once", *words).returncode == 64
