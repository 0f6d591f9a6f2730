"""Memory: a message is a verb of the store."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from distlock_web.backends.memory import MemoryBackend
from distlock_web.core.backend import Backend, Port
from distlock_web.core.errors import BackendUnavailable
from distlock_web.core.registry import Store, registry
from distlock_web.core.runtime import drive, now

from .seam import Seam
from .steps import Fault, Strike
from .way import Way


class MemoryWay(Way):
    """Nothing of a process's own memory is lost on the way: the engine is tried here, as if it were."""

    name = "memory"
    backend = "memory"
    lease, timeout = 0.6, 0.2
    in_threads = True
    not_tried_faults: ClassVar[Mapping[Fault, str]] = {
        Fault.CUT_BEFORE: "it is request-lost: an error that says that nothing came back",
        Fault.CUT_AFTER: "it is answer-lost",
        Fault.AWAY: "there is no server",
        Fault.SLOW: "there is no way that takes time",
    }

    def near(self) -> dict[str, Any]:
        return {"BACKEND": "memory"}

    def connect(self, party: str, strike: Strike) -> dict[str, Any]:
        return self.near()

    def install(self, party: str, store: Store, strike: Strike) -> None:
        """All have the director's memory."""
        shared = registry().store("default").backend
        assert isinstance(shared, MemoryBackend)
        self._backend = registry().store("near")._backend = shared
        seam = Seam(party, strike, late=1.5 * self.timeout, later=1.2 * self.lease, stopped=1.5 * self.lease)
        store._backend = _Backend(shared, seam)

    def clear(self) -> None:
        """Each run has a memory of its own."""

    def left(self) -> list[str]:
        table, moment, found = self._backend._table, now(), []
        for name, lock in table.locks.items():
            owners = [owner for owner in lock.owners.values() if owner.until > moment and owner.state != "done"]
            found += [f"{name}: {each}" for each in (*owners, *lock.queue.values())]
        return found


class _Backend(Backend):
    def __init__(self, shared: MemoryBackend, seam: Seam) -> None:
        self.capabilities = shared.capabilities
        self._shared, self._seam = shared, seam

    def sync_port(self) -> Port:
        return _Port(self._shared.sync_port(), self._shared, self._seam)

    def async_port(self) -> Port:
        return _Port(self._shared.async_port(), self._shared, self._seam)

    def renewal_port(self) -> Port:
        return self.sync_port()

    def close(self) -> None:
        """The memory is everybody's."""


class _Port:
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

    def __init__(self, port: Port, shared: MemoryBackend, seam: Seam) -> None:
        self.runtime = port.runtime
        self._port, self._shared, self._seam = port, shared, seam

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        send, seam = getattr(self._port, verb), self._seam

        async def through(*args: Any, **given: Any) -> Any:
            fault = seam.meets(verb)
            if fault is Fault.REQUEST_LOST:
                raise BackendUnavailable("The request was lost.")
            if fault in seam.held:
                threading.Thread(target=later, args=(fault, *args), kwargs=given, daemon=True).start()
                raise BackendUnavailable("The request is late.")
            answer = await send(*args, **given)
            if fault is Fault.TWICE:
                answer = await send(*args, **given)
            if fault is Fault.ANSWER_LOST:
                raise BackendUnavailable("The answer was lost.")
            return answer

        def later(fault: Fault, *args: Any, **given: Any) -> None:
            seam.hold(fault)
            if verb != "wait":  # whose caller sleeps here, and then asks by another one
                drive(getattr(self._shared.sync_port(), verb)(*args, **given))

        return through
