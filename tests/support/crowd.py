"""Processes with many waiters for one lock, to kill, to stop and to continue."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any, TypeAlias

from .history import History
from .processes import Worker
from .redis_lock import KEY

#: The fixture ``crowd``: starts a process, see ``programs/crowd.py`` for what its options do.
StartCrowd: TypeAlias = Callable[..., Worker]

PROGRAM = "tests.support.programs.crowd"


def start_crowd(url: str, **options: Any) -> Worker:
    given = {
        "actor": "crowd", "url": url, "key": KEY, "count": 1, "expire": 30.0, "wait": 600.0, "renew": False,
        "rounds": 1, "hold": False, **options,
    }  # fmt: skip
    return Worker(given["actor"], [sys.executable, "-m", PROGRAM, json.dumps(given)], History())
