"""Locks in the project's own database need what Django needs for it, and no more: each driver that Django takes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

import pytest

from distlock_web.testing.servers import ServerMissing
from tests.support.databases import Database, Kind
from tests.support.requirements import without

pytestmark = pytest.mark.slow


class Driver(NamedTuple):
    kind: Kind
    module: str
    others: str
    """What is not installed there, beside SQLAlchemy."""


DRIVERS = {
    "sqlite3": Driver("sqlite", "_sqlite3", "psycopg,psycopg2,pymysql,MySQLdb"),
    "psycopg": Driver("postgres", "psycopg", "psycopg2,pymysql,MySQLdb"),
    "psycopg2": Driver("postgres", "psycopg2", "psycopg,pymysql,MySQLdb"),
    "PyMySQL": Driver("mariadb", "pymysql", "psycopg,psycopg2"),
    "mysqlclient": Driver("mariadb", "MySQLdb", "psycopg,psycopg2,pymysql"),
}


@pytest.fixture(params=DRIVERS)
def driver(request: pytest.FixtureRequest) -> Driver:
    found = DRIVERS[request.param]
    distribution = {"psycopg2": "psycopg2-binary", "mysqlclient": "mysqlclient"}.get(request.param)
    try:
        if distribution is not None:
            version(distribution)  # its module may be another's: PyMySQL goes by mysqlclient's name
    except PackageNotFoundError:
        without(request.param, ServerMissing(f"pip install {distribution}"))
    return found


def run(driver: Driver, database: Database) -> list[str]:
    settings: dict[str, Any] = {**database.django, "pymysql": driver.module == "pymysql"}
    blocked = f"sqlalchemy,flask,redis,{driver.others}"
    command = [sys.executable, "-m", "tests.support.programs.django_alone", json.dumps(settings), blocked]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_a_project_needs_its_driver_alone(driver: Driver, make_database: Callable[[Kind], Database]) -> None:
    """It needed SQLAlchemy, psycopg 3 beside psycopg2, and PyMySQL beside mysqlclient."""
    *said, imported = run(driver, make_database(driver.kind))
    used = {driver.module, "MySQLdb"} if driver.module == "pymysql" else {driver.module}
    assert set(json.loads(imported)) - {"_sqlite3"} == used - {"_sqlite3"}
    assert any("readers" in line for line in said)
    if driver.kind != "sqlite":
        assert said[-2:] == ["answered", "refused in time"]
