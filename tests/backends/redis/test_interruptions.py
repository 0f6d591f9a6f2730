"""Exceptions out of signal handlers, at any byte code: a worker's time limit, Ctrl-C. Nobody else pays for them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from distlock_web.backends.redis.transport.pool import Connection
from distlock_web.kit.outage import Outage
from tests.support.callers import unrelated
from tests.support.redis_lock import KEY, held, left_behind
from tests.support.waiting import LONG

ROOT = Path(__file__).parents[3]
PROGRAM = ROOT / "tests" / "support" / "programs" / "interrupted.py"
#: Of the program's leases.
EXPIRE = 3.0


def interrupted(url: str, seconds: float, contenders: int, seed: int) -> dict[str, Any]:
    command = [sys.executable, str(PROGRAM), url, str(seconds), str(contenders), str(seed)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    print(found)
    return found


class TimeIsUp(Exception):
    """A worker's time limit, as a signal handler raises it."""


@pytest.mark.parametrize("wait", [0, None])
def test_what_was_under_way_when_a_time_limit_came_is_undone_once_it_has_come(
    redis_store: str, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch, wait: float | None
) -> None:
    """Its undo went past it on another connection, found nothing, and the lock was held by nobody for a lease."""
    unrelated(KEY, wait=wait).release()  # connected, and the scripts are known
    under_way = list[bytes]()
    ask = Connection.ask

    async def interrupted(self: Connection, packed: bytes) -> Any:
        if not under_way:
            under_way.append(packed)
            raise TimeIsUp
        return await ask(self, packed)

    monkeypatch.setattr(Connection, "ask", interrupted)
    postponed = list[tuple[float, Callable[[], object]]]()

    def note(_: Outage, work: Callable[[], object], *, after: float, within: float) -> None:
        postponed.append((after, work))

    monkeypatch.setattr(Outage, "postpone", note)
    with pytest.raises(TimeIsUp):
        unrelated(KEY, wait=wait, expire=LONG)
    assert left_behind(redis_client) == {}
    arrives(under_way[0], redis_client)
    assert held(redis_client)
    for after, undo in postponed:
        assert after > 0, "not before it has come"
        undo()
    assert left_behind(redis_client) == {}


def arrives(packed: bytes, client: redis.Redis) -> None:
    """What was sent on a connection that is closed by now."""
    connection: Any = client.connection_pool.make_connection()
    connection.send_packed_command([packed])
    assert connection.read_response()
    connection.disconnect()


@pytest.mark.nightly
@pytest.mark.parametrize("seed", [1, 2])
def test_a_lock_that_is_interrupted_anywhere_is_not_left_behind(redis_url: str, seed: int) -> None:
    """Once in each of some thousand blocks: taken, held, given back.

    The interpreter may raise between the call of ``__exit__`` and its first line: that no code of ours can help.
    """
    found = interrupted(redis_url, 5.0, 0, seed)
    assert found["hits"] > 100
    assert [place for place in found["left"] if "lock.py" not in place or "__exit__" not in place.split(" < ")[0]] == []
    assert sum(found["left"].values()) < 0.02 * found["hits"]
    assert {name: found[name] for name in ("lost slots", "waiters", "held", "errors")} == {
        "lost slots": 0,
        "waiters": 0,
        "held": [],
        "errors": [],
    }


@pytest.mark.nightly
@pytest.mark.parametrize("seed", [3, 4])
def test_others_who_wait_meanwhile_wait_a_lease_at_most(redis_url: str, seed: int) -> None:
    """A mutex stayed locked, or nobody read any more: threads hung for good, and places of the pool were lost."""
    found = interrupted(redis_url, 7.0, 3, seed)
    assert found["hits"] > 100
    assert found["sections"] > found["hits"]
    assert found["hanging"] == []
    assert found["contenders' errors"] == []
    assert found["longest"] < EXPIRE + 2.0
    names = ("lost slots", "waiting for a connection", "waiters", "held")
    assert {name: found[name] for name in names} == {
        "lost slots": 0,
        "waiting for a connection": 0,
        "waiters": 0,
        "held": [],
    }
