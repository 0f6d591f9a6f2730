"""``distlock doctor`` at the stores beside one Redis, set up wrongly on purpose, and rightly: then it finds nothing."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pymysql
import pytest
import redis

from distlock_web import configure
from distlock_web.core.findings import Finding
from distlock_web.ops import doctor
from distlock_web.testing.servers import RedisServer
from tests.support.clock_shift import ShiftedRedis, compiled_shim
from tests.support.database_servers import MariaDBServer, PostgresServer, postgres_programs, unprivileged
from tests.support.pgbouncer import PgBouncer, pgbouncer_program
from tests.support.requirements import require
from tests.support.stores.cluster import Cluster
from tests.support.stores.redlock import redlock_url
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow


def found(location: str, **options: Any) -> dict[str, Finding]:
    store = configure({"default": {"LOCATION": location, "PREFIX": "shop:", "OPTIONS": options}}).store("default")
    return {finding.code: finding for finding in doctor.examine_store(store)}


@contextmanager
def remembering(servers: Iterable[redis.Redis]) -> Iterator[None]:
    """Each of them has every write on its disk before it answers."""
    with ExitStack() as after:
        for server in servers:
            for setting, right, before in (("appendonly", "yes", "no"), ("appendfsync", "always", "everysec")):
                after.callback(server.config_set, setting, before)
                server.config_set(setting, right)
        yield


@contextmanager
def remembering_at(servers: Iterable[Any]) -> Iterator[None]:
    with ExitStack() as opened, remembering([opened.enter_context(redis.Redis.from_url(s.url)) for s in servers]):
        yield


# SQL -----------------------------------------------------------------------------------------------------------------


def test_postgresql(postgres_settings: dict[str, Any]) -> None:
    """The suite's server does not wait for its disk."""
    url = postgres_settings["LOCATION"]
    assert found(url).keys() == {"DL304"}
    assert "fsync is off" in found(url)["DL304"].problem


def test_a_pooler(postgres_server: PostgresServer) -> None:
    require("pgbouncer", pgbouncer_program)
    with PgBouncer(postgres_server.port) as pooler:
        assert found(pooler.url)["DL301"].severity == "info"


def test_mariadb(mariadb_settings: dict[str, Any], mariadb_server: MariaDBServer) -> None:
    url = mariadb_settings["LOCATION"]
    assert found(url).keys() == {"DL304"}
    with pymysql.connect(host="127.0.0.1", port=mariadb_server.port, user="root") as admin, admin.cursor() as cursor:
        cursor.execute("SET GLOBAL innodb_flush_log_at_trx_commit = 1")
        try:
            assert found(url) == {}
        finally:
            cursor.execute("SET GLOBAL innodb_flush_log_at_trx_commit = 0")


class DurablePostgres(PostgresServer):
    """One that waits for its disk."""

    def command(self, port: int) -> list[str]:
        return [word.replace("fsync=off", "fsync=on") for word in super().command(port)]


@contextmanager
def standby(server: PostgresServer, *options: str) -> Iterator[None]:
    """pg_receivewal counts as one: it reads the log as a standby does. Spoken to past any pooler."""
    user, folder = unprivileged("postgres"), Path(server.folder, "received")
    folder.mkdir()
    if user is not None:
        shutil.chown(folder, user)
    command = [str(postgres_programs() / "pg_receivewal"), *options, "-h", "127.0.0.1", "-p", str(server.port)]
    with subprocess.Popen(
        [*command, "-U", "postgres", "-D", str(folder)], user=user, stderr=subprocess.DEVNULL
    ) as reader:
        try:
            yield
        finally:
            reader.terminate()
            reader.wait()
            shutil.rmtree(folder)


def test_postgresql_alone_and_with_a_standby(postgres_server: PostgresServer) -> None:
    reading = "SELECT sync_state FROM pg_stat_replication"
    with DurablePostgres() as server, psycopg.connect(server.url, autocommit=True) as admin:
        assert found(server.url) == {}
        admin.execute("CREATE ROLE app LOGIN")
        admin.execute("GRANT ALL ON ALL TABLES IN SCHEMA public TO app")
        unseen = server.url.replace("postgres@", "app@")  # who sees that there is a standby, and not what it is
        with standby(server):
            eventually(lambda: admin.execute(reading).fetchone(), "the log is read")
            for url in (server.url, unseen):
                assert "1 standby, none of them synchronous" in found(url)["DL306"].problem
        with standby(server, "--synchronous"):
            admin.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
            admin.execute("SELECT pg_reload_conf()")
            eventually(lambda: admin.execute(reading).fetchall() == [("sync",)], "it is synchronous")
            assert found(server.url) == found(unseen) == {}
            admin.execute("ALTER SYSTEM RESET synchronous_standby_names")
            admin.execute("SELECT pg_reload_conf()")


# Redlock -------------------------------------------------------------------------------------------------------------


def test_redlock(own_nodes: list[RedisServer]) -> None:
    url = redlock_url(own_nodes)
    with remembering_at(own_nodes):
        assert found(url) == {}
    assert found(url).keys() == {"DL102"}  # restart_delay is 0: they would have to remember
    with redis.Redis.from_url(own_nodes[1].url) as admin:
        admin.config_set("maxmemory-policy", "allkeys-lru")
    assert f"127.0.0.1:{own_nodes[1].port}: maxmemory-policy" in found(url)["DL101"].problem
    own_nodes[2].stop()
    assert found(url)["DL201"].severity == "warning"
    assert "1 more may fail" in found(url)["DL201"].harm
    own_nodes[3].stop()
    own_nodes[4].stop()
    assert found(url).keys() >= {"DL001", "DL201"}
    assert found(url)["DL201"].severity == "error"


def test_redlocks_clocks(make_redis: Callable[..., RedisServer]) -> None:
    with ExitStack() as running:
        ahead = running.enter_context(ShiftedRedis(compiled_shim(running)))
        url = redlock_url([make_redis(), make_redis(), ahead])
        assert "DL202" not in found(url)
        ahead.shift(3.0)
        problem = found(url)["DL202"].problem
        assert re.search(rf" 3\.\d s apart: Redis at 127\.0\.0\.1:{ahead.port} is ahead of", problem)
        ahead.shift(0.3)  # a lease of 10 s allows for 0.1 s
        assert "A lease of 10 s allows for 0.102 s" in found(url)["DL202"].harm
        ahead.shift(0.0)
        assert "DL202" not in found(url)


# Redis Cluster, Sentinel --------------------------------------------------------------------------------------------


def test_cluster(cluster: Cluster) -> None:
    master = cluster.masters[0]
    wrong = found(cluster.url)
    assert wrong.keys() == {"DL102", "DL104"}  # of each master
    assert "DL101" not in wrong
    master.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    try:
        assert f"127.0.0.1:{master.port}: maxmemory-policy" in found(cluster.url)["DL101"].problem
    finally:
        master.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")
    with remembering_at(cluster.masters):
        assert found(cluster.url, min_replicas=1) == {}
