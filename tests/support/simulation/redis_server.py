"""A Redis server in this process: the commands that our scripts and connections use, at a clock that the caller moves.

The Lua scripts are the true ones, run by a true Lua 5.1. ``test_redis_server.py`` compares every answer, byte for byte,
with those of a real redis-server whose clock stands where this one's does.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import hiredis
from lupa.lua51 import LuaRuntime

Reply: TypeAlias = Any  #: int, bytes, None, Status, Failure, float, or a list or mapping of them


class Status(str):
    """A simple string."""


class Failure(Exception):
    """An error answer. Raised by commands; an element of a script's answer."""


_WRONG_TYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"
_SYNTAX = "ERR syntax error"


class SortedSet(dict[bytes, float]):
    def in_order(self) -> list[tuple[bytes, float]]:
        return sorted(self.items(), key=lambda item: (item[1], item[0]))


class Hash(dict[bytes, bytes]):
    pass


@dataclass
class Key:
    value: bytes | SortedSet | Hash
    ends_ms: int | None = None


@dataclass
class Data:
    """What a server would write to its disk, or send to a replica."""

    keys: dict[bytes, Key] = field(default_factory=dict)
    offset: int = 0  #: counts the writes: how far a replica is


class RedisServer:
    """One server. ``clock`` gives its machine's time in seconds since the epoch.

    ``data`` may be exchanged: an empty one is a restart without a disk; another server's copy is a replica that has
    been promoted, without the writes that had not reached it.
    """

    def __init__(self, clock: Callable[[], float], *, name: str = "redis", port: int = 6379) -> None:
        self._clock = clock
        self.now_us = round(clock() * 1_000_000)  #: stands still while a command or a script runs, as in a real one
        self.name = name
        self.port = port
        self.data = Data()
        self.role = "master"
        self.replicas: list[RedisServer] = []  #: those that get what is published, and acknowledge writes
        self.connections: set[Connection] = set()
        self.run_id = ""
        self.restart()

    def restart(self) -> None:
        """Every connection ends, and what lives in the process alone; ``data`` stays, for the caller to decide."""
        for connection in list(self.connections):
            connection.close()
        self.started = self._clock()
        self.run_id = (
            f"{random.getrandbits(160):040x}" if not self.run_id else hashlib.sha1(self.run_id.encode()).hexdigest()
        )
        self.scripts: dict[bytes, Any] = {}

    def connect(self) -> Connection:
        connection = Connection(self)
        self.connections.add(connection)
        return connection

    def copy_to(self, replica: RedisServer) -> None:
        """A replica catches up: it has all that was written here until now."""
        if replica.data.offset != self.data.offset:
            keys = {name: Key(copy(key.value), key.ends_ms) for name, key in self.data.keys.items()}
            replica.data = Data(keys, self.data.offset)

    # Time and keys ---------------------------------------------------------------------------------------------------

    @property
    def now_ms(self) -> int:
        return self.now_us // 1000

    def _find(self, name: bytes) -> Key | None:
        key = self.data.keys.get(name)
        if key is not None and key.ends_ms is not None and self.now_ms > key.ends_ms:
            del self.data.keys[name]
            return None
        return key

    def _string(self, name: bytes) -> bytes | None:
        key = self._find(name)
        if key is not None and not isinstance(key.value, bytes):
            raise Failure(_WRONG_TYPE)
        return None if key is None else key.value  # type: ignore[return-value]

    def _sorted(self, name: bytes) -> SortedSet:
        key = self._find(name)
        if key is None:
            return SortedSet()
        if not isinstance(key.value, SortedSet):
            raise Failure(_WRONG_TYPE)
        return key.value

    def _wrote(self) -> None:
        self.data.offset += 1

    # What arrives ----------------------------------------------------------------------------------------------------

    def execute(self, connection: Connection, words: list[bytes]) -> Reply:
        """The answer to one command. An error is an answer, too."""
        self.now_us = round(self._clock() * 1_000_000)
        command = _CONNECTION.get(words[0].upper())
        try:
            if command is not None:
                return command(self, connection, *words[1:])
            return self.run(*words)
        except Failure as failure:
            return failure

    def run(self, name: bytes, *words: bytes) -> Reply:
        """A command on data, as a client or a script sends it."""
        command = _DATA.get(name) or _DATA.get(name.upper())
        if command is None:
            raise Failure(f"ERR unknown command '{name.decode('utf-8', 'replace')}'")
        if self.role != "master" and name.upper() in _WRITES:
            raise Failure("READONLY You can't write against a read only replica.")
        return command(self, *words)

    # Strings and keys ------------------------------------------------------------------------------------------------

    def _get(self, name: bytes) -> Reply:
        return self._string(name)

    def _mget(self, *names: bytes) -> Reply:
        keys = [self._find(name) for name in names]
        return [key.value if key is not None and isinstance(key.value, bytes) else None for key in keys]

    def _set(self, name: bytes, value: bytes, *options: bytes) -> Reply:
        ends, keep, only_if = None, False, None
        rest = iter(options)
        for option in rest:
            word = option.upper()
            if word in (b"NX", b"XX"):
                only_if = word == b"XX"
            elif word == b"KEEPTTL":
                keep = True
            elif word == b"PX":
                amount = _whole(next(rest))
                if amount <= 0:
                    raise Failure("ERR invalid expire time in 'set' command")
                ends = self.now_ms + amount
            else:
                raise Failure(_SYNTAX)
        there = self._find(name)
        if only_if is not None and only_if != (there is not None):
            return None
        if keep and there:
            ends = there.ends_ms
        self.data.keys[name] = Key(value, ends)
        self._wrote()
        return Status("OK")

    def _del(self, *names: bytes) -> Reply:
        found = [name for name in dict.fromkeys(names) if self._find(name)]
        for name in found:
            del self.data.keys[name]
            self._wrote()
        return len(found)

    def _exists(self, *names: bytes) -> Reply:
        return sum(self._find(name) is not None for name in names)

    def _type(self, name: bytes) -> Reply:
        key = self._find(name)
        kinds = {bytes: "string", SortedSet: "zset", Hash: "hash"}
        return Status("none" if key is None else kinds[type(key.value)])

    def _pttl(self, name: bytes) -> Reply:
        key = self._find(name)
        if key is None:
            return -2
        return -1 if key.ends_ms is None else max(0, key.ends_ms - self.now_ms)

    def _pexpire(self, name: bytes, ms: bytes) -> Reply:
        key, amount = self._find(name), _whole(ms)
        if key is None:
            return 0
        self._wrote()
        if amount <= 0:
            del self.data.keys[name]
        else:
            key.ends_ms = self.now_ms + amount
        return 1

    def _flush(self, *_: bytes) -> Reply:
        self.data.keys.clear()
        self._wrote()
        return Status("OK")

    def _time(self) -> Reply:
        seconds, us = divmod(self.now_us, 1_000_000)
        return [b"%d" % seconds, b"%d" % us]

    # Sorted sets -----------------------------------------------------------------------------------------------------

    def _zadd(self, name: bytes, *words: bytes) -> Reply:
        flags = set()
        rest = list(words)
        while rest and rest[0].upper() in (b"NX", b"LT", b"GT", b"CH"):
            flags.add(rest.pop(0).upper())
        if not rest or len(rest) % 2:
            raise Failure(_SYNTAX)
        pairs = [(_score(score), member) for score, member in zip(rest[::2], rest[1::2], strict=True)]
        found = self._sorted(name)
        added = changed = 0
        for score, member in pairs:
            old = found.get(member)
            if old is None:
                added += 1
            elif b"NX" in flags or (b"LT" in flags and score >= old) or (b"GT" in flags and score <= old):
                continue
            elif old != score:
                changed += 1
            found[member] = score
        if found and name not in self.data.keys:
            self.data.keys[name] = Key(found)
        if added or changed:
            self._wrote()
        return added + (changed if b"CH" in flags else 0)

    def _zrem(self, name: bytes, *members: bytes) -> Reply:
        return self._remove(name, [member for member in members if member in self._sorted(name)])

    def _zpopmin(self, name: bytes) -> Reply:
        first = self._sorted(name).in_order()[:1]
        self._remove(name, [member for member, _ in first])
        return _members(first, (b"WITHSCORES",))

    def _zremrangebyscore(self, name: bytes, low: bytes, high: bytes) -> Reply:
        return self._remove(name, [member for member, _ in self._between(name, low, high)])

    def _remove(self, name: bytes, members: Iterable[bytes]) -> int:
        found, members = self._sorted(name), set(members)
        for member in members:
            del found[member]
        if members:
            self._wrote()
            if not found:
                del self.data.keys[name]
        return len(members)

    def _between(self, name: bytes, low: bytes, high: bytes) -> list[tuple[bytes, float]]:
        least, above = _bound(low)
        most, below = _bound(high)
        return [
            (member, score)
            for member, score in self._sorted(name).in_order()
            if (score > least or (score == least and not above)) and (score < most or (score == most and not below))
        ]

    def _zrange(self, name: bytes, first: bytes, last: bytes, *options: bytes) -> Reply:
        items, start, end = self._sorted(name).in_order(), _whole(first), _whole(last)
        start = max(0, start + len(items)) if start < 0 else start
        end = end + len(items) if end < 0 else end
        return _members(items[start : end + 1] if end >= 0 else [], options)

    def _zrangebyscore(self, name: bytes, low: bytes, high: bytes, *options: bytes) -> Reply:
        items, rest = self._between(name, low, high), list(options)
        for place, word in enumerate(options):
            if word.upper() == b"LIMIT":
                skip, count = _whole(options[place + 1]), _whole(options[place + 2])
                items = items[skip:] if count < 0 else items[skip : skip + count]
                del rest[place : place + 3]
        return _members(items, tuple(rest))

    def _zscore(self, name: bytes, member: bytes) -> Reply:
        score = self._sorted(name).get(member)
        return None if score is None else Score(score)

    def _zmscore(self, name: bytes, *members: bytes) -> Reply:
        return [self._zscore(name, member) for member in members]

    def _zrank(self, name: bytes, member: bytes) -> Reply:
        found = [each for each, _ in self._sorted(name).in_order()]
        return found.index(member) if member in found else None

    def _zrandmember(self, name: bytes, count: bytes) -> Reply:
        """Those that stand in front: as random as any, and the same again."""
        return [member for member, _ in self._sorted(name).in_order()[: _whole(count)]]

    def _zcard(self, name: bytes) -> Reply:
        return len(self._sorted(name))

    def _zcount(self, name: bytes, low: bytes, high: bytes) -> Reply:
        return len(self._between(name, low, high))

    # Hashes ----------------------------------------------------------------------------------------------------------

    def _hash(self, name: bytes) -> Hash:
        key = self._find(name)
        if key is None:
            return Hash()
        if not isinstance(key.value, Hash):
            raise Failure(_WRONG_TYPE)
        return key.value

    def _hset(self, name: bytes, field: bytes, value: bytes) -> Reply:
        found = self._hash(name)
        added = field not in found
        found[field] = value
        if name not in self.data.keys:
            self.data.keys[name] = Key(found)
        self._wrote()
        return int(added)

    def _hget(self, name: bytes, field: bytes) -> Reply:
        return self._hash(name).get(field)

    def _hgetall(self, name: bytes) -> Reply:
        """In the order in which the fields came: a small hash of a real one has it, too."""
        return [each for pair in self._hash(name).items() for each in pair]

    def _hlen(self, name: bytes) -> Reply:
        return len(self._hash(name))

    def _hrandfield(self, name: bytes, count: bytes, _with_values: bytes) -> Reply:
        """Those that came first: as random as any, and the same again."""
        return [each for pair in [*self._hash(name).items()][: _whole(count)] for each in pair]

    def _hdel(self, name: bytes, *fields: bytes) -> Reply:
        found = self._hash(name)
        removed = [field for field in dict.fromkeys(fields) if found.pop(field, None) is not None]
        if removed:
            self._wrote()
            if not found:
                del self.data.keys[name]
        return len(removed)

    # Messages and scripts --------------------------------------------------------------------------------------------

    def _publish(self, channel: bytes, message: bytes) -> Reply:
        for replica in self.replicas:
            replica._publish(channel, message)
        heard = [each for each in self.connections if channel in each.channels]
        for each in sorted(heard, key=lambda connection: connection.number):
            each.send_message([b"message", channel, message])
        return len(heard)

    def _pubsub(self, what: bytes, *channels: bytes) -> Reply:
        if what.upper() != b"NUMSUB":
            raise Failure(_SYNTAX)
        counts: list[Reply] = []
        for channel in channels:
            counts += [channel, sum(channel in each.channels for each in self.connections)]
        return counts

    def _load(self, source: bytes) -> bytes:
        sha = hashlib.sha1(source).hexdigest().encode()
        self.scripts[sha] = _LUA.compiled(source)
        return sha

    def _eval(self, source: bytes, number: bytes, *rest: bytes) -> Reply:
        return self._evalsha(self._load(source), number, *rest)

    def _evalsha(self, sha: bytes, number: bytes, *rest: bytes) -> Reply:
        script = self.scripts.get(sha.lower())
        if script is None:
            raise Failure("NOSCRIPT No matching script. Please use EVAL.")
        keys = _whole(number)
        return _LUA.run(self, script, rest[:keys], rest[keys:])

    # Of the connection -----------------------------------------------------------------------------------------------

    def _info(self, *_: bytes) -> Reply:
        uptime = int(self._clock()) - int(self.started)
        lines = ["# Server", "redis_version:7.0.15", f"run_id:{self.run_id}", f"tcp_port:{self.port}"]
        lines += [f"uptime_in_seconds:{uptime}", "# Replication", f"role:{self.role}"]
        return "".join(f"{line}\r\n" for line in lines).encode()

    def _ping(self, connection: Connection, *text: bytes) -> Reply:
        if connection.channels and connection.protocol == 2:
            return [b"pong", text[0] if text else b""]
        return text[0] if text else Status("PONG")

    def _hello(self, connection: Connection, *words: bytes) -> Reply:
        if words:
            connection.protocol = _whole(words[0])
        return {
            b"server": b"redis",
            b"version": b"7.0.15",
            b"proto": connection.protocol,
            b"id": connection.number,
            b"mode": b"standalone",
            b"role": b"master" if self.role == "master" else b"replica",
            b"modules": [],
        }

    def _client(self, connection: Connection, what: bytes, *_: bytes) -> Reply:
        return connection.number if what.upper() == b"ID" else Status("OK")

    def _subscribe(self, connection: Connection, *channels: bytes) -> Reply:
        for channel in channels:
            connection.channels[channel] = None
            connection.send_message([b"subscribe", channel, len(connection.channels)])
        return _NOTHING

    def _unsubscribe(self, connection: Connection, *channels: bytes) -> Reply:
        for channel in channels or tuple(connection.channels):
            connection.channels.pop(channel, None)
            connection.send_message([b"unsubscribe", channel, len(connection.channels)])
        return _NOTHING


