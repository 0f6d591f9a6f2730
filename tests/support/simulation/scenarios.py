"""All scenarios, by the names that seeds have."""

from __future__ import annotations

from .redis_scenarios import (
    ClockSetAfterStart,
    LateUndo,
    LongOutage,
    RedisScenario,
    RedlockScenario,
    ReplicaWithGhosts,
    SentinelScenario,
    TwoListsOfNodes,
)
from .scenario import Memory, Scenario

#: What is promised.
SCENARIOS: dict[str, type[Scenario]] = {
    "memory": Memory,
    "redis": RedisScenario,
    "sentinel": SentinelScenario,
    "redlock": RedlockScenario,
}
#: What is known to go wrong.
HOPELESS: dict[str, type[Scenario]] = {
    "redlock-clock": ClockSetAfterStart,
    "redlock-lists": TwoListsOfNodes,
}
#: Promised, and not kept in every seed: they belong to the first list when they are.
DOUBTFUL: dict[str, type[Scenario]] = {
    "redis-outage": LongOutage,
    "sentinel-ghosts": ReplicaWithGhosts,
    "redlock-undo": LateUndo,
}
ALL = {**SCENARIOS, **HOPELESS, **DOUBTFUL}
