"""Callers stop before each acquire and release of our locks, and wait for a lock where it is known who does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from distlock_web.core.backend import Busy, Claim, Granted, Port
from distlock_web.core.errors import LockBusy
from distlock_web.core.registry import Store
from distlock_web.core.runtime import TASKS, Runtime

from . import statements
from .scheduler import Caller, Step, running
from .stops import NO_ASYNC, Watch, refuse


@contextmanager
def at_our_locks(watch: Watch) -> Iterator[None]:
    """Callers stop before each acquire and release, and wait for a lock here, where it is known."""
    port_of = Store.port

    def port(store: Store, runtime: Runtime) -> Port:
        found, caller = port_of(store, runtime), running()
        if caller is None:
            return found
        if runtime is TASKS:
            raise refuse(caller, NO_ASYNC)
        return _StoppingPort(found, store, caller, watch)

    Store.port = port  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        Store.port = port_of  # type: ignore[method-assign]


class _StoppingPort:
    def __init__(self, port: Port, store: Store, caller: Caller, watch: Watch) -> None:
        self.runtime = port.runtime
        self._port = port
        self._caller = caller
        self._watch = watch
        self._store = store

    def __getattr__(self, verb: str) -> Any:
        send = getattr(self._port, verb)

        async def sent(*args: Any) -> Any:
            with self._watch.aside():
                return await send(*args)

        return sent

    async def acquire(self, claim: Claim, wait: float | None) -> Granted | Busy:
        said = Step(f"acquire {claim.name!r}", statements.users_line())
        self._caller.stop(said)
        with self._watch.aside():
            answer = await self._port.acquire(claim, wait)
        if isinstance(answer, Busy):
            said.note = "is done" if answer.record else "is busy" if wait == 0 or answer.final else "waits"
            self._caller.refused |= said.note == "is busy"
        return answer

    async def wait(self, claim: Claim, busy: Busy, seconds: float | None) -> Granted | Busy:
        again = Step(f"acquire {claim.name!r}, after waiting", statements.users_line(), caller=self._caller.number)
        if not self._caller.wait((self._store, claim.name), again, patient=seconds is None):
            self._caller.refused = True
            raise LockBusy(f"The lock {claim.name!r} is not given back while all others wait.", name=claim.name)
        with self._watch.aside():
            return await self._port.acquire(claim, seconds)

    async def release(self, claim: Claim, *args: Any) -> Any:
        return await self._give_back("release", claim, *args)

    async def cancel(self, claim: Claim) -> Any:
        return await self._give_back("cancel", claim)

    async def detach(self, claim: Claim, *args: Any) -> Any:
        return await self._give_back("detach", claim, *args)

    async def _give_back(self, verb: str, claim: Claim, *args: Any) -> Any:
        if verb == "release":
            self._caller.stop(Step(f"release {claim.name!r}", statements.users_line()))
        try:
            with self._watch.aside():
                return await getattr(self._port, verb)(claim, *args)
        finally:
            self._caller.order.give_back((self._store, claim.name))
