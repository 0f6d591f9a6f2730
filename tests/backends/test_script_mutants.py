"""What is wrong in a Lua script is found: three mutants of each, and more, by cases of the stores' contract."""

from __future__ import annotations

from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import redis

from distlock_web import configure
from distlock_web.backends.redis import scripts as of_redis
from distlock_web.backends.redis.scripts import INDEXED
from distlock_web.backends.redlock import scripts as of_redlock
from distlock_web.backends.redlock.scripts import FOUND
from distlock_web.core.backend import SHARED
from distlock_web.testing.harness import HARNESSES
from tests.support import script_mutants as mutants
from tests.support.script_mutants import REDIS, REDLOCK, Listed, mutated
from tests.support.simulation.mutants import MUTANTS
from tests.support.simulation.program import PACKAGE


def run_case(name: str, settings: dict[str, Any]) -> None:
    registry = configure({"default": settings})
    try:
        test = getattr(Listed(), name)
        shapes = {"inside": SHARED, "comes": 9, "limit": 2}
        wanted = shapes.keys() & signature(test).parameters.keys()
        test(harness=HARNESSES["threads"](registry.store("default")), **{name: shapes[name] for name in wanted})
    finally:
        registry.close()


@pytest.mark.parametrize("name", REDIS)
def test_a_mutant_of_redis_is_found(name: str, redis_settings: dict[str, Any]) -> None:
    with mutated(REDIS[name], of_redis), pytest.raises(AssertionError):
        run_case(REDIS[name].case, redis_settings)


@pytest.mark.parametrize("name", REDLOCK)
def test_a_mutant_of_a_vote_is_found(name: str, redlock_settings: dict[str, Any]) -> None:
    with mutated(REDLOCK[name], of_redlock), pytest.raises(AssertionError):
        run_case(REDLOCK[name].case, redlock_settings)


@pytest.mark.parametrize("name", sorted(name for name in vars(Listed) if not name.startswith("_")))
def test_without_a_mutant_the_case_passes(name: str, redis_settings: dict[str, Any]) -> None:
    run_case(name, redis_settings)


def changed(source: bytes, old: str, new: str) -> str:
    text = source.decode()
    assert text.count(old) == 1, f"a mutant no longer fits: {text.count(old)} times {old!r}"
    return text.replace(old, new)


def which_slots(client: redis.Redis, source: str) -> None:
    client.set("~held{a}", "an index")
    client.set("~held{c}", "an index")
    assert client.eval(source, 0, "~held", "a", "b", "c") == [0, 2]


def who_a_node_is(client: redis.Redis, source: str) -> None:
    def ask(who: str, moment: int, apart: int, how: str = "") -> list[object]:
        answer = client.eval(source, 2, "index", "quorum", who, moment, apart, how)
        return [answer[0], *answer[2:3]]

    seconds, parts = client.time()
    now = seconds * 1_000_000 + parts
    assert ask("0;a,b;9", 0, 0, "look") == [-1, ""]
    assert ask("0;a,b;9", now - 60_000_000, 1_000_000) == [0]
    assert ask("0;a,b;9", now, 30_000_000) == [1]
    known = client.get("quorum")
    assert ask("0;a,b;9", now, 30_000_000) == [1, known]
    assert ask("1;b,c;9", now, 30_000_000) == [-2, known]
    assert ask("1;b,c;9", now, 30_000_000, "adopt") == [1]


@pytest.mark.parametrize("name", mutants.INDEXED)
def test_a_mutant_of_indexed_is_found(name: str, redis_client: redis.Redis) -> None:
    which_slots(redis_client, INDEXED.source.decode())
    with pytest.raises(AssertionError):
        which_slots(redis_client, changed(INDEXED.source, *mutants.INDEXED[name]))


@pytest.mark.parametrize("name", mutants.FOUND)
def test_a_mutant_of_found_is_found(name: str, redis_client: redis.Redis) -> None:
    who_a_node_is(redis_client, FOUND.source.decode())
    redis_client.flushall()
    with pytest.raises(AssertionError):
        who_a_node_is(redis_client, changed(FOUND.source, *mutants.FOUND[name]))


def test_each_script_has_three_mutants() -> None:
    tried = [mutant.file for mutant in MUTANTS.values()]
    for package, table in ((of_redis, REDIS), (of_redlock, REDLOCK)):
        folder = Path(package.__file__ or "").parent
        for script in folder.glob("*.lua"):
            if script.name != "_lock.lua":  # a clock, and names
                known = sum(mutant.file == script.stem for mutant in table.values())
                known += sum(folder / name == script for name in (PACKAGE / each for each in tried))
                known += len(getattr(mutants, script.stem.upper(), ()))
                assert known >= 3, f"{script} has {known}"
