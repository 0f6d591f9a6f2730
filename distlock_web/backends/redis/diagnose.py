"""What is set up on a server of Redis so that locks will be lost: ``distlock doctor``'s findings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from redis.exceptions import RedisError, ResponseError

from ...core.findings import Finding
from .transport.address import DriverConnection, RedisAddress
from .transport.errors import translated


def diagnose(address: RedisAddress) -> list[Finding]:
    """What is wrong with this server. Raises ``DistLockError``."""
    with _connected(address) as connection:
        info = _info(connection)
        if info is None:
            return [_unknown()]
        return list(_findings(info, _appendfsync(connection), address.min_replicas))


def server_time(address: RedisAddress) -> float:
    """The server's clock, in seconds since the epoch. Raises ``DistLockError``."""
    with _connected(address) as connection:
        seconds, microseconds = _ask(connection, "TIME")
        return int(seconds) + int(microseconds) / 1e6


@contextmanager
def _connected(address: RedisAddress) -> Iterator[DriverConnection]:
    try:
        connection = address.connect()
        try:
            yield connection
        finally:
            connection.disconnect()  # type: ignore[no-untyped-call]
    except (RedisError, OSError) as error:
        raise translated(error, address) from error


def _findings(info: Mapping[str, str], appendfsync: str | None, min_replicas: int) -> Iterator[Finding]:
    yield from _eviction(info)
    yield from _persistence(info, appendfsync)
    replicas = int(info.get("connected_slaves", 0))
    if replicas > min_replicas:
        yield Finding(
            "DL104",
            "info" if min_replicas else "warning",
            f"The server has {replicas} replica{'s' if replicas > 1 else ''}, and min_replicas is {min_replicas}.",
            "A replica that has not confirmed a lock may become the master: others take it while its holder still "
            "runs.",
            f'OPTIONS: {{"min_replicas": {replicas}}}, or replica-priority 0 for replicas that must never be the '
            f"master.",
        )


def _eviction(info: Mapping[str, str]) -> Iterator[Finding]:
    policy, limit = info.get("maxmemory_policy", "noeviction"), int(info.get("maxmemory", 0))
    if policy == "noeviction":
        return
    when = f"maxmemory is {limit / 2**20:.0f} MiB" if limit else "without effect only as long as maxmemory is 0"
    yield Finding(
        "DL101",
        "error" if limit else "warning",
        f"maxmemory-policy is {policy}, {when}.",
        "A full server drops held locks, and somebody else takes them while their holders still run. It also drops "
        "the records of once, so work is done again.",
        "maxmemory-policy noeviction: a full server then refuses new locks and keeps the old ones. Put caches on "
        "another server.",
    )


def _persistence(info: Mapping[str, str], appendfsync: str | None) -> Iterator[Finding]:
    if info.get("aof_enabled", "1") == "0":
        yield Finding(
            "DL102",
            "warning",
            "The server keeps no append-only file (appendonly no).",
            "After a restart the locks since the last snapshot (without snapshots: all) are free while their holders "
            "still run.",
            "appendonly yes; or restart it only after the longest lease has ended.",
        )
    elif appendfsync in ("everysec", "no"):
        yield Finding(
            "DL103",
            "info" if appendfsync == "everysec" else "warning",
            f"appendfsync is {appendfsync}.",
            f"If the machine fails, the locks of the last {'second' if appendfsync == 'everysec' else 'half minute'} "
            f"are free after the restart, while their holders still run.",
            "appendfsync always, if that is too much to lose; every lock then waits for the disk.",
        )


def _unknown() -> Finding:
    return Finding(
        "DL107",
        "info",
        "This user may not read the server's settings (INFO).",
        "The doctor cannot tell whether the server drops locks when it is full, or loses them at a restart.",
        "Run the doctor as a user with +info and +config|get.",
    )


def _info(connection: DriverConnection) -> dict[str, str] | None:
    answer = _ask(connection, "INFO")
    if answer is None:
        return None
    lines = answer.decode("utf-8", "replace").splitlines()
    pairs = (line.partition(":") for line in lines if not line.startswith("#"))
    return {name: value for name, mark, value in pairs if mark}


def _appendfsync(connection: DriverConnection) -> str | None:
    """None: not known; hosted servers refuse CONFIG."""
    answer = _ask(connection, "CONFIG", "GET", "appendfsync")
    return answer[1].decode("ascii", "replace") if answer else None


def _ask(connection: DriverConnection, *words: str) -> Any:
    """The answer, or None if the user may not ask."""
    connection.send_command(*words)  # type: ignore[no-untyped-call]
    try:
        return connection.read_response()
    except ResponseError:
        return None
