"""The Lua scripts, read from their files once."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.resources import files
from typing import Any

from .calls import Script


def _read(name: str) -> bytes:
    return (files(__package__) / f"{name}.lua").read_bytes()


def _whole(name: str) -> bytes:
    """With what it includes, and what that includes."""
    return re.sub(rb"^-- include: (\w+)\n", lambda found: _whole(found[1].decode()), _read(name), flags=re.M)


def _of_one_lock(name: str, gives: Callable[[Any], bool] | None = None) -> Script:
    return Script(_whole("_lock") + _whole(name), gives)


def _gives(answer: Any) -> bool:
    fence = answer[0] if type(answer) is list else answer
    return type(fence) is int and fence > 0


def _keeps(answer: Any) -> bool:
    """What it leaves, a failover must not forget: a ticket, a record."""
    return type(answer) is int and answer == 0


def _extends(answer: Any) -> bool:
    return type(answer) is list and 0 in answer


ACQUIRE = _of_one_lock("acquire", _gives)
RELEASE = _of_one_lock("release")
FINISH = _of_one_lock("finish", _keeps)
CANCEL = _of_one_lock("cancel")
REVOKE = _of_one_lock("revoke")
DETACH = _of_one_lock("detach", _keeps)
ATTACH = _of_one_lock("attach", _gives)
EXTEND = Script(_read("extend"), _extends)
INSPECT = Script(_read("inspect"))
NAMES = Script(_read("names"))
WAITERS = Script(_read("waiters"))
INDEXED = Script(_read("indexed"))
DONE = Script(_read("done"))
