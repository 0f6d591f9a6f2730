"""Other ways to run: gevent, an event loop for each request, many event loops at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import redis

from tests.support.redis_lock import left_behind

PROGRAMS = Path(__file__).parents[1] / "support" / "programs"
GEVENT, LOOPS = PROGRAMS / "under_gevent.py", PROGRAMS / "loop_per_request.py"


def run(script: Path, url: str) -> str:
    """Run a script in a fresh interpreter in which every warning is an error; what it printed."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-X", "dev", str(script), url], capture_output=True, text=True, timeout=100
    )
    # What a finaliser or a thread raises does not change the exit status, and is printed.
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_gevent(redis_url: str, redis_client: redis.Redis) -> None:
    assert run(GEVENT, redis_url) == "200 sections by 20 greenlets, the others ran meanwhile\n"
    assert left_behind(redis_client) == {}


def test_an_event_loop_for_each_request_leaves_nothing(redis_url: str, redis_client: redis.Redis) -> None:
    """As async views under WSGI: asgiref makes a loop for each."""
    assert run(LOOPS, redis_url) == "50 loops, no connection and no thread left behind\n"
    assert left_behind(redis_client) == {}
