"""The databases that the other tests rely on do what they say."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path

import psycopg
import pymysql
import pytest

from distlock_web.testing.servers import ServerMissing
from tests.support.database_servers import MariaDBServer, PostgresServer, mariadb_programs, postgres_programs
from tests.support.requirements import require


@pytest.mark.slow
def test_a_postgres_answers_keeps_its_data_and_is_gone_afterwards() -> None:
    require("postgres", postgres_programs)
    with PostgresServer() as server:
        with psycopg.connect(server.url) as connection:
            connection.execute("CREATE TABLE kept (number int)")
        server.restart()
        connection = psycopg.connect(server.url)  # and stays open: a stop does not wait for clients
        assert connection.execute("SELECT count(*) FROM kept").fetchone() == (0,)
        process, folder = server.pid, Path(server.folder)
    connection.close()
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)
    assert not folder.exists()


@pytest.mark.slow
def test_a_mariadb_answers_keeps_its_data_and_is_gone_afterwards() -> None:
    require("mariadb", mariadb_programs)
    with MariaDBServer() as server:
        where = {"host": "127.0.0.1", "port": server.port, "user": "root", "database": "test"}
        with pymysql.connect(**where) as connection:
            connection.cursor().execute("CREATE TABLE kept (number int)")
        server.restart()
        with pymysql.connect(**where) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM kept")
            assert cursor.fetchone() == (0,)
        process, folder = server.pid, Path(server.folder)
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)
    assert not folder.exists()


def test_missing_programs_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name, path=None: None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(Path, "glob", lambda self, pattern: iter(()))
    with pytest.raises(ServerMissing, match="postgres"):
        postgres_programs()
    with pytest.raises(ServerMissing, match="mariadb"):
        mariadb_programs()
