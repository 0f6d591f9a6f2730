"""The stores that are tried, each by its name, in the order of the table."""

from __future__ import annotations

from importlib import import_module

from .way import Way

#: In which module of ``tests.support.faults`` each is, and its class.
WAYS = {
    "redis": ("redis_way", "RedisWay"),
    "sentinel": ("redis_way", "SentinelWay"),
    "cluster": ("redis_way", "ClusterWay"),
    "redlock": ("redis_way", "RedlockWay"),
    "postgres": ("sql_way", "PostgresWay"),
    "mariadb": ("sql_way", "MariaDBWay"),
    "sqlite": ("sql_way", "SQLiteWay"),
    "zookeeper": ("zookeeper_way", "ZooKeeperWay"),
    "etcd": ("etcd_way", "EtcdWay"),
    "memory": ("memory_way", "MemoryWay"),
}


def way_of(name: str) -> type[Way]:
    module, of = WAYS[name]
    found: type[Way] = getattr(import_module(f"{__package__}.{module}"), of)
    return found
