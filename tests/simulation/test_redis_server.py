"""The simulated Redis answers as a real one does: the same random traces on both, compared byte for byte."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TypeAlias

import pytest

from distlock_web.backends.redis import scripts
from distlock_web.backends.redis.scripts.calls import (
    PackedKeys,
    Script,
    command,
    done_keys,
    extend_keys,
    lock_keys,
    pack_keys,
    queue_of,
)
from tests.support.clock_shift import compiled_shim
from tests.support.simulation.compared import (
    EPOCH,
    PAUSES,
    PROCESSES,
    STEPS,
    TRACES,
    StandingRedis,
    Two,
    some_ms,
    some_token,
    to_acquire,
    to_attach,
    to_cancel,
    to_detach,
    to_finish,
    to_forget,
    to_release,
    to_revoke,
)
from tests.support.simulation.redis_server import RedisServer

INDEX, DONE = "index", "done"
NAMES = ["lock:a", "ü b"]

Step: TypeAlias = "Callable[[Two, random.Random], bytes]"


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


def _of_a_lock(name: str) -> PackedKeys:
    return lock_keys(name, INDEX)


def _with_what_is_done(name: str) -> PackedKeys:
    return done_keys(name, INDEX, DONE)


def _script(
    script: Script,
    arguments: Callable[[Two, random.Random, str], tuple[str | int, ...]],
    keys: Callable[[str], PackedKeys] = _of_a_lock,
) -> Step:
    def step(two: Two, chance: random.Random) -> bytes:
        name = chance.choice(NAMES)
        return script.call(keys(name), arguments(two, chance, name), by_source=True)

    return step


def _extend(two: Two, chance: random.Random) -> bytes:
    names = chance.sample(NAMES, chance.randint(1, 2))
    args = [value for name in names for value in (some_token(two, chance, name), some_ms(chance))]
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
    commands += [["HGETALL", name], ["HLEN", name], ["HRANDFIELD", name, "99", "WITHVALUES"], ["TYPE", name]]
    commands += [["PTTL", key] for key in (name, queue, line, INDEX, DONE)]
    commands += [["ZRANGE", key, "0", "-1", "WITHSCORES"] for key in (queue, line, INDEX, DONE)]
    commands += [["ZRANGEBYSCORE", INDEX, "(0", "+inf", "LIMIT", "1", "2"]]
    return b"".join(command(*words) for words in commands)


ACQUISITION = _script(scripts.ACQUIRE, to_acquire)
FINISH = _script(scripts.FINISH, to_finish, _with_what_is_done)
STEPS_OF_A_TRACE: list[tuple[int, Step]] = [
    (30, ACQUISITION),
    (16, _script(scripts.RELEASE, to_release)),
    (4, FINISH),
    (2, _script(scripts.REVOKE, to_forget)),
    (6, _script(scripts.CANCEL, to_cancel)),
    (4, _script(scripts.DETACH, to_detach)),
    (4, _script(scripts.ATTACH, to_attach)),
    (4, _script(scripts.REVOKE, to_revoke)),
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
    taken = told = finished = 0
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
            finished += make is FINISH and ours.startswith(b":0\r\n")
            ours, theirs = two.say(b"", listening=True)
            assert ours == theirs, f"trace {seed}, step {step}, what was heard: {request!r}"
            told += ours.count(b"message\r\n")
        ours, theirs = two.say(_look(two, chance))
        assert ours == theirs, f"trace {seed}, at its end"
    # The traces are about something.
    assert taken > TRACES // 2
    assert told > TRACES // 4
    assert finished > TRACES // 4


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
        ["ZMSCORE", "z", "c", "none", "a"], ["ZMSCORE", "none", "a"],
        ["ZRANK", "z", "a"], ["ZCOUNT", "z", "2", "+inf"], ["ZPOPMIN", "z"], ["ZPOPMIN", "none"],
        ["ZREM", "z", "a", "b", "c", "d"], ["EXISTS", "z"],
        ["HSET", "h", "f", "1"], ["HSET", "h", "f", "2"], ["HSET", "h", "g", "3"], ["HGET", "h", "f"],
        ["HGET", "h", "x"],
        ["HLEN", "h"], ["HLEN", "none"], ["HRANDFIELD", "h", "2", "WITHVALUES"],
        ["HRANDFIELD", "none", "2", "WITHVALUES"],
        ["HGETALL", "h"], ["HGETALL", "none"], ["TYPE", "h"], ["TYPE", "none"], ["GET", "h"], ["ZADD", "h", "1", "m"],
        ["MGET", "a", "h", "none"], ["SET", "h", "1", "NX", "PX", "100"], ["SET", "none", "1", "XX"],
        ["EXISTS", "none"], ["SET", "a", "4", "PX", "100", "XX"],
        ["HGET", "a", "f"], ["HDEL", "h", "f", "f", "x"], ["HDEL", "h", "g"], ["EXISTS", "h"],
        ["PUBSUB", "NUMSUB", "nobody"], ["PUBLISH", "nobody", "x"],
    ):  # fmt: skip
        ours, theirs = two.say(command(*words))
        assert ours == theirs, words


# Every combination of flags that a script uses ------------------------------------------------------------------------

FLAGS = {"NX", "XX", "GT", "LT", "CH", "INCR", "PX", "EX", "KEEPTTL", "GET", "WITHSCORES", "LIMIT", "REV", "BYSCORE"}
STORE = Path(scripts.__file__).parents[2]


def _calls(text: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The commands of a script, and the flags of each."""
    for found in re.finditer(r"\bp?call\(", text):
        depth, end = 1, found.end()
        while depth:
            depth += {"(": 1, ")": -1}.get(text[end], 0)
            end += 1
        name, *words = re.findall(r"'([^']*)'", text[found.end() : end]) or [""]
        flags = [word for word in words if word in FLAGS]
        for other in {"NX", "XX"} if {"NX", "XX"} <= {*flags} else {""}:  # one of them, as a condition says
            yield name, tuple(flag for flag in flags if flag != other)


