"""Faults on the way to a store: every verb is recorded, and a request or an answer can be lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from distlock_web.core.backend import Backend, Port
from distlock_web.core.errors import BackendUnavailable
from distlock_web.core.registry import Store
from distlock_web.core.runtime import Runtime

#: What is lost: the request on its way there, so that nothing happens; or the answer on its way back.
Half = Literal["request", "answer"]


class FaultInjector:
    """``injector = FaultInjector(store)``: from now on everything between the engine and this store goes through it."""

    def __init__(self, store: Store) -> None:
        self.calls: list[str] = []  #: the verbs, in the order in which they were sent
        self._losses: dict[str, list[Half]] = {}
        self._dead: Half | None = None
        self._store = store
        self._backend = store.backend
        store._backend = _FaultyBackend(self._backend, self)

    def remove(self) -> None:
        """From now on everything goes its own way again."""
        self._store._backend = self._backend

    def lose(self, verb: str, *halves: Half) -> None:
        """Lose this half of the next requests of this verb: ``lose("acquire", "answer", "request")`` fails two."""
        self._losses.setdefault(verb, []).extend(halves)

    def cut(self) -> None:
        """From now on nothing comes through: the store is unreachable."""
        self._dead = "request"

    def mend(self) -> None:
        self._dead = None

    async def send(self, runtime: Runtime, verb: str, send: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """What comes back of this request."""
        self.calls.append(verb)
        losses = self._losses.get(verb)
        loss = losses.pop(0) if losses else self._dead
        if loss == "request":
            raise BackendUnavailable("The test has lost a request.")
        answer = await send(*args)
        if loss == "answer":
            raise BackendUnavailable("The test has lost an answer.")
        return answer


class _FaultyBackend(Backend):
    def __init__(self, backend: Backend, injector: FaultInjector) -> None:
        self.capabilities = backend.capabilities
        self._backend = backend
        self._injector = injector

    def sync_port(self) -> Port:
        return _FaultyPort(self._backend.sync_port(), self._injector)

    def async_port(self) -> Port:
        return _FaultyPort(self._backend.async_port(), self._injector)

    def renewal_port(self) -> Port:
        return _FaultyPort(self._backend.renewal_port(), self._injector)

    def close(self) -> None:
        self._backend.close()


class _FaultyPort:
    acquire: Any
    wait: Any
    cancel: Any
    extend: Any
    release: Any
    detach: Any
    attach: Any
    inspect: Any
    revoke: Any
    names: Any
    waiters: Any
    done: Any
    forget: Any

    def __init__(self, port: Port, injector: FaultInjector) -> None:
        self.runtime: Runtime = port.runtime
        self._port = port
        self._injector = injector

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        send = getattr(self._port, verb)

        async def faulty(*args: Any) -> Any:
            return await self._injector.send(self.runtime, verb, send, args)

        return faulty
