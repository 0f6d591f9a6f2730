"""The words of other libraries, which are answered with ours."""

from __future__ import annotations

from collections.abc import Iterable

from ..core.errors import ConfigurationError

#: The words of other libraries. ``timeout`` is how long the lock lives in redis-py, how long to queue in django-pglock.
ELSEWHERE = {
    "timeout": "How long the lock lives is expire=10, how long to queue for it is wait=10.",
    "blocking_timeout": "How long to queue is wait=10.",
    "blocking": "Not to queue at all is wait=0, to queue for ever is wait=None.",
    "auto_renewal": "To renew the lock while the block runs is renew=True.",
    "auto_release_time": "How long the lock lives is expire=10.",
    "ttl": "How long the lock lives is expire=10.",
    "lock_id": "The lock's name is its key, the first argument.",
    "additional_time": "extend(5) gives the lease at least 5 more seconds from now, extend() its whole expire again.",
}


def refuse_arguments(call: str, given: Iterable[object], named: Iterable[str]) -> None:
    """``ConfigurationError`` for arguments that a method has in other libraries, and here has not."""
    for name in named:
        known = ELSEWHERE.get(name, "The options of a lock stand in lock(...), such as lock(key, expire=10).")
        raise ConfigurationError(f"{call} has no {name}=. {known}")
    for value in given:
        raise ConfigurationError(
            f"{call} has no argument, and was given {value!r}. Not to queue at all is lock(key, wait=0), to queue for "
            f"3 s is lock(key, wait=3). try_acquire() returns None where acquire() raises LockBusy."
        )
