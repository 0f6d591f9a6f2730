"""All scenarios, by the names that seeds have."""

from __future__ import annotations

from .cluster_scenarios import ClusterLeases, ClusterScenario
from .redis_scenarios import (
    ClockSetAfterStart,
    ClockSetAhead,
    LateMessages,
    LongOutage,
    RedisNested,
    RedisOnce,
    RedisScenario,
    RedisShared,
    RedlockScenario,
    ReplicaWithGhosts,
    SentinelScenario,
)
from .scenario import Memory, MemoryNested, MemoryOnce, MemoryShared, Scenario

SCENARIOS: dict[str, type[Scenario]] = {
    "memory": Memory,
    "memory-once": MemoryOnce,
    "memory-shared": MemoryShared,
    "memory-nested": MemoryNested,
    "redis": RedisScenario,
    "redis-once": RedisOnce,
    "redis-shared": RedisShared,
    "redis-nested": RedisNested,
    "sentinel": SentinelScenario,
    "redlock": RedlockScenario,
    "cluster": ClusterScenario,
    "cluster-leases": ClusterLeases,
    "redis-outage": LongOutage,
    "sentinel-ghosts": ReplicaWithGhosts,
    "redlock-ahead": ClockSetAhead,
    "redlock-clock": ClockSetAfterStart,
    "redlock-late": LateMessages,
}
