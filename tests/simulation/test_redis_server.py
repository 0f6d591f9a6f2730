"""The simulated Redis answers as a real one does: the same random traces on both, compared byte for byte.

The real server's clock stands where the simulated one's does, so that fences, leases and times to wait agree exactly.
"""

from __future__ import annotations

import os
import random
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Self, TypeAlias

import pytest

from distlock_web.backends.redis import scripts
from distlock_web.backends.redis.scripts import Script, command, extend_keys, lock_keys, pack_keys, queue_of
from tests.support.clock_shift import ShiftedRedis, compiled_shim
from tests.support.simulation.redis_server import Hash, RedisServer

TRACES = int(os.environ.get("DISTLOCK_TRACES", "1000"))
STEPS = 30
PAUSES = [0.0, 0.000001, 0.0005, 0.02, 0.3, 2.0, 30.0]
EPOCH = 1_800_000_000.0

INDEX = "index"
NAMES = ["lock:a", "ü b"]
PROCESSES = ["p" * 16, "q" * 16, "r" * 16]
SHARES = ["/2", "/3", "/1000000"]
TOKENS = [process + request * 24 for process in PROCESSES for request in "xy"]
TOKENS += [
    process + request * 24 + share for process in PROCESSES for request, share in zip("uvw", SHARES, strict=True)
]
TRANSIT = "t" * 40

Step: TypeAlias = "Callable[[Two, random.Random], bytes]"


class StandingRedis(ShiftedRedis):
    stands = True


class Two:
    """Both servers, with a connection for commands and one that listens."""

    def __init__(self, real: StandingRedis) -> None:
        self.time = EPOCH
        self.real = real
        self.model = RedisServer(lambda: self.time)
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
        """What each answers to this; of the listening connection with all that came before."""
        model, self._heard = self._heard if listening else b"", b"" if listening else self._heard
        model += self.model_connections[listening].feed(data + command("PING", "end"))
        self.sockets[listening].sendall(data + command("PING", "end"))
        real = b""
        while not real.endswith(b"$3\r\nend\r\n"):
            part = self.sockets[listening].recv(65536)
            assert part, "the real server closed the connection"
            real += part
        return _comparable(model), _comparable(real)


def _comparable(answer: bytes) -> bytes:
    """Of errors the kind: each version words them anew, and says the place in a script in another way.

    Of several former owners those in the order of the alphabet: theirs is that of a table of Lua.
    """
    answer = re.sub(rb"[^ \r]+,[^ \r]+", lambda tokens: b",".join(sorted(tokens[0].split(b","))), answer)
    return re.sub(rb"-[A-Z]{3,}[^\r]*", lambda error: b"-" + _KIND.findall(error[0] + b"ERR")[0], answer)


_KIND = re.compile(rb"WRONGTYPE|NOSCRIPT|ERR$")


@pytest.fixture(scope="module")
def two() -> Iterator[Two]:
    with ExitStack() as stack:
        server = StandingRedis(compiled_shim(stack))
        server.shift(EPOCH)
        stack.enter_context(server)
        both = stack.enter_context(Two(server))
        # A small hash keeps its fields in order. (On the real one alone, and its answer is not compared.)
        both.sockets[0].sendall(command("CONFIG", "SET", "hash-max-ziplist-value", "1024"))
        assert both.sockets[0].recv(100) == b"+OK\r\n"
        yield both


# What a trace is made of ---------------------------------------------------------------------------------------------


def _ms(chance: random.Random) -> int:
    return chance.choice([1, 100, 1000, 5000, 5000, 70_000])


def _owner(two: Two, chance: random.Random, name: str) -> tuple[str, int]:
    """Token and fence of one that has the lock, or had it last; empty where there is none."""
    key = two.model.data.keys.get(name.encode())
    if key is not None and isinstance(key.value, Hash) and key.value:
        token, share = chance.choice(list(key.value.items()))
        return token.decode(), int(share.split()[2])
    words = key.value.decode().split() if key is not None and isinstance(key.value, bytes) else []
    return (words[0], int(words[2])) if len(words) > 2 else ("", 0)


def _token(two: Two, chance: random.Random, name: str) -> str:
    """Mostly the owner's, where there is one."""
    token, _ = _owner(two, chance, name)
    return token if token and chance.random() < 0.7 else chance.choice(TOKENS)


