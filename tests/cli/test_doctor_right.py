"""``distlock doctor`` at stores that are set up rightly: it finds nothing."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis

from distlock_web import configure
from distlock_web.testing.servers import RedisServer
from distlock_web.web import doctor
from tests.support.database_servers import PostgresServer, postgres_programs, unprivileged
from tests.support.requirements import require
from tests.support.stores.cluster import Cluster
from tests.support.stores.redlock import redlock_url
from tests.support.stores.sentinel import SentinelSetup
from tests.support.waiting import eventually
from tests.support.zookeeper_server import zookeeper_ensemble, zookeeper_programs

pytestmark = pytest.mark.slow


def found(location: str, **options: Any) -> list[str]:
    store = configure({"default": {"LOCATION": location, "OPTIONS": options}}).store("default")
    return [f"{each.code} {each.problem}" for each in doctor.examine_store(store, None)]


@contextmanager
def remembering(servers: Iterable[redis.Redis]) -> Iterator[None]:
    """Each of them has every write on its disk before it answers."""
    with ExitStack() as after:
        for server in servers:
            for setting, right, before in (("appendonly", "yes", "no"), ("appendfsync", "always", "everysec")):
                after.callback(server.config_set, setting, before)
                server.config_set(setting, right)
        yield


def test_sentinel(sentinel_setup: SentinelSetup, sentinel_settings: dict[str, Any]) -> None:
    with remembering(sentinel_setup.clients):
        assert found(sentinel_settings["LOCATION"], min_replicas=2) == []


def test_cluster(cluster: Cluster) -> None:
    with ExitStack() as clients:
        masters = [clients.enter_context(redis.Redis.from_url(node.url)) for node in cluster.masters]
        with remembering(masters):
            assert found(cluster.url, min_replicas=1) == []


def test_redlock(own_nodes: list[RedisServer]) -> None:
    with ExitStack() as clients:
        nodes = [clients.enter_context(redis.Redis.from_url(node.url)) for node in own_nodes]
        with remembering(nodes):
            assert found(redlock_url(own_nodes)) == []


def test_zookeeper() -> None:
    require("zookeeper", zookeeper_programs)
    with zookeeper_ensemble(3) as servers:
        assert found("zookeeper://" + ",".join(f"127.0.0.1:{server.port}" for server in servers)) == []


class DurablePostgres(PostgresServer):
    """One that waits for its disk."""

    def command(self, port: int) -> list[str]:
        return [word.replace("fsync=off", "fsync=on") for word in super().command(port)]


def test_postgresql_alone_and_with_a_synchronous_standby(postgres_server: PostgresServer) -> None:
    """Spoken to past any pooler. pg_receivewal counts as a standby: it reads the log as one does, and says so."""
    with DurablePostgres() as server, psycopg.connect(server.url, autocommit=True) as admin:
        assert found(server.url) == []
        assert found(server.url, listen=True) == []
        with synchronous_standby(server):
            admin.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
            admin.execute("SELECT pg_reload_conf()")
            states = "SELECT sync_state FROM pg_stat_replication"
            eventually(lambda: admin.execute(states).fetchall() == [("sync",)], "it is synchronous")
            assert found(server.url) == []
            admin.execute("ALTER SYSTEM RESET synchronous_standby_names")
            admin.execute("SELECT pg_reload_conf()")


@contextmanager
def synchronous_standby(server: PostgresServer) -> Iterator[None]:
    user, folder = unprivileged("postgres"), Path(server.folder, "received")
    folder.mkdir()
    if user is not None:
        shutil.chown(folder, user)
    command = [str(postgres_programs() / "pg_receivewal"), "--synchronous", "-h", "127.0.0.1", "-p", str(server.port)]
    command += ["-U", "postgres", "-D", str(folder)]
    with subprocess.Popen(command, user=user, stderr=subprocess.DEVNULL) as reader:
        try:
            yield
        finally:
            reader.terminate()
