"""All scenarios, by the names that seeds have."""

from __future__ import annotations

from .redis_scenarios import (
    ClockSetAfterStart,
    LateMessages,
    LongOutage,
    RedisOnce,
    RedisScenario,
    RedlockScenario,
    ReplicaWithGhosts,
    SentinelScenario,
)
from .scenario import Memory, MemoryOnce, Scenario

SCENARIOS: dict[str, type[Scenario]] = {
    "memory": Memory,
    "memory-once": MemoryOnce,
    "redis": RedisScenario,
    "redis-once": RedisOnce,
    "sentinel": SentinelScenario,
    "redlock": RedlockScenario,
    "redis-outage": LongOutage,
    "sentinel-ghosts": ReplicaWithGhosts,
    "redlock-clock": ClockSetAfterStart,
    "redlock-late": LateMessages,
}
