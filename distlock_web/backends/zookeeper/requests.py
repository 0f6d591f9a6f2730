"""What is asked of ZooKeeper: reads, and transactions that are carried out in whole or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .places import ZooLease
from .session import Client, Request

#: A version, to ZooKeeper: whatever it is.
ANY = -1


def get_request(path: str) -> Request:
    return lambda client: client.get_async(path)


def look_requests(path: str) -> tuple[Request, Request]:
    return lambda client: client.get_children_async(path), get_request(path)


def delete_as_seen(path: str, version: int = ANY) -> Request:
    return lambda client: client.delete_async(path, version)


def write(
    path: str, data: bytes, node: int = ANY, lock: int = ANY, *, persist: bool = False, mark: bytes | None = None
) -> Request:
    """Write a node, if it and the lock's own node have these versions still. :func:`written` reads the answers.

    ``persist``: it has to outlive the session, and is made anew; its versions begin again. So that of the lock's own
    node has to move on with it: what that says is its ``mark``.
    """
    lock_path = path.rpartition("/")[0]

    def transaction(client: Client) -> Any:
        change = client.transaction()
        if persist:
            change.delete(path, node)
            change.create(path)
        if mark is not None:
            change.set_data(lock_path, mark, lock)
        else:
            change.check(lock_path, lock)
        change.set_data(path, data, ANY if persist else node)
        return change.commit_async()

    return transaction


def written(answers: Sequence[Any], lease: ZooLease) -> ZooLease:
    """The lease that a :func:`write` has begun."""
    lock, stat = answers[-2:]
    return lease._replace(stat=stat, lock_version=getattr(lock, "version", lease.lock_version))


def take_away(path: str, lock_path: str, version: int, mark: bytes) -> Request:
    """Remove a node, and note that in the lock's own, if that has this version still."""

    def transaction(client: Client) -> Any:
        change = client.transaction()
        change.delete(path)
        change.set_data(lock_path, mark, version)
        return change.commit_async()

    return transaction
