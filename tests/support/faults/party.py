"""One party of a scenario: it does its part by the public API, and says what it sees. As a process, or as a thread.

``python -m tests.support.faults.party`` is a process that plays one part after the other, as it is told by JSON lines.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import re
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any
from weakref import WeakSet

from .package import use_package

use_package()

from distlock_web import BackendUnavailable, Lease, LeaseLost, LockBusy, NotHeld, configure, lock, once  # noqa: E402
from distlock_web.core.backend import LockInfo  # noqa: E402
from distlock_web.core.registry import registry  # noqa: E402
from distlock_web.core.runtime import now  # noqa: E402
from distlock_web.kit.outage import Outage  # noqa: E402
from distlock_web.kit.pool import Pool  # noqa: E402
from distlock_web.locks import events  # noqa: E402
from distlock_web.locks.hold import Hold  # noqa: E402
from distlock_web.locks.lease import scope_of  # noqa: E402
from distlock_web.locks.lock import Lock  # noqa: E402
from distlock_web.testing.harness import HARNESSES, Harness  # noqa: E402

#: What a call may raise when something was at fault. Anything else is a defect.
REJECTED = (LockBusy, BackendUnavailable, LeaseLost, NotHeld)
#: Leases that a party waits for another one, which may have failed.
PATIENCE = 6


#: Whether a signal is to raise: it may come when the part that it was for is over.
interruptible = False
#: Whether one has, in this part. It may have come between two lines, where a socket has nobody yet who would close it,
#: and the traceback keeps it as garbage, in circles. Only then garbage is collected here, or leaks would not be seen.
was_interrupted = False


class Interrupted(BaseException):
    """What the handler of a signal raises in a thread."""


class Party:
    """What a part is given. Everything that it takes by ``inside`` is judged.

    ``say`` sends what it sees to the director, ``hear`` gets what the others tell.
    """

    def __init__(
        self,
        name: str,
        mode: str,
        store: str,
        key: str,
        lease: float,
        say: Callable[[dict[str, Any]], None],
        database: str = "sqlite://",
    ) -> None:
        self.name = name
        self.lease = lease  #: seconds of a usual lease
        self.key = key
        self.mode = mode
        self.database = database  #: where ``until="commit"`` writes
        self._store = store
        self._say = say
        self._told: dict[str, Any] = {}
        self._changed = threading.Condition()
        self._wakers: set[Callable[[], None]] = set()
        self._ended: set[str] = set()
        self.harness: Harness = HARNESSES[mode](registry().store(store))
        self._near: Harness = HARNESSES[mode](registry().store("near"))
        self._beside: Harness = HARNESSES["threads"](registry().store("near"))

    # What the others say ------------------------------------------------------------------------------------------

    def hear(self, word: str, value: Any = None) -> None:
        with self._changed:
            if word.startswith("ended:"):
                self._ended.add(word.removeprefix("ended:"))
            self._told[word] = value
            self._changed.notify_all()
            wakers = list(self._wakers)
        for wake in wakers:
            wake()

    def tell(self, word: str, value: Any = None) -> None:
        """The others, and oneself."""
        self._told[word] = value
        self._say({"tell": word, "value": value})

    async def until(self, word: str, of: str = "") -> Any:
        """What was told with it. None where nobody will: too late, or ``of`` has ended."""
        await self._hears(lambda: word in self._told or of in self._ended, PATIENCE * self.lease)
        return self._told.get(word)

    async def _hears(self, what: Callable[[], bool], patience: float) -> None:
        """Until it is so, by what the others say."""
        if self.mode == "threads":
            with self._changed:
                self._changed.wait_for(what, patience)
            return
        loop, event = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            loop.call_soon_threadsafe(event.set)

        self._wakers.add(wake)
        try:
            async with asyncio.timeout(patience):
                while not what():
                    await event.wait()
                    event.clear()
        except TimeoutError:
            pass
        finally:
            self._wakers.discard(wake)

    async def waiting(self, count: int = 1, of: str = "", key: str = "") -> None:
        """Until so many wait for the lock, or ``of``, who was to wait, has ended. Asked past the fault."""
        give_up, name = now() + PATIENCE * self.lease, self.stored(key)
        while now() < give_up and of not in self._ended:
            line = None
            with suppress(BackendUnavailable):  # the machine is busy
                line = await self._near.line(name)
            if line is not None and line.waiters >= count:
                return
            await self.harness.sleep(0.015)

    async def shown(self, key: str = "") -> LockInfo | None:
        """What the store shows of the lock, asked past the fault."""
        return await self._near.line(self.stored(key))

    # What it does -------------------------------------------------------------------------------------------------

    def named(self, key: str = "") -> str:
        return f"{self.key}{key}"

    def stored(self, key: str = "") -> str:
        return self.harness.store.config.prefix + self.named(key)

    def lock(self, *keys: str, **options: Any) -> Lock:
        """``lock`` of the scenario's key, or of these words behind it; its ``expire`` is a usual lease."""
        names = [self.named(key) for key in keys or ("",)]
        return lock(names, store=self._store, **{"expire": self.lease, **options})

    def record(self, kind: str, name: str, value: int | None = None, at: float | None = None, limit: int = 1) -> None:
        self._say({
            "event": {"actor": self.name, "kind": kind, "at": now() if at is None else at, "value": value,
                      "limit": limit},
            "name": name.removeprefix(self.harness.store.config.prefix),
        })  # fmt: skip

    def outcome(self, word: str) -> None:
        self._say({"outcome": word})

    @asynccontextmanager
    async def inside(self, the_lock: Lock | Lease, *, limit: int = 1, keep: float = 0.0) -> AsyncIterator[Lease]:
        """``with the_lock``, recorded; ``keep``: if it ends well nobody has it for so long since it was acquired.

        Not if the store did not answer at the end: then the log says that the lock ends with its lease.
        """
        holds: list[Hold] = []
        try:
            with _unreachable_at_its_end() as unreachable:
                async with self._inside(the_lock, holds, limit) as lease:
                    yield lease
        except LeaseLost:
            for hold in holds:
                if hold.state == "lost" and hold.reason in ("expired", "taken") and now() < hold.deadline:
                    self.record("early", hold.name, hold.fence)
            raise
        for hold in holds if keep else ():
            if hold.state == "released" and hold.fence not in unreachable:
                self.record("kept", hold.name, at=hold.since + keep)

    @asynccontextmanager
    async def _inside(self, the_lock: Lock | Lease, holds: list[Hold], limit: int) -> AsyncIterator[Lease]:
        async with self.harness.inside(the_lock) as lease:
            holds += scope_of(lease).holds
            begun = now()
            self.outcome("acquired")
            for hold in holds:
                self.record("acquired", hold.name, hold.fence, begun, limit)
            try:
                yield lease
            finally:
                moment = now()
                for hold in holds:
                    kind = "released" if hold.state in ("held", "unsure") else "lost"
                    self.record(kind, hold.name, at=max(begun, min(moment, hold.deadline)))

    async def trying(self, part: Callable[[], Awaitable[None]]) -> None:
        """Do it, and say what came of it."""
        try:
            await part()
        except REJECTED as error:
            self.outcome(type(error).__name__)
        else:
            self.outcome("done")

    async def hold(
        self, the_lock: Lock | Lease, during: Callable[[Lease], Awaitable[object]] | None = None, **options: Any
    ) -> None:
        """The whole of ``inside`` with what is done in it."""

        async def part() -> None:
            async with self.inside(the_lock, **options) as lease:
                if during is not None:
                    await during(lease)

        await self.trying(part)

    async def once(self, during: Callable[[], Awaitable[object]] | None = None, **options: Any) -> None:
        """A job that is done once, and answers under which fence that was."""
        name, ran = f"once:{self.key}", set[int]()

        async def job() -> int:
            from distlock_web import current_lease

            lease = current_lease()
            assert lease is not None
            (hold,) = scope_of(lease).holds
            begun, fence = now(), hold.fence or 0
            ran.add(fence)
            self.record("acquired", name, fence, begun)
            self.record("ran", name, fence, begun)
            try:
                if during is not None:
                    await during()
            finally:
                kind = "released" if hold.state in ("held", "unsure") else "lost"
                self.record(kind, name, at=max(begun, min(now(), hold.deadline)))
            return fence

        given = {"expire": self.lease, "wait": 4 * self.lease, "keep": 60, "result": True, **options}
        do = self.harness.decorated(job, once, key=lambda: self.key, store=self._store, **given)

        async def part() -> None:
            asked = now()
            with _unreachable_at_its_end() as unreachable:
                try:
                    answer = await do()
                finally:
                    for fence in unreachable & ran:
                        self.record("unkept", name, fence)
            self.record("asked", name, answer, asked)
            self.record("answered", name, answer)

        await self.trying(part)

    async def until_commit(self) -> None:
        """A job that is done once, with a row that is written in the transaction of its record."""
        from sqlalchemy import create_engine, text
        from sqlalchemy.orm import scoped_session, sessionmaker
        from sqlalchemy.pool import StaticPool

        import distlock_web.sqlalchemy  # noqa: F401 - installs itself

        pooled = {"poolclass": StaticPool} if self.database == "sqlite://" else {}
        engine = create_engine(self.database, **pooled)
        session = scoped_session(sessionmaker(engine))
        with engine.begin() as connection:
            connection.execute(text("CREATE TABLE IF NOT EXISTS faults_rows (job VARCHAR(100))"))

        async def write() -> None:
            session.execute(text("INSERT INTO faults_rows VALUES (:job)"), {"job": self.key})

        try:
            await self.once(write, until="commit", database=session)
            await self.once(write, until="commit", database=session)
        finally:
            session.remove()
            engine.dispose()

    async def acquire(self, the_lock: Lock) -> Lease:
        """By hand."""
        lease = await self.harness.acquire(the_lock)
        self.outcome("acquired")
        for hold in scope_of(lease).holds:
            self.record("acquired", hold.name, hold.fence)
        return lease

    async def detach(self, lease: Lease, transit: float) -> str:
        """From here on it is on its way, and nobody's."""
        moment = now()
        for hold in scope_of(lease).holds:
            kind = "detached" if hold.state in ("held", "unsure") else "lost"
            self.record(kind, hold.name, at=min(moment, hold.deadline))
        return await self.harness.detach(lease, transit)

    async def interrupted(
        self, part: Callable[[], Awaitable[None]], when: Callable[[Harness], Awaitable[bool]]
    ) -> None:
        """Do it, and be cancelled, or interrupted by a signal, as soon as this is true."""
        if self.mode == "asyncio":
            task = asyncio.ensure_future(part())
            while not task.done() and not await when(self._near):  # noqa: ASYNC110 - the store has no event
                await asyncio.sleep(0.01)
            task.cancel()
            try:
                await task
            except asyncio.CancelledError:
                self.outcome("interrupted")
            return
        global interruptible
        over, main = threading.Event(), threading.main_thread().ident
        assert threading.get_ident() == main, "only a process can be interrupted"

        def interrupt() -> None:
            from distlock_web.core.runtime import drive

            while not over.is_set() and not drive(when(self._beside)):  # type: ignore[arg-type]
                over.wait(0.01)
            if not over.is_set():
                signal.pthread_kill(main or 0, signal.SIGUSR1)

        thread = threading.Thread(target=interrupt)
        try:
            interruptible = True
            thread.start()
            await part()
            interruptible = False
        except Interrupted:
            self.outcome("interrupted")
        finally:
            interruptible = False
            over.set()
            thread.join()

    async def play(self, part: Callable[[Party], Awaitable[None]]) -> None:
        """The part, and then stay until all is over: an event loop goes on, too."""
        await self.until("go")
        try:
            await part(self)
        except Exception as error:
            self._say({"wrong": f"{self.name}: {type(error).__name__}: {error}"})
        self._say({"tell": f"ended:{self.name}", "value": None})
        await self._hears(lambda: "over" in self._told, 120.0)


