"""What is in ZooKeeper: the names of our nodes, and what they say.

    /distlock                          the root of all locks, below the chroot
    /distlock/disLock:stock:42         one lock: a container, which the servers remove when it has been empty for a time
    /distlock/…/<digest>_0000000007    one in the queue for it: the lowest number has the lock, the others wait

A child's number is what ZooKeeper gave it when it was made, and it keeps the number when it changes hands. The digest
is that of the token: a reader of ZooKeeper cannot pass for the owner.
"""

from __future__ import annotations

import hashlib
import json
import re
from contextlib import suppress
from typing import NamedTuple
from urllib.parse import quote, unquote

from ...core.errors import ConfigurationError
from ...core.formats import refusal

ROOT = "/distlock"

#: What a child is. The first in the queue is ``claimed`` (it was alone when it came), ``held`` (it waited) or
#: ``cooldown``, and its lease counts from its last change; or it is still ``waiting``, and does not know
#: of its luck, until a waiter behind it says that its lease has begun: ``offered``.
CLAIMED, HELD, COOLDOWN, WAITING, OFFERED = "claimed", "held", "cooldown", "waiting", "offered"

_CHILD = re.compile(r"([0-9a-f]{32})_(-?\d{9,10})")
#: Numbers are of 32 bits and begin again below zero.
_TURN = 2**32


def path_of(name: str) -> str:
    """The node of a lock. ZooKeeper knows neither '/' nor control characters nor emoji in a name."""
    component = quote(name, safe=" !$&'()*+,:;=@|~<>[]^`\"", errors="surrogatepass")
    if component in (".", ".."):
        component = component.replace(".", "%2E")
    return f"{ROOT}/{component}"


def name_of(component: str) -> str:
    try:
        return unquote(component, errors="surrogatepass")
    except ValueError as error:  # a stranger's %ff
        raise ConfigurationError(f"The node {ROOT}/{component} in ZooKeeper is no lock of distlock_web.") from error


def digest_of(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()[:32]


class Child(NamedTuple):
    """One in the queue for a lock."""

    node: str  #: the last part of its path
    digest: str
    number: int


def in_order(nodes: list[str]) -> list[Child]:
    """The queue, its head first. What is not ours is left alone."""
    found = [Child(node, match[1], int(match[2])) for node in nodes if (match := _CHILD.fullmatch(node))]
    if not found:
        return found
    middle = found[0].number
    return sorted(found, key=lambda child: (child.number - middle + _TURN // 2) % _TURN)


class ZooRecord(NamedTuple):
    """What a child says."""

    state: str
    expire: float  #: seconds that the lease lasts after the node's last change
    holder: str
    taken: int = 0  #: milliseconds since the epoch when it became the first; 0: when it was made

    def dumps(self) -> bytes:
        return json.dumps(self).encode()


def record(data: bytes | None, path: str) -> ZooRecord:
    try:
        found = ZooRecord(*json.loads(data or b""))
        return found._replace(expire=float(found.expire), taken=int(found.taken))
    except (ValueError, TypeError) as error:
        raise _none_of_ours(data, path) from error


class Mark(NamedTuple):
    """What a lock's own node says."""

    base: int  #: what a child's number is added to, to make its fence
    revoked: str = ""  #: the digest of the token that it was last taken from by force

    def dumps(self) -> bytes:
        return json.dumps(self).encode()


def mark(data: bytes | None, path: str) -> Mark:
    try:
        base, revoked = json.loads(data or b"")
        return Mark(int(base), str(revoked))
    except (ValueError, TypeError) as error:
        raise _none_of_ours(data, path) from error


def _none_of_ours(data: bytes | None, path: str) -> ConfigurationError:
    """Of a newer version, which says its format (see ``core/formats.py``), or of a stranger. None: it has no data."""
    what = f"The node {path} in ZooKeeper"
    with suppress(ValueError, TypeError, LookupError):
        return refusal(what, int(json.loads(data or b"")["format"]))
    return ConfigurationError(f"{what} is no lock of distlock_web: {(data or b'')[:60]!r}.")
