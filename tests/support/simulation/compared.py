"""A model and the real server that it stands for: random traces go to both, and the answers are compared.

The real server's clock stands where the simulated one's does, so that fences, leases and times to wait agree exactly.
"""

from __future__ import annotations

import os
import random
import re
import socket
from typing import Protocol, Self

from distlock_web.backends.redis.scripts.calls import command
from tests.support.clock_shift import ShiftedRedis

from .redis_server import Hash, RedisServer

TRACES = int(os.environ.get("DISTLOCK_TRACES", "1000"))
STEPS = 30
PAUSES = [0.0, 0.000001, 0.0005, 0.02, 0.3, 2.0, 30.0]
EPOCH = 1_800_000_000.0

PROCESSES = ["p" * 16, "q" * 16, "r" * 16]
SHARES = ["/2", "/3", "/1000000"]
TOKENS = [process + request * 24 for process in PROCESSES for request in "xy"]
TOKENS += [
    process + request * 24 + share for process in PROCESSES for request, share in zip("uvw", SHARES, strict=True)
]
TRANSIT = "t" * 40


class Compared(Protocol):
    """What a trace is about: a model, at a time."""

    @property
    def time(self) -> float: ...

    @property
    def model(self) -> RedisServer: ...


class StandingRedis(ShiftedRedis):
    stands = True


class Two:
    """Both servers, with a connection for commands and one that listens."""

    def __init__(self, real: StandingRedis, model: RedisServer | None = None) -> None:
        self.time = EPOCH
        self.real = real
        self.model = model or RedisServer(lambda: self.time)
        self._heard = b""
        self.model_connections = [self.model.connect(), self.model.connect()]
        self.model_connections[1].push = self._hear
        self.sockets = [socket.create_connection(("127.0.0.1", real.port), timeout=10) for _ in range(2)]
        self.fence = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for each in self.sockets:
            each.close()

    def set_time(self, time: float) -> None:
        self.time = time
        self.real.shift(time)

    def _hear(self, data: bytes) -> None:
        self._heard += data

    def say(self, data: bytes, listening: bool = False) -> tuple[bytes, bytes]:
        """What each answers to this, as far as it can be compared."""
        model, real = self.say_as_it_is(data, listening)
        return comparable(model), comparable(real)

    def say_as_it_is(self, data: bytes, listening: bool = False) -> tuple[bytes, bytes]:
        """What each answers to this; of the listening connection with all that came before."""
        model, self._heard = self._heard if listening else b"", b"" if listening else self._heard
        model += self.model_connections[listening].feed(data + command("PING", "end"))
        self.sockets[listening].sendall(data + command("PING", "end"))
        real = b""
        while not real.endswith(b"$3\r\nend\r\n"):
            part = self.sockets[listening].recv(65536)
            assert part, "the real server closed the connection"
            real += part
        return model, real


def comparable(answer: bytes) -> bytes:
    """Of errors the kind: each version words them anew, and says the place in a script in another way.

    Of several former owners those in the order of the alphabet: theirs is that of a table of Lua.
    """
    answer = re.sub(rb"[^ \r]+,[^ \r]+", lambda tokens: b",".join(sorted(tokens[0].split(b","))), answer)
    return re.sub(rb"-[A-Z]{3,}[^\r]*", lambda error: b"-" + _KIND.findall(error[0] + b"ERR")[0], answer)


_KIND = re.compile(rb"WRONGTYPE|NOSCRIPT|ERR$")


# The arguments of scripts --------------------------------------------------------------------------------------------


def some_ms(chance: random.Random) -> int:
    return chance.choice([1, 100, 1000, 5000, 5000, 70_000])


def some_owner(two: Compared, chance: random.Random, name: str) -> tuple[str, int]:
    """Token and fence of one that has the lock, or had it last; empty where there is none."""
    key = two.model.data.keys.get(name.encode())
    if key is not None and isinstance(key.value, Hash) and key.value:
        token, share = chance.choice(list(key.value.items()))
        return token.decode(), int(share.split()[2])
    words = key.value.decode().split() if key is not None and isinstance(key.value, bytes) else []
    return (words[0], int(words[2])) if len(words) > 2 else ("", 0)


def some_token(two: Compared, chance: random.Random, name: str) -> str:
    """Mostly the owner's, where there is one."""
    token, _ = some_owner(two, chance, name)
    return token if token and chance.random() < 0.7 else chance.choice(TOKENS)


def to_acquire(two: Compared, chance: random.Random, name: str) -> tuple[str | int, ...]:
    now = round(two.time * 1_000_000)
    token = chance.choice(TOKENS)
    asked, place = chance.choice([(0, ""), (0, ""), (0, ""), (1, ""), (1, str(now - 1000))])
    expire = some_ms(chance) + TOKENS.index(token)  # no two end together: who is named first then, Lua's table decides
    return token, expire, chance.choice([0, 1, 1, 1]), f"holder {token[16]}", asked, place


def to_release(two: Compared, chance: random.Random, name: str) -> tuple[str | int, ...]:
    return some_token(two, chance, name), chance.choice([0, 0, 0, 300]), chance.choice([0, 5000])


def to_finish(two: Compared, chance: random.Random, name: str) -> tuple[str | int, ...]:
    """A record is never of a share."""
    token = some_token(two, chance, name)
    alone = token if "/" not in token else chance.choice([each for each in TOKENS if "/" not in each])
    return alone, some_ms(chance), '{"result": 1}'


def to_cancel(two: Compared, chance: random.Random, name: str) -> tuple[str | int, ...]:
    token, (_, fence) = some_token(two, chance, name), some_owner(two, chance, name)
    granted = fence if chance.random() < 0.3 else 0
    return token, some_ms(chance), f"holder {token[16]}", chance.choice([0, 5000]), granted


def to_detach(two: Compared, chance: random.Random, name: str) -> tuple[str | int, ...]:
    return some_token(two, chance, name), TRANSIT, some_ms(chance)


def to_attach(two: Compared, chance: random.Random, name: str) -> tuple[str | int, ...]:
    return TRANSIT, chance.choice(TOKENS), some_ms(chance), "attached"


def to_revoke(two: Compared, chance: random.Random, name: str) -> tuple[str | int, ...]:
    _, fence = some_owner(two, chance, name)
    return (fence if fence and chance.random() < 0.8 else 1,)


def to_forget(two: Compared, chance: random.Random, name: str) -> tuple[str | int, ...]:
    return (*to_revoke(two, chance, name), 1)