# What a process has -------------------------------------------------------------------------------------------------

_outages: WeakSet[Outage] = WeakSet()
_pools: WeakSet[Pool[Any]] = WeakSet()


def _remember(of: type, those: WeakSet[Any]) -> None:
    init: Any = of.__init__  # type: ignore[misc]

    def begin(self: object, *args: Any) -> None:
        init(self, *args)
        those.add(self)

    of.__init__ = begin  # type: ignore[misc]


_remember(Outage, _outages)
_remember(Pool, _pools)

#: Of these a process has as many as it once needed at a time: the watchdog's is not a store's, the others are a pool.
_KEPT = re.compile("distlock-watchdog$|distlock-[a-z]+-(acquire|hold)_")


def _is_counted(thread: str) -> bool:
    return thread.startswith(("distlock", "asyncio_")) and not _KEPT.match(thread)


@contextmanager
def _unreachable_at_its_end() -> Iterator[set[int | None]]:
    """The fences of the locks at whose release meanwhile the store did not answer."""
    found: set[int | None] = set()

    def heard(event: events.Event) -> None:
        if event.kind == "released" and event.reason == "unreachable":
            found.add(event.fence)

    events.subscribe(heard, inline=True)
    try:
        yield found
    finally:
        events.unsubscribe(heard)