class Connection:
    """One client's. ``feed`` takes bytes and gives those to send back; ``push`` is called with what comes unasked."""

    _last = 0

    def __init__(self, server: RedisServer) -> None:
        Connection._last += 1
        self.number = Connection._last
        self.server = server
        self.protocol = 2
        self.asking = False  #: of a node of a cluster, until its next command
        self.channels: dict[bytes, None] = {}
        self.push: Callable[[bytes], None] = self._keep
        self.closed: Callable[[], None] = lambda: None  #: called when the server ends the connection
        self._unread = hiredis.Reader()  # a request is an array of strings, as some answers are
        self._feeding: list[bytes] | None = None

    def feed(self, data: bytes) -> bytes:
        """Execute all whole commands in what has arrived."""
        self._unread.feed(data)
        answers = self._feeding = []
        try:
            while (words := self._unread.gets()) is not False:
                reply = self.server.execute(self, words)
                if reply is not _NOTHING:
                    answers.append(_packed(reply, self.protocol))
        finally:
            self._feeding = None
        return b"".join(answers)

    def send_message(self, message: list[Reply]) -> None:
        packed = _packed(message, self.protocol)
        if self.protocol == 3:
            packed = b">" + packed[1:]
        if self._feeding is not None:
            self._feeding.append(packed)
        else:
            self.push(packed)

    def close(self) -> None:
        if self in self.server.connections:
            self.server.connections.discard(self)
            self.channels.clear()
            self.closed()

    def _keep(self, data: bytes) -> None:
        """Nobody has said where to."""


