"""All scenarios, by the names that seeds have."""

from __future__ import annotations

from .redis_scenarios import (
    ClockSetAfterStart,
    LateMessages,
    LongOutage,
    RedisScenario,
    RedlockScenario,
    ReplicaWithGhosts,
    SentinelScenario,
)
from .scenario import Memory, Scenario

SCENARIOS: dict[str, type[Scenario]] = {
    "memory": Memory,
    "redis": RedisScenario,
    "sentinel": SentinelScenario,
    "redlock": RedlockScenario,
    "redis-outage": LongOutage,
    "sentinel-ghosts": ReplicaWithGhosts,
    "redlock-clock": ClockSetAfterStart,
    "redlock-late": LateMessages,
}
