"""The wires of ``make faults``, on real servers: they see where a message ends, and each fault does what it says."""

from __future__ import annotations

import itertools
import json
from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPConnection
from typing import Any, Protocol

import psycopg
import pymysql
import pytest
from kazoo.client import KazooClient

from distlock_web.backends.sql.psycopg_connection import bound
from tests.support.faults.database_wires import MySQL, PostgreSQL
from tests.support.faults.etcd_way import HTTP
from tests.support.faults.steps import Fault, Step, Strike
from tests.support.faults.wire import Dialect, Network, Wire
from tests.support.faults.zookeeper_wire import ZooKeeper
from tests.support.stores.etcd.server import puts, ranges
from tests.support.waiting import eventually

pytestmark = pytest.mark.nightly  # as what they carry; some of that is in ``test_each_fault.py``

#: Seconds for which a client waits in vain, and by which a message is late.
PATIENCE, LATE = 0.5, 1.5
_numbers = itertools.count()


class Client(Protocol):
    """Somebody who writes, in one exchange."""

    def write(self, number: int) -> None: ...

    def written(self) -> set[int]: ...


class _Postgres:
    def __init__(self, port: int) -> None:
        self._connection = psycopg.connect(host="127.0.0.1", port=port, user="postgres", autocommit=True)
        self._connection.execute("CREATE TABLE IF NOT EXISTS proxied (number integer)")
        bound(self._connection, PATIENCE)

    def write(self, number: int) -> None:
        self._connection.execute("INSERT INTO proxied VALUES (%s)", [number])

    def written(self) -> set[int]:
        return {row[0] for row in self._connection.execute("SELECT number FROM proxied")}

    def close(self) -> None:
        self._connection.close()


class _MySQL:
    def __init__(self, port: int) -> None:
        self._connection: Any = pymysql.connect(host="127.0.0.1", port=port, user="root", autocommit=True)
        with self._connection.cursor() as cursor:
            cursor.execute("CREATE DATABASE IF NOT EXISTS proxied")
            cursor.execute("CREATE TABLE IF NOT EXISTS proxied.proxied (number integer)")
        self._connection._read_timeout = PATIENCE

    def write(self, number: int) -> None:
        with self._connection.cursor() as cursor:
            cursor.execute("INSERT INTO proxied.proxied VALUES (%s)", [number])

    def written(self) -> set[int]:
        with self._connection.cursor() as cursor:
            cursor.execute("SELECT number FROM proxied.proxied")
            return {row[0] for row in cursor.fetchall()}

    def close(self) -> None:
        with suppress(pymysql.Error):
            self._connection.close()


class _ZooKeeper:
    def __init__(self, port: int) -> None:
        self._client = KazooClient(f"127.0.0.1:{port}", timeout=6)
        self._client.start()
        self._client.ensure_path("/proxied")

    def write(self, number: int) -> None:
        self._client.create_async(f"/proxied/{number}").get(timeout=PATIENCE)

    def written(self) -> set[int]:
        return set(map(int, self._client.get_children("/proxied")))

    def close(self) -> None:
        self._client.stop()
        self._client.close()


class _Etcd:
    def __init__(self, port: int) -> None:
        self._connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        self._connection.connect()

    def _ask(self, **asked: Any) -> Any:
        self._connection.request("POST", "/v3/kv/txn", json.dumps(asked))
        return json.load(self._connection.getresponse())

    def write(self, number: int) -> None:
        self._ask(success=[puts(f"proxied/{number}".encode(), {}, 0)])

    def written(self) -> set[int]:
        (answer,) = self._ask(success=[ranges(b"proxied/", b"proxied0", keys_only=True)])["responses"]
        keys = [b64decode(row["key"]).decode() for row in answer["response_range"].get("kvs", ())]
        return {int(key.partition("/")[2]) for key in keys}

    def close(self) -> None:
        self._connection.close()


#: Who writes, how its messages are read, and which of them writes.
KINDS: dict[str, tuple[Callable[[int], Any], Callable[[], Dialect], str]] = {
    "postgres": (_Postgres, PostgreSQL, "insert-proxied"),
    "mariadb": (_MySQL, MySQL, "insert-proxied"),
    "zookeeper": (_ZooKeeper, ZooKeeper, "create"),
    "etcd": (_Etcd, HTTP, "change"),
}


@dataclass
class Way:
    """Somebody who writes through a wire, and somebody who looks past it."""

    kind: str
    network: Network
    port: int

    @contextmanager
    def struck_by(self, fault: Fault | None, number: int = 1) -> Iterator[tuple[Strike, Client, Client, Wire]]:
        """The fault meets with so many'th write."""
        client, dialect, word = KINDS[self.kind]
        self.stopped: list[str] = []
        ready = Strike(None, None, self.stopped.append)
        wire = Wire(self.network, "me", ready, self.port, dialect, late=LATE, later=LATE)
        try:
            with closing(client(wire.port)) as mine, closing(client(self.port)) as other:
                strike = wire.strike = Strike(Step("me", word, number), fault, self.stopped.append)
                yield strike, mine, other, wire
        finally:
            wire.close()