# Lua -----------------------------------------------------------------------------------------------------------------


class _Scripts:
    """One Lua for all servers of the process: a script runs to its end before another begins."""

    def __init__(self) -> None:
        self._lua: Any = LuaRuntime(encoding=None, unpack_returned_tuples=True)
        self._server: RedisServer | None = None
        self._compiled: dict[bytes, Any] = {}
        self._load = self._lua.eval(b"loadstring")
        self._call = self._lua.execute(_PRELUDE, self._command)

    def compiled(self, source: bytes) -> Any:
        script = self._compiled.get(source)
        if script is None:
            text = b"--" + source if source.startswith(b"#!") else source
            script = self._compiled[source] = self._load(text, b"@user_script")
            if script is None:
                raise Failure("ERR Error compiling script (new function)")
        return script

    def run(self, server: RedisServer, script: Any, keys: Iterable[bytes], args: Iterable[bytes]) -> Reply:
        outer, self._server = self._server, server
        try:
            done, answer = self._call(script, self._lua.table_from(list(keys)), self._lua.table_from(list(args)))
        finally:
            self._server = outer
        if done:
            return self._reply(answer)
        if isinstance(answer, bytes):
            raise Failure("ERR " + answer.decode("utf-8", "replace"))
        raise Failure(answer[b"err"].decode("utf-8", "replace"))

    def _command(self, *words: Any) -> Any:
        """What a script calls. An error is answered as Redis' Lua has it: a table with a field."""
        assert self._server is not None
        try:
            reply = self._server.run(*[word if type(word) is bytes else _word(word) for word in words])
            return reply if type(reply) in _PLAIN else self._value(reply)
        except Failure as failure:
            return self._lua.table_from({b"err": str(failure).encode()})

    def _value(self, reply: Reply) -> Any:
        if reply is None:
            return False
        if isinstance(reply, Status):
            return self._lua.table_from({b"ok": reply.encode()})
        if isinstance(reply, Score):
            return _number(reply)
        if isinstance(reply, list):
            return self._lua.table_from([self._value(each) for each in reply])
        return reply

    def _reply(self, value: Any) -> Reply:
        if type(value) in _PLAIN:
            return value
        if value is None or value is False:
            return None
        if value is True:
            return 1
        if isinstance(value, int | float):
            return int(value)
        if isinstance(value, bytes):
            return value
        if (error := value[b"err"]) is not None:
            return Failure(error.decode("utf-8", "replace"))
        if (status := value[b"ok"]) is not None:
            return Status(status.decode())
        elements: list[Reply] = []
        while (element := value[len(elements) + 1]) is not None:
            elements.append(self._reply(element))
        return elements


