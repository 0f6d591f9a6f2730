"""ZooKeeper: a message is one request, one answer, or one event of a watch."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from types import TracebackType
from typing import Any, ClassVar, Self

from kazoo.exceptions import NoNodeError, NotEmptyError

from distlock_web.backends.zookeeper.nodes import ROOT
from tests.support.stores.zookeeper import zookeeper_client
from tests.support.zookeeper_server import ZooKeeperServer

from .steps import Fault, Strike
from .way import Way
from .zookeeper_wire import ZooKeeper


class ZooKeeperWay(Way):
    name = "zookeeper"
    backend = "zookeeper"
    lease, timeout = 0.8, 0.25
    session: ClassVar[float] = 4.0  #: seconds
    not_tried_faults: ClassVar[Mapping[Fault, str]] = {Fault.TWICE: "a stream has nothing twice"}

    @classmethod
    @contextmanager
    def serve(cls) -> Iterator[Mapping[str, Any]]:
        with ZooKeeperServer() as server:
            yield {"port": server.port}

    def __enter__(self) -> Self:
        self._stack = ExitStack()
        self._client = self._stack.enter_context(zookeeper_client(self.shared["port"]))
        self._chroot = f"/faults-{secrets.token_hex(4)}"
        self._client.create(self._chroot)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        self._stack.close()

    def near(self) -> dict[str, Any]:
        return self._entry(self.shared["port"])

    def _entry(self, port: int, **options: Any) -> dict[str, Any]:
        location = f"zookeeper://127.0.0.1:{port}{self._chroot}"
        return {"BACKEND": self.backend, "LOCATION": location, "OPTIONS": {"session_timeout": self.session, **options}}

    def connect(self, party: str, strike: Strike) -> dict[str, Any]:
        wire = self.wire(party, strike, self.shared["port"], ZooKeeper)
        return self._entry(wire.port, timeout=self.timeout)

    def clear(self) -> None:
        with suppress(NoNodeError):
            for lock in self._client.get_children(self._chroot + ROOT):
                with suppress(NoNodeError, NotEmptyError):
                    self._client.delete(f"{self._chroot}{ROOT}/{lock}", recursive=True)

    def left(self) -> list[str]:
        """When all sessions have ended: a lock's node is a container, which ends when it is empty."""
        root = self._chroot + ROOT
        return [f"{lock}/{child}" for lock in self._children(root) for child in self._children(f"{root}/{lock}")]

    def _children(self, path: str) -> list[str]:
        with suppress(NoNodeError):
            return list(self._client.get_children(path))
        return []