USED = {
    call
    for path in sorted([*STORE.glob("redis/**/*.lua"), *STORE.glob("redlock/**/*.lua")])
    for call in _calls(re.sub("--.*", "", path.read_text()))
    if call[1] and hasattr(RedisServer, f"_{call[0].lower()}")  # else no simulated run comes there
}
BEFORE = [
    [],
    [["SET", "k", "old"]],
    [["SET", "k", "old", "PX", "5000"]],
    [["HSET", "k", "f", "1"]],
    [["ZADD", "k", "5", "a"]],
    [["ZADD", "k", "5", "a", "7", "b", "7", "c"], ["PEXPIRE", "k", "5000"]],
    [["ZADD", "k", "-3", "a", "0", "b", "2.5", "c", "9", "d"]],
]
#: What stands beside the flags: in front of them, but behind those of ``ZADD``.
ARGUMENTS: dict[str, list[list[str]]] = {
    "ZADD": [
        *([score, member] for score in ("4", "5", "6", "-inf", "+inf") for member in ("a", "new")),
        ["4", "a", "6", "b", "7", "c", "1", "new"],
        ["5", "a", "9", "a"],
        ["x", "a"],
        ["4"],
        [],
    ],
    "SET": [["new"], [""]],
    "ZRANGE": [["0", "-1"], ["0", "0"], ["-2", "-1"], ["1", "9"], ["3", "1"]],
    "ZRANGEBYSCORE": [["-inf", "+inf"], ["0", "+inf"], ["(0", "7"], ["5", "(7"], ["9", "1"]],
}
WITH_VALUES = {
    "PX": [["PX", "100"], ["PX", "1"], ["PX", "0"], ["PX", "x"]],
    "LIMIT": [["LIMIT", "0", "2"], ["LIMIT", "1", "-1"]],
}


def _commands(name: str, flags: tuple[str, ...]) -> Iterator[list[str]]:
    for arguments in ARGUMENTS[name]:
        for words in itertools.product(*(WITH_VALUES.get(flag, [[flag]]) for flag in flags)):
            given = list(itertools.chain(*words))
            yield [name, "k", *given, *arguments] if name == "ZADD" else [name, "k", *arguments, *given]


def test_the_scripts_have_flags() -> None:
    assert {name for name, _ in USED} >= {"SET", "ZADD"}


@pytest.mark.parametrize(
    ("name", "flags"), sorted(USED), ids=lambda value: value if isinstance(value, str) else "-".join(value)
)
def test_flags_do_what_they_do_on_a_real_server(two: Two, name: str, flags: tuple[str, ...]) -> None:
    for before, words in itertools.product(BEFORE, _commands(name, flags)):
        for setting in [["FLUSHALL"], *before]:
            two.say(command(*setting))
        look = [["TYPE", "k"], ["PTTL", "k"], ["GET", "k"], ["ZRANGE", "k", "0", "-1", "WITHSCORES"]]
        ours, theirs = two.say(b"".join(command(*each) for each in [words, *look]))
        assert ours == theirs, (before, words)
