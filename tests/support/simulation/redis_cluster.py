"""The nodes of a Redis Cluster, over the model of one server: who serves which slot, as each of them sees it.

As Redis' ``getNodeByQuery`` has it: a node looks at the keys of a command, and at those of each command of a script.
Between nodes there is no bus: whoever makes a world tells each node what it knows, and when.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from functools import lru_cache

from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from .redis_server import Connection, Failure, Key, RedisServer, Reply, Status

SLOTS = REDIS_CLUSTER_HASH_SLOTS
_NOT_HERE = "ERR Script attempted to access a non local key in a cluster node"
#: What a client that has not signed in may send in one command: more is no command at all.
_WORDS_WITHOUT_PASSWORD = 10


class ClusterServer(RedisServer):
    """One node. ``owners``: who serves each slot, in its own view."""

    def __init__(self, clock: Callable[[], float], *, name: str = "redis", port: int = 6379) -> None:
        super().__init__(clock, name=name, port=port)
        self.id = f"{name:0>40}"
        self.owners: list[ClusterServer | None] = [None] * SLOTS
        self.migrating: dict[int, ClusterServer] = {}  #: its own slots that are on their way, and where to
        self.importing: set[int] = set()  #: those that are on their way to it
        self.refuses = False  #: it wants a password that nobody has
        self._depth = 0  #: 1: inside of a script
        self._asking = False

    # What arrives ----------------------------------------------------------------------------------------------------

    def execute(self, connection: Connection, words: list[bytes]) -> Reply:
        if self.refuses:
            if len(words) > _WORDS_WITHOUT_PASSWORD:
                return Failure("ERR Protocol error: unauthenticated multibulk length")
            return Failure("NOAUTH Authentication required.")
        self._asking, connection.asking = connection.asking, words[0].upper() == b"ASKING"
        return Status("OK") if connection.asking else super().execute(connection, words)

    def run(self, name: bytes, *words: bytes) -> Reply:
        if name.upper() == b"CLUSTER":
            return self._cluster(*words)
        refusal = self._elsewhere(_keys(name.upper(), words))
        if refusal is not None:
            raise Failure(_NOT_HERE if self._depth else refusal)
        self._depth += 1
        try:
            return super().run(name, *words)
        finally:
            self._depth -= 1

    def _elsewhere(self, keys: tuple[bytes, ...]) -> str | None:
        """What the client is told, unless these keys are for this node."""
        if not keys:
            return None
        slot = _slot_of(keys[0])
        if len(keys) > 1 and len(set(map(_slot_of, keys))) > 1:
            return "CROSSSLOT Keys in request don't hash to the same slot"
        owner = self.owners[slot]
        if owner is self and slot not in self.migrating:
            return None
        if owner is None:
            return "CLUSTERDOWN Hash slot not served"
        missing = [key for key in keys if self._find(key) is None]
        target = self.migrating.get(slot) if owner is self else None
        if target is not None and missing:
            return _TRY_AGAIN if len(missing) < len(keys) else f"ASK {slot} {target.name}:{target.port}"
        if owner is not self and slot in self.importing and self._asking:
            return _TRY_AGAIN if missing and len(set(keys)) > 1 else None
        return None if owner is self else f"MOVED {slot} {owner.name}:{owner.port}"

    def _cluster(self, what: bytes, *_: bytes) -> Reply:
        if what.upper() == b"MYID":
            return self.id.encode()
        if what.upper() == b"SLOTS":
            return self._slots()
        raise Failure("ERR unknown subcommand")

    def _slots(self) -> Reply:
        ranges: list[Reply] = []
        first = 0
        for slot in range(1, SLOTS + 1):
            if slot == SLOTS or self.owners[slot] is not self.owners[first]:
                owner = self.owners[first]
                if owner is not None:
                    nodes = [owner, *(each for each in owner.replicas if isinstance(each, ClusterServer))]
                    told = [[node.name.encode(), node.port, node.id.encode(), []] for node in nodes]
                    ranges.append([first, slot - 1, *told])
                first = slot
        return ranges

    # A slot that moves -----------------------------------------------------------------------------------------------

    def begin_move(self, slot: int, target: ClusterServer) -> None:
        target.importing.add(slot)
        self.migrating[slot] = target

    def keys_in(self, slot: int) -> list[bytes]:
        self.now_us = round(self._clock() * 1_000_000)
        return [name for name in sorted(self.data.keys) if key_slot(name) == slot and self._find(name)]

    def migrate(self, name: bytes, target: ClusterServer) -> None:
        """MIGRATE: the key goes to the target, with what it has left by the clock of this node."""
        for node in (self, target):
            node.now_us = round(node._clock() * 1_000_000)
        key = self._find(name)
        if key is not None:
            ends = None if key.ends_ms is None else target.now_ms + max(1, key.ends_ms - self.now_ms)
            target.data.keys[name] = Key(copy(key.value), ends)
            target._wrote()
            self._del(name)

    def learn(self, slot: int, owner: ClusterServer) -> None:
        """SETSLOT NODE, or by the bus."""
        self.owners[slot] = owner
        self.migrating.pop(slot, None)
        self.importing.discard(slot)


_slot_of = lru_cache(maxsize=4 * SLOTS)(key_slot)
_TRY_AGAIN = "TRYAGAIN Multiple keys request during rehashing of slot"


def _keys(name: bytes, words: tuple[bytes, ...]) -> tuple[bytes, ...]:
    """The keys of a command."""
    if name in (b"EVAL", b"EVALSHA"):
        return words[2 : 2 + int(words[1])]
    if name in (b"DEL", b"EXISTS"):
        return words
    return words[:1] if name not in _WITHOUT_KEYS else ()


_WITHOUT_KEYS = frozenset((b"PUBLISH", b"PUBSUB", b"TIME", b"INFO", b"FLUSHALL", b"CLUSTER"))