_PRELUDE = b"""
local raw = ...
redis = {}
function redis.pcall(...) return raw(...) end
function redis.call(...)
  local answer = raw(...)
  if type(answer) == 'table' and answer.err then error(answer) end
  return answer
end
redis.error_reply = function(text) return {err = text} end
redis.status_reply = function(text) return {ok = text} end
return function(script, keys, args)
  KEYS, ARGV = keys, args
  return pcall(script)
end
"""


# Numbers and the wire ------------------------------------------------------------------------------------------------

_NOTHING = object()  #: a command that answers by messages
_PLAIN = frozenset({int, bytes})  #: what Lua and the server write alike


class Score(float):
    """A score: text in RESP2, a double in RESP3."""


def _whole(text: bytes) -> int:
    try:
        return int(text)
    except ValueError:
        raise Failure("ERR value is not an integer or out of range") from None


def _score(text: bytes) -> float:
    try:
        return float(text)
    except ValueError:
        raise Failure("ERR value is not a valid float") from None


def _bound(text: bytes) -> tuple[float, bool]:
    return (_score(text[1:]), True) if text.startswith(b"(") else (_score(text), False)


def _number(number: float) -> bytes:
    if number in (float("inf"), float("-inf")):
        return b"inf" if number > 0 else b"-inf"
    return b"%d" % number if number == int(number) and abs(number) < 1e17 else b"%.17g" % number