def _script(script: Script, arguments: Callable[[Two, random.Random, str], tuple[str | int, ...]]) -> Step:
    def step(two: Two, chance: random.Random) -> bytes:
        name = chance.choice(NAMES)
        return script.call(lock_keys(name, INDEX), arguments(two, chance, name), by_source=True)

    return step


def _acquire(two: Two, chance: random.Random, name: str) -> tuple[str | int, ...]:
    now = round(two.time * 1_000_000)
    token = chance.choice(TOKENS)
    place = chance.choice(["", "", "", "?", str(now - 1000)])
    expire = _ms(chance) + TOKENS.index(token)  # no two end together: who is named first then, Lua's table decides
    return token, expire, chance.choice([0, 1, 1, 1]), f"holder {token[16]}", place


def _release(two: Two, chance: random.Random, name: str) -> tuple[str | int, ...]:
    return _token(two, chance, name), chance.choice([0, 0, 0, 300]), chance.choice([0, 5000])


def _cancel(two: Two, chance: random.Random, name: str) -> tuple[str | int, ...]:
    token, (_, fence) = _token(two, chance, name), _owner(two, chance, name)
    granted = fence if chance.random() < 0.3 else 0
    return token, _ms(chance), f"holder {token[16]}", chance.choice([0, 5000]), granted


def _detach(two: Two, chance: random.Random, name: str) -> tuple[str | int, ...]:
    return _token(two, chance, name), TRANSIT, _ms(chance)


def _attach(two: Two, chance: random.Random, name: str) -> tuple[str | int, ...]:
    return TRANSIT, chance.choice(TOKENS), _ms(chance), "attached"


def _revoke(two: Two, chance: random.Random, name: str) -> tuple[str | int, ...]:
    _, fence = _owner(two, chance, name)
    return (fence if fence and chance.random() < 0.8 else 1,)


def _extend(two: Two, chance: random.Random) -> bytes:
    names = chance.sample(NAMES, chance.randint(1, 2))
    args = [value for name in names for value in (_token(two, chance, name), _ms(chance))]
    return scripts.EXTEND.call(extend_keys(names, INDEX), tuple(args), by_source=True)


def _inspect(two: Two, chance: random.Random) -> bytes:
    keys = [key for name in NAMES for key in (name, queue_of(name))]
    return scripts.INSPECT.call(pack_keys(*keys), (), by_source=True)


def _names(two: Two, chance: random.Random) -> bytes:
    return scripts.NAMES.call(pack_keys(INDEX), ("", 0, chance.randint(1, 5)), by_source=True)


def _waiters(two: Two, chance: random.Random) -> bytes:
    name = chance.choice(NAMES)
    return scripts.WAITERS.call(pack_keys(name, queue_of(name)), (chance.randint(1, 5),), by_source=True)


def _foreign(two: Two, chance: random.Random) -> bytes:
    """Somebody else's key where a lock should be, for a moment."""
    name = chance.choice(NAMES)
    return chance.choice([command("SET", name, "theirs", "PX", "50"), command("ZADD", INDEX, "12.5", "theirs")])


def _look(two: Two, chance: random.Random) -> bytes:
    name = chance.choice(NAMES)
    queue = queue_of(name)
    line = f"{queue}:{chance.choice(PROCESSES)}"
    commands = [["GET", name], ["TIME"], ["ZCARD", INDEX], ["ZRANGE", INDEX, "-2", "-1"]]
    commands += [["HGETALL", name], ["TYPE", name]]
    commands += [["PTTL", key] for key in (name, queue, line, INDEX)]
    commands += [["ZRANGE", key, "0", "-1", "WITHSCORES"] for key in (queue, line, INDEX)]
    commands += [["ZRANGEBYSCORE", INDEX, "(0", "+inf", "LIMIT", "1", "2"]]
    return b"".join(command(*words) for words in commands)