@pytest.fixture(params=[pytest.param(kind, marks=pytest.mark.nightly) if kind == "etcd" else kind for kind in KINDS])
def way(request: pytest.FixtureRequest) -> Iterator[Way]:
    network = Network()
    yield Way(request.param, network, request.getfixturevalue(f"{request.param}_server").port)
    network.close()


def steps(strike: Strike) -> list[str]:
    return [step.kind for step in strike.seen]


def test_an_exchange_is_one_message(way: Way) -> None:
    with way.struck_by(None) as (strike, mine, other, _):
        number = next(_numbers)
        mine.write(number)
        assert steps(strike) == [KINDS[way.kind][2]]
        assert number in mine.written() & other.written()
        assert len(strike.seen) == 2


def test_an_answer_of_many_packets_is_one_message(way: Way) -> None:
    with way.struck_by(None) as (strike, mine, other, _):
        some = {next(_numbers) + 100_000 for _ in range(300)}
        for number in some:
            other.write(number)
        for _ in range(7):
            assert some <= mine.written()
        assert len(set(strike.seen)) - 7 in (0, 1)  # psycopg prepares a statement that comes often, which is one more
        assert len(set(steps(strike))) == 1


@pytest.mark.parametrize(
    ("fault", "told", "applied"),
    [
        (Fault.REQUEST_LOST, False, "never"),
        (Fault.ANSWER_LOST, False, "at once"),
        (Fault.CUT_BEFORE, False, "never"),
        (Fault.CUT_AFTER, False, "at once"),
        (Fault.SLOW, True, "at once"),
        (Fault.LATE, False, "later"),
        (Fault.STOPPED, True, "at once"),
    ],
)
def test_each_fault_does_what_it_says(way: Way, fault: Fault, told: bool, applied: str) -> None:
    with way.struck_by(fault) as (strike, mine, other, wire):
        number = next(_numbers)
        if told:
            mine.write(number)
        else:
            with pytest.raises(Exception):  # noqa: B017, PT011 - of three drivers
                mine.write(number)
        assert strike.struck
        assert way.stopped == (["me"] if fault is Fault.STOPPED else [])
        assert (number in other.written()) is (applied == "at once")
        with suppress(Exception):
            mine.close()  # type: ignore[attr-defined]
        if fault is Fault.REQUEST_LOST:  # and so is the end of the connection
            wire.close()
        eventually(lambda: not wire._connections, "the connection has ended, and what it could do is done")
        assert (number in other.written()) is (applied != "never")


@pytest.mark.parametrize("kind", KINDS)
def test_messages_are_found_however_the_bytes_come(kind: str) -> None:
    """A message may come in pieces, and several in one."""
    messages = {
        "postgres": [(8).to_bytes(4, "big") + (80877103).to_bytes(4, "big"), (9).to_bytes(4, "big") + b"\0\3\0\0x",
                     b"Q" + (9).to_bytes(4, "big") + b"SQL\0\0", b"X" + (4).to_bytes(4, "big")],
        "mariadb": [(3).to_bytes(3, "little") + b"\1abc", (4).to_bytes(3, "little") + b"\0\3SQL",
                    (1).to_bytes(3, "little") + b"\0\1"],
        "zookeeper": [(8).to_bytes(4, "big") + bytes(8), (8).to_bytes(4, "big") + b"\0\0\0\1\0\0\0\4"],
        "etcd": [b"POST /v3/lease/grant HTTP/1.1\r\nContent-Length: 10\r\n\r\n{\"TTL\": 1}",
                 b"GET /health HTTP/1.1\r\nHost: etcd\r\n\r\n"],
    }[kind]  # fmt: skip
    whole = b"".join(messages)
    for size in (1, 3, len(whole)):
        dialect = KINDS[kind][1]()
        pieces = [whole[at : at + size] for at in range(0, len(whole), size)]
        found = [message for piece in pieces for message in dialect.requests(piece)]
        assert [message.data for message in found] == messages


def test_what_a_listener_is_told_is_a_message_by_itself(postgres_server: Any) -> None:
    """It comes without a request, and the next of them without one between."""
    network = Network()
    strike = Strike(Step("me", "<notify", 2), Fault.CUT_AFTER, lambda party: None)
    wire = Wire(network, "me", strike, postgres_server.port, PostgreSQL, late=LATE, later=LATE)
    with (
        psycopg.connect(host="127.0.0.1", port=wire.port, user="postgres", autocommit=True) as listening,
        psycopg.connect(host="127.0.0.1", port=postgres_server.port, user="postgres", autocommit=True) as telling,
    ):
        listening.execute("LISTEN proxied")
        heard = []
        for _ in range(2):
            telling.execute("NOTIFY proxied")
            with suppress(psycopg.Error):
                heard += list(listening.notifies(timeout=10, stop_after=1))
        assert len(heard) == 1
        assert strike.struck
    wire.close()
    network.close()