def _word(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return b"%.17g" % value
    raise Failure("ERR Lua redis lib command arguments must be strings or integers")


def _members(items: list[tuple[bytes, float]], options: tuple[bytes, ...]) -> list[Reply]:
    if not options:
        return [member for member, _ in items]
    if [option.upper() for option in options] != [b"WITHSCORES"]:
        raise Failure(_SYNTAX)
    return [each for member, score in items for each in (member, _number(score))]


def _packed(reply: Reply, protocol: int) -> bytes:
    if type(reply) is bytes:
        return b"$%d\r\n%b\r\n" % (len(reply), reply)
    if type(reply) is int:
        return b":%d\r\n" % reply
    if reply is None:
        return b"_\r\n" if protocol == 3 else b"$-1\r\n"
    if isinstance(reply, Status):
        return b"+%b\r\n" % reply.encode()
    if isinstance(reply, Failure):
        return b"-%b\r\n" % str(reply).encode()
    if isinstance(reply, Score):
        text = _number(reply)
        return b",%b\r\n" % text if protocol == 3 else b"$%d\r\n%b\r\n" % (len(text), text)
    if isinstance(reply, dict):
        pairs = [each for pair in reply.items() for each in pair]
        head = b"%%%d\r\n" % len(reply) if protocol == 3 else b"*%d\r\n" % len(pairs)
        return head + b"".join(_packed(each, protocol) for each in pairs)
    return b"*%d\r\n" % len(reply) + b"".join(_packed(each, protocol) for each in reply)


_Command: TypeAlias = Callable[..., Reply]
_of = RedisServer
_WRITES = frozenset(
    (b"SET", b"DEL", b"PEXPIRE", b"ZADD", b"ZREM", b"ZPOPMIN", b"ZREMRANGEBYSCORE", b"HSET", b"HDEL", b"FLUSHALL")
)
_DATA: dict[bytes, _Command] = {
    b"GET": _of._get, b"MGET": _of._mget, b"SET": _of._set, b"DEL": _of._del, b"EXISTS": _of._exists,
    b"PTTL": _of._pttl, b"PEXPIRE": _of._pexpire, b"FLUSHALL": _of._flush, b"TIME": _of._time,
    b"ZADD": _of._zadd, b"ZREM": _of._zrem,
    b"ZREMRANGEBYSCORE": _of._zremrangebyscore, b"ZRANGE": _of._zrange, b"ZRANGEBYSCORE": _of._zrangebyscore,
    b"ZRANDMEMBER": _of._zrandmember, b"ZMSCORE": _of._zmscore,
    b"ZSCORE": _of._zscore, b"ZRANK": _of._zrank, b"ZCARD": _of._zcard, b"ZCOUNT": _of._zcount,
    b"HSET": _of._hset, b"HGET": _of._hget, b"HGETALL": _of._hgetall, b"HDEL": _of._hdel, b"HLEN": _of._hlen,
    b"HRANDFIELD": _of._hrandfield, b"TYPE": _of._type,
    b"ZPOPMIN": _of._zpopmin, b"PUBLISH": _of._publish, b"PUBSUB": _of._pubsub, b"INFO": _of._info,
    b"EVAL": _of._eval, b"EVALSHA": _of._evalsha,
}  # fmt: skip
_CONNECTION: dict[bytes, _Command] = {
    b"PING": _of._ping, b"HELLO": _of._hello, b"CLIENT": _of._client, b"SUBSCRIBE": _of._subscribe,
    b"UNSUBSCRIBE": _of._unsubscribe,
}  # fmt: skip
_LUA = _Scripts()