def has(*, pools_of_sockets: bool = True) -> dict[str, int]:
    """What a process has of threads, sockets, and calls that were postponed; idle connections of a pool are spare."""
    sockets = 0
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            sockets += os.readlink(f"/proc/self/fd/{descriptor}").startswith("socket:")
    return {
        "threads": sum(_is_counted(thread.name) for thread in threading.enumerate()),
        "sockets": sockets - sum(len(pool.idle) for pool in list(_pools) if pools_of_sockets),
        "postponed": sum(len(outage._postponed) for outage in list(_outages)),
    }


class Complaints(logging.Handler):
    """What is logged as an error, of anybody; and threads that ended with one."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__(logging.ERROR)
        self._say_it = say

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            text += f" ({type(record.exc_info[1]).__name__}: {record.exc_info[1]})"
        self._say_it(f"logged as an error: {text}")

    def install(self) -> None:
        logging.getLogger().addHandler(self)
        logging.getLogger("distlock_web").propagate = True

        def ended(args: threading.ExceptHookArgs) -> None:
            name = args.thread.name if args.thread else "?"
            self._say_it(f"the thread {name} ended: {args.exc_type.__name__}: {args.exc_value}")

        threading.excepthook = ended

        def unraisable(args: sys.UnraisableHookArgs) -> None:
            # The signal came while garbage was collected, or left a socket to it: see ``was_interrupted``.
            if not (was_interrupted and isinstance(args.exc_value, (Interrupted, ResourceWarning))):
                self._say_it(f"unraisable: {args.exc_value!r} in {args.object!r}")

        sys.unraisablehook = unraisable


class Stillness(threading.Thread):
    """How long at most it did not run though it should have: the machine was busy, or the process was stopped."""

    BEAT = 0.08

    def __init__(self) -> None:
        super().__init__(name="faults-heart", daemon=True)
        self.longest = 0.0

    def run(self) -> None:
        while True:
            begun = now()
            time.sleep(self.BEAT)
            self.longest = max(self.longest, now() - begun - self.BEAT)


#: Where the name of a host leads in this process: where all name a server alike, and have ways of their own there.
routes: dict[str, int] = {}
_getaddrinfo = socket.getaddrinfo


def _routed(host: Any, port: Any, *args: Any, **kwargs: Any) -> Any:
    if host in routes:
        host, port = "127.0.0.1", routes[host]
    return _getaddrinfo(host, port, *args, **kwargs)


socket.getaddrinfo = _routed


def main() -> None:
    global was_interrupted
    from .scenarios import SCENARIOS

    out, turn = sys.stdout, threading.Lock()

    def say(message: dict[str, Any]) -> None:
        with turn:
            out.write(json.dumps(message) + "\n")
            out.flush()

    def interrupt(*_: object) -> None:
        global interruptible, was_interrupted
        if interruptible:
            interruptible, was_interrupted = False, True
            raise Interrupted

    signal.signal(signal.SIGUSR1, interrupt)
    warnings.simplefilter("error")
    Complaints(lambda text: say({"wrong": text})).install()
    heart = Stillness()
    heart.start()
    playing: list[Party] = []
    begin: list[dict[str, Any]] = []
    ready = threading.Semaphore(0)

    def listen() -> None:
        for line in sys.stdin:
            message = json.loads(line)
            if "hear" in message:
                if playing:
                    playing[0].hear(message["hear"], message.get("value"))
            elif "has" in message:
                if was_interrupted:
                    gc.collect()
                say({"has": has()})
            else:
                begin.append(message)
                ready.release()
        os._exit(0)

    threading.Thread(target=listen, name="faults-ears", daemon=True).start()
    while True:
        ready.acquire()
        order = begin.pop(0)
        if "close" in order:
            registry().close()
            say({"closed": True})
            continue
        heart.longest, was_interrupted = 0.0, False
        routes.update(order["routes"])
        configure({"default": order["store"], "near": order["near"]})
        party = Party(order["name"], order["mode"], "default", order["key"], order["lease"], say, order["database"])
        playing[:] = [party]
        say({"ready": True})
        party.harness.run(party.play(SCENARIOS[order["scenario"]].parts[order["name"]]))
        say({"still": heart.longest})


if __name__ == "__main__":
    main()