ACQUISITION = _script(scripts.ACQUIRE, _acquire)
STEPS_OF_A_TRACE: list[tuple[int, Step]] = [
    (30, ACQUISITION),
    (16, _script(scripts.RELEASE, _release)),
    (6, _script(scripts.CANCEL, _cancel)),
    (4, _script(scripts.DETACH, _detach)),
    (4, _script(scripts.ATTACH, _attach)),
    (4, _script(scripts.REVOKE, _revoke)),
    (8, _extend),
    (4, _inspect),
    (3, _names),
    (3, _waiters),
    (1, _foreign),
    (8, _look),
]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_thousand_random_traces_have_the_same_answers(two: Two) -> None:
    weights = [weight for weight, _ in STEPS_OF_A_TRACE]
    taken = told = 0
    for seed in range(TRACES):
        chance = random.Random(seed)
        two.say(command("FLUSHALL"))
        for process in PROCESSES:
            two.say(
                command(chance.choice(["SUBSCRIBE", "SUBSCRIBE", "UNSUBSCRIBE"]), f"distlock:wake:{process}"),
                listening=True,
            )
        for step in range(STEPS):
            two.set_time(two.time + chance.choices(PAUSES, [4, 2, 4, 4, 2, 1, 0.1])[0])
            ((_, make),) = chance.choices(STEPS_OF_A_TRACE, weights)
            request = make(two, chance)
            ours, theirs = two.say(request)
            assert ours == theirs, f"trace {seed}, step {step}: {request!r}"
            taken += make is ACQUISITION and ours.startswith(b":")
            ours, theirs = two.say(b"", listening=True)
            assert ours == theirs, f"trace {seed}, step {step}, what was heard: {request!r}"
            told += ours.count(b"message\r\n")
        ours, theirs = two.say(_look(two, chance))
        assert ours == theirs, f"trace {seed}, at its end"
    # The traces are about something.
    assert taken > TRACES // 2
    assert told > TRACES // 4


def test_commands_and_errors_beside_the_scripts(two: Two) -> None:
    for words in (
        ["PING"], ["SET", "a", "1", "NX", "PX", "100"], ["SET", "a", "2", "NX"], ["SET", "a", "3", "KEEPTTL"],
        ["PTTL", "a"], ["SET", "a", "1", "PX", "0"], ["ZADD", "a", "1", "m"],
        ["EVAL", "return redis.call('ZADD', 'a', 1, 'm')", "0"],
        ["EVAL", "return redis.pcall('ZADD', 'a', 1, 'm')['err']", "0"], ["EVAL", "error('-WRONGTYPE a key')", "0"],
        ["EVAL", "return {1.9, 'x', false, {2, nil, 3}, true}", "0"], ["EVALSHA", "0" * 40, "0"],
        ["EVAL", "return {redis.call('SET', KEYS[1], 1.5), redis.call('GET', KEYS[1]), ARGV[1]}", "1", "k", "v"],
        ["PEXPIRE", "a", "-1"], ["EXISTS", "a", "k"], ["DEL", "k", "k"], ["GET", "a"],
        ["ZADD", "z", "LT", "CH", "5", "a", "-inf", "b", "1.5", "c"], ["ZADD", "z", "LT", "CH", "6", "a", "3", "d"],
        ["ZADD", "z", "GT", "7", "a", "1", "c"], ["ZSCORE", "z", "c"], ["ZRANGE", "z", "0", "-1", "WITHSCORES"],
        ["ZRANK", "z", "a"], ["ZCOUNT", "z", "2", "+inf"], ["ZPOPMIN", "z"], ["ZPOPMIN", "none"],
        ["ZREM", "z", "a", "b", "c", "d"], ["EXISTS", "z"],
        ["HSET", "h", "f", "1"], ["HSET", "h", "f", "2"], ["HSET", "h", "g", "3"], ["HGET", "h", "f"],
        ["HGET", "h", "x"],
        ["HGETALL", "h"], ["HGETALL", "none"], ["TYPE", "h"], ["TYPE", "none"], ["GET", "h"], ["ZADD", "h", "1", "m"],
        ["HGET", "a", "f"], ["HDEL", "h", "f", "f", "x"], ["HDEL", "h", "g"], ["EXISTS", "h"],
        ["PUBSUB", "NUMSUB", "nobody"], ["PUBLISH", "nobody", "x"],
    ):  # fmt: skip
        ours, theirs = two.say(command(*words))
        assert ours == theirs, words
