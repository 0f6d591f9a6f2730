"""A tap on the way to a store: it writes down every verb, and can lose a request or an answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from distlock_web.core.backend import Backend, Port
from distlock_web.core.errors import BackendUnavailable
from distlock_web.core.registry import Store
from distlock_web.core.runtime import Runtime

#: What is lost: the request on its way there, so that nothing happens; or the answer on its way back.
Half = Literal["request", "answer"]


class Tap:
    """``tap = Tap(store)``: from now on everything between the engine and this store goes through it."""

    def __init__(self, store: Store) -> None:
        self.calls: list[str] = []  #: the verbs, in the order in which they were sent
        self._losses: dict[str, list[Half]] = {}
        self._dead: Half | None = None
        self._backend = store.backend
        store._backend = _TappedBackend(self._backend, self)

    def lose(self, verb: str, *halves: Half) -> None:
        """Lose this half of the next requests of this verb: ``lose("take", "answer", "request")`` fails two."""
        self._losses.setdefault(verb, []).extend(halves)

    def cut(self, half: Half = "request") -> None:
        """From now on nothing comes through: the store is unreachable."""
        self._dead = half

    def mend(self) -> None:
        self._dead = None

    def next_loss(self, verb: str) -> Half | None:
        self.calls.append(verb)
        losses = self._losses.get(verb)
        return losses.pop(0) if losses else self._dead


class _TappedBackend:
    def __init__(self, backend: Backend, tap: Tap) -> None:
        self.capabilities = backend.capabilities
        self._backend = backend
        self._tap = tap

    def blocking(self) -> Port:
        return _TappedPort(self._backend.blocking(), self._tap)

    def concurrent(self) -> Port:
        return _TappedPort(self._backend.concurrent(), self._tap)

    def renewing(self) -> Port:
        return _TappedPort(self._backend.renewing(), self._tap)

    def close(self) -> None:
        self._backend.close()

    def forget(self) -> None:
        self._backend.forget()


class _TappedPort:
    take: Any
    wait: Any
    withdraw: Any
    extend: Any
    release: Any
    detach: Any
    attach: Any
    inspect: Any
    revoke: Any

    def __init__(self, port: Port, tap: Tap) -> None:
        self.runtime: Runtime = port.runtime
        self._port = port
        self._tap = tap

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        send = getattr(self._port, verb)

        async def tapped(*args: Any) -> Any:
            loss = self._tap.next_loss(verb)
            if loss == "request":
                raise BackendUnavailable("The test has lost a request.")
            answer = await send(*args)
            if loss == "answer":
                raise BackendUnavailable("The test has lost an answer.")
            return answer

        return tapped
