"""One member of etcd, asked in JSON over HTTP: every answer comes within a bounded time, or ``BackendUnavailable``."""

from __future__ import annotations

import json
import select
from base64 import b64decode, b64encode
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from http.client import HTTPConnection, HTTPException
from typing import Any, NamedTuple, TypeAlias

from distlock_web.core.errors import BackendUnavailable, ConfigurationError, DistLockError
from distlock_web.core.runtime import now
from distlock_web.kit.outage import Outage
from distlock_web.kit.pool import AllInUse, Lent, Pool

#: A request, or an answer, as JSON has it: bytes are base64, and whole numbers are text.
Message: TypeAlias = dict[str, Any]
Messages: TypeAlias = Sequence[Message]

#: What etcd answers, by gRPC's numbers: it has no such lease, or has it already; who asks is refused; it cannot, now.
NOT_FOUND, EXISTS, REFUSED, UNAVAILABLE = 5, 9, (3, 7, 12, 16), (4, 8, 10, 13, 14)


class Changed(Exception):
    """What was read is not so any more: a row is another, a lease has ended, and with it all that was under it."""


class LeaseExists(Exception):
    """The first copy of this request has made it."""


class Row(NamedTuple):
    """A key that etcd has, and its value, which is JSON."""

    key: bytes
    value: Message
    lease: int
    created: int  #: the revision that made the key: it only grows
    version: int  #: the revision that last changed it

    @classmethod
    def read(cls, found: Message) -> Row:
        value = json.loads(b64decode(found.get("value", "")) or b"{}")
        created, version = int(found["create_revision"]), int(found["mod_revision"])
        return cls(b64decode(found["key"]), value, int(found.get("lease", 0)), created, version)


class Server:
    """The address, and whether somebody answers there."""

    def __init__(self, host: str, port: int, timeout: float) -> None:
        self.host, self.port, self.timeout = host, port, timeout
        self.name = f"etcd at {host}:{port}"
        self.outage = Outage(self.name, self._probe, timeout)
        self._probing = Connections(self, 1)

    def connect(self, timeout: float | None = None) -> HTTPConnection:
        connection = HTTPConnection(self.host, self.port, timeout=timeout or self.timeout)
        try:
            connection.connect()
        except OSError as error:
            if isinstance(error, TimeoutError):
                self.outage.begin(error, timeout)
            raise BackendUnavailable(f"{self.name} cannot be reached ({error}).") from error
        return connection

    def _probe(self) -> None:
        """A write, as each request is or follows: a majority of the members agrees that there is no such lease."""
        try:
            with suppress(Changed):
                self._probing.ask("lease/revoke", {"ID": 1})
        finally:
            self._probing.close()  # each time on a fresh one


class Connections:
    """Those for one purpose. A request has one to itself until it is answered."""

    def __init__(self, server: Server, size: int) -> None:
        self.server = server
        new = partial(Lent[HTTPConnection], server.connect, HTTPConnection.close)
        self._pool: Pool[Lent[HTTPConnection]] = Pool(size, server.timeout, new)

    def close(self) -> None:
        self._pool.drop()

    def ask(self, path: str, *messages: Message, timeout: float | None = None) -> list[Message]:
        """The answers; a request that is a stream has several messages, and as many answers.

        While the server is silent nothing is sent, but for a request with a ``timeout`` of its own: a renewal, which
        has a deadline.
        """
        server, is_probe = self.server, self is self.server._probing
        if timeout is None and not is_probe:
            server.outage.refuse_if_silent(begun=True)
        seconds = server.outage.seconds_for(timeout)
        until, usable = now() + seconds, False
        try:
            lent = self._pool.borrow(seconds)
        except AllInUse:
            raise BackendUnavailable(f"{server.name}: all {self._pool.size} connections are in use.") from None
        try:
            connection = lent.connection
            connection.sock.settimeout(max(0.001, until - now()))
            connection.request("POST", f"/v3/{path}", "\n".join(map(json.dumps, messages)))
            comes = partial(_is_readable, connection)
            if is_probe:
                comes(until - now())
            elif server.outage.overtakes(comes, until, seconds):
                raise ConnectionError("the connection is dead")
            connection.sock.settimeout(max(0.001, until - now()))
            response = connection.getresponse()
            body, usable = response.read(), not response.will_close
        except (OSError, HTTPException) as error:
            self._pool.drop()  # the others are most likely dead, too: nobody has to find that out of each
            raise BackendUnavailable(f"{server.name} does not answer ({error or type(error).__name__}).") from error
        finally:
            lent.end(usable=usable)
        answers = [json.loads(line) for line in body.splitlines() if line] if body.startswith(b"{") else []
        if response.status != 200 or not answers or "error" in answers[-1]:
            raise self._failure(path, response.status, answers[-1] if answers else {"error": body.decode()})
        return [answer.get("result", answer) for answer in answers]

    def _failure(self, path: str, status: int, answer: Message) -> Exception:
        said = answer["error"]
        code = said.get("grpc_code") if isinstance(said, dict) else answer.get("code")
        if code in (NOT_FOUND, EXISTS):
            return Changed() if code == NOT_FOUND else LeaseExists()
        text = f"{self.server.name} answers {path} with {status}: {said}."
        if code in UNAVAILABLE or status >= 500:
            return BackendUnavailable(text)
        return ConfigurationError(text) if code in REFUSED or code is None else DistLockError(text)

    def change(
        self, compares: Messages, success: Messages, failure: Messages = (), timeout: float | None = None
    ) -> tuple[bool, list[list[Row]]]:
        """A transaction: whether the comparisons held, and what its ``ranges`` have found, in their order."""
        asked = {"compare": list(compares), "success": list(success), "failure": list(failure)}
        (answer,) = self.ask("kv/txn", asked, timeout=timeout)
        found = [each["response_range"] for each in answer.get("responses", ()) if "response_range" in each]
        return answer.get("succeeded", False), [[Row.read(kv) for kv in one.get("kvs", ())] for one in found]

    def keep(self, leases: Sequence[int], timeout: float | None = None) -> list[bool]:
        """Have these leases begin anew; of each, whether there is one."""
        if not leases:
            return []
        answers = self.ask("lease/keepalive", *({"ID": lease} for lease in leases), timeout=timeout)
        return ["TTL" in answer for answer in answers]


def _is_readable(connection: HTTPConnection, seconds: float) -> bool:
    poll = select.poll()
    poll.register(connection.sock, select.POLLIN)
    return bool(poll.poll(max(0.0, seconds) * 1000))


def text(key: bytes) -> str:
    return b64encode(key).decode()


def ranges(key: bytes, end: bytes = b"", **how: Any) -> Message:
    """Read this key, or all from it on and before ``end``."""
    return {"request_range": {"key": text(key), "range_end": text(end), **how}}


def puts(key: bytes, value: Message, lease: int) -> Message:
    return {"request_put": {"key": text(key), "value": text(json.dumps(value).encode()), "lease": lease}}


def deletes(key: bytes) -> Message:
    return {"request_delete_range": {"key": text(key)}}


def is_absent(key: bytes, end: bytes = b"") -> Message:
    """Compare: there is no such key, or none from it on and before ``end``."""
    return {"key": text(key), "range_end": text(end), "target": "CREATE", "result": "EQUAL", "create_revision": 0}


def is_unchanged(row: Row) -> Message:
    return {"key": text(row.key), "target": "MOD", "result": "EQUAL", "mod_revision": row.version}
