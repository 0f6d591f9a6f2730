"""etcd, the example of docs/backends.md: a message is one HTTP request, one answer, or what a watch tells."""

from __future__ import annotations

import json
import secrets
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from tests.support.etcd_server import EtcdServer
from tests.support.stores.etcd.server import Connections, Server, deletes, ranges, text
from tests.support.stores.etcd_fixtures import etcd_entry

from .steps import Strike
from .way import Way
from .wire import Message, Network

_KINDS = {"lease/grant": "begin", "lease/keepalive": "keep", "lease/revoke": "end", "lease/timetolive": "ask"}


class EtcdWay(Way):
    name = "etcd"
    backend = "tests.support.stores.etcd.EtcdBackend"
    lease, timeout = 1.0, 0.3

    def __init__(self, network: Network, shared: Mapping[str, Any]) -> None:
        super().__init__(network, shared)
        self._path = f"faults-{secrets.token_hex(4)}"
        self._near = Connections(Server("127.0.0.1", shared["port"], 10.0), 1)

    @classmethod
    @contextmanager
    def serve(cls) -> Iterator[Mapping[str, Any]]:
        with EtcdServer() as server:
            yield {"port": server.port}

    def near(self) -> dict[str, Any]:
        return etcd_entry(self.shared["port"], self._path, timeout=2.0)

    def connect(self, party: str, strike: Strike) -> dict[str, Any]:
        return etcd_entry(self.wire(party, strike, self.shared["port"], HTTP).port, self._path, timeout=self.timeout)

    @property
    def _all(self) -> tuple[bytes, bytes]:
        return f"{self._path}/".encode(), f"{self._path}0".encode()

    def clear(self) -> None:
        first, end = self._all
        every = deletes(first)
        every["request_delete_range"]["range_end"] = text(end)
        self._near.change([], [every])

    def left(self) -> list[str]:
        """What is under no lease."""
        _, (rows,) = self._near.change([], [ranges(*self._all)])
        return [repr(row.key) for row in rows if not row.lease]


class HTTP:
    """One request after the other, and their answers. That to a watch has no end: each of its lines is a message."""

    stops_if_left = True

    def __init__(self) -> None:
        self._asked, self._answered = b"", b""
        self._kinds = deque[str]()
        self._watches = False

    def requests(self, data: bytes) -> Sequence[Message]:
        self._asked += data
        found = []
        while (end := _end(self._asked)) is not None:
            one, self._asked = self._asked[:end], self._asked[end:]
            self._kinds.append(_kind(one))
            found.append(Message(self._kinds[-1], one))
        return found

    def answers(self, data: bytes) -> Sequence[Message]:
        self._answered += data
        found = []
        while (end := self._end_of_answer()) is not None:
            one, self._answered = self._answered[:end], self._answered[end:]
            if self._watches:
                found.append(Message("news", one, answered=False))
            else:
                found.append(Message(self._kinds.popleft() if self._kinds else "", one))
                self._watches = found[-1].kind == "watch"
        return found

    def _end_of_answer(self) -> int | None:
        if self._watches:
            return _chunk(self._answered, 0)
        if self._kinds and self._kinds[0] == "watch":  # it has answered when it says so
            head = self._answered.find(b"\r\n\r\n")
            return None if head < 0 else _chunk(self._answered, head + 4)
        return _end(self._answered)


def _kind(request: bytes) -> str:
    head, _, body = request.partition(b"\r\n\r\n")
    path = head.split(b" ", 2)[1].decode().removeprefix("/v3/")
    if path == "kv/txn":
        changes = any("request_range" not in one for one in json.loads(body)["success"])
        return "change" if changes else "look"
    return _KINDS.get(path, path)


def _end(data: bytes) -> int | None:
    """Where the first message ends; None: it is not there yet."""
    head = data.find(b"\r\n\r\n")
    if head < 0:
        return None
    fields = dict(line.lower().split(b": ", 1) for line in data[:head].split(b"\r\n")[1:])
    at = head + 4
    if fields.get(b"transfer-encoding") == b"chunked":
        while not data.startswith(b"0\r\n", at):
            if (end := _chunk(data, at)) is None:
                return None
            at = end
        at = data.find(b"\r\n\r\n", at)  # behind the last chunk there may be further fields
        return at + 4 if at >= 0 else None
    at += int(fields.get(b"content-length", b"0"))
    return at if at <= len(data) else None


def _chunk(data: bytes, at: int) -> int | None:
    line = data.find(b"\r\n", at)
    if line < 0:
        return None
    end = line + 2 + int(data[at:line], 16) + 2
    return end if end <= len(data) else None
