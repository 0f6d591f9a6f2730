"""One beat among several hosts: what the next one knows of the last run."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import redis
from celery import Celery
from celery.beat import PersistentScheduler

from tests.support.waiting import eventually

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PROGRAM = "tests.support.programs.beat_shop"
BEAT = f"celery --app {PROGRAM} beat --scheduler django_celery_beat.schedulers:DatabaseScheduler"

TASKS = "django_celery_beat_periodictask"


class Hosts:
    """Two of them run the line of the recipe."""

    def __init__(self, url: str, folder: Path) -> None:
        self._file = folder / "beat.sqlite3"
        self._folder = folder
        self._env = {**os.environ, "DISTLOCK_URL": url, "BEAT_REDIS": url, "BEAT_DATABASE": str(self._file)}
        self._env |= {"PYTHONPATH": str(ROOT)}
        self._env.pop("DJANGO_SETTINGS_MODULE", None)
        self.broker = redis.Redis.from_url(url)
        self.running: list[subprocess.Popen[bytes]] = []
        subprocess.run([sys.executable, "-m", PROGRAM], check=True, cwd=ROOT, env=self._env)

    def start(self) -> None:
        run = [sys.executable, "-m", "distlock_web", "run", "--key", "beat", "--expire", "3", "--"]
        with (self._folder / "log").open("ab") as log:
            host = subprocess.Popen(
                [*run, sys.executable, "-m", *BEAT.split(), f"--pidfile={self._pid_file(len(self.running))}"],
                cwd=ROOT,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.running.append(host)

    def last_run(self) -> datetime:
        with closing(sqlite3.connect(self._file)) as database:
            [[text]] = database.execute(f"SELECT last_run_at FROM {TASKS} WHERE name = 'report'").fetchall()
        return datetime.fromisoformat(text).replace(tzinfo=UTC) if text else datetime.min.replace(tzinfo=UTC)

    def say_it_was(self, before: timedelta) -> None:
        with closing(sqlite3.connect(self._file)) as database, database:
            text = (datetime.now(UTC) - before).replace(tzinfo=None).isoformat(" ")
            database.execute(f"UPDATE {TASKS} SET last_run_at = ? WHERE name = 'report'", [text])

    def sent(self, times: int) -> None:
        try:
            eventually(lambda: self.broker.llen("reports") >= times, f"the task is sent {times} times")
        except TimeoutError:
            raise AssertionError((self._folder / "log").read_text()) from None
        assert self.broker.llen("reports") == times

    def _pid_file(self, number: int) -> Path:
        return self._folder / f"{number}.pid"

    def end(self, number: int) -> None:
        """As a machine ends that has lost its power: also the command, which is in a group of its own."""
        host = self.running[number]
        host.kill()
        host.wait()
        with suppress(FileNotFoundError, ProcessLookupError):  # not begun, or ended by the one above
            os.kill(int(self._pid_file(number).read_text()), signal.SIGKILL)

    def close(self) -> None:
        for number in range(len(self.running)):
            self.end(number)
        self.broker.close()


@pytest.fixture
def hosts(redis_url: str, tmp_path: Path) -> Iterator[Hosts]:
    pytest.importorskip("django_celery_beat")
    hosts = Hosts(redis_url, tmp_path)
    try:
        yield hosts
    finally:
        hosts.close()


def test_the_next_beat_reads_the_last_run_from_the_database(hosts: Hosts) -> None:
    """The task is hourly. A plain beat on another host would send it an hour after the take-over."""
    begun = datetime.now(UTC)
    hosts.say_it_was(before=timedelta(hours=2))
    hosts.start()
    hosts.sent(1)
    eventually(lambda: hosts.last_run() > begun - timedelta(minutes=1), "the run is written")
    hosts.end(0)
    hosts.say_it_was(before=timedelta(hours=1))
    hosts.start()
    hosts.sent(2)


def test_a_plain_beat_on_another_host_waits_for_a_whole_interval(tmp_path: Path) -> None:
    """That is why the recipe says so: its last runs are in a file of the host."""
    app = Celery("shop", set_as_current=False)
    app.conf.beat_schedule = {"report": {"task": "report", "schedule": timedelta(hours=1)}}
    left = []
    for host in ("one", "two"):
        scheduler = PersistentScheduler(app, schedule_filename=str(tmp_path / host))
        entry = scheduler.schedule["report"]
        if host == "one":
            entry = scheduler.schedule["report"] = next(entry)
            entry.last_run_at -= timedelta(minutes=59)
        left.append(entry.is_due().next)
        scheduler.close()
    assert left[0] < 90 < 3500 < left[1]
