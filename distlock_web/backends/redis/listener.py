"""The listener: one connection per process wakes every waiter of it, in threads and event loops alike.

The release script publishes a waiter's token on its process's channel. A thread that waits reads the connection
itself, for all waiters, and hands the reading on when it leaves: so its own news reaches it without a switch of
threads. Where only tasks of event loops wait, the listener's own thread reads. That thread opens the connection with
the first wait, again when it breaks, and closes it some seconds after the last one.

A message that is lost costs a waiter at most the holder's lease, for nobody sleeps longer than that.
"""

from __future__ import annotations

import logging
import threading

import hiredis
from redis.exceptions import RedisError

from ...core.errors import BackendUnavailable, DistLockError
from ...core.runtime import THREADS, Parker, Runtime, now
from .errors import Refused, translated
from .options import Address
from .subscription import SILENCE, News, Subscription

logger = logging.getLogger("distlock_web")

#: Seconds without any waiter after which connection and thread end: to open them again costs more.
LINGER = 5.0
#: Seconds between two attempts to connect again.
PAUSE = 0.2

_FAILURES = (OSError, RedisError, Refused, hiredis.HiredisError)


class Waiter:
    """One waiter of this process: where it sleeps, what it last heard from the store, and its good news."""

    __slots__ = ("asked", "granted", "lead", "parker", "runtime", "told", "woken")

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.parker: Parker = runtime.parker()
        self.asked = 0.0  #: our clock before the last question was sent
        self.told = 0  #: the store's clock, µs, in the answer to it
        self.granted: tuple[int, int] | None = None  #: the lock is ours: its fence, and since when by the store's clock
        self.woken = False  #: the store, or a new connection to it, says: now
        self.lead = False  #: asked to go on reading for the others

    def wake(self) -> None:
        self.woken = True
        self.parker.unpark()


class Listener:
    def __init__(self, address: Address) -> None:
        self._address = address
        self._changed = threading.Condition()
        self._reading = threading.Lock()  # held by whoever reads the connection
        self._waiters: dict[str, Waiter] = {}
        # Those whose question is on its way, for the answer may be overtaken by the news: at which opening of the
        # connection they asked, or the news. Most get the lock at once and never wait.
        self._asking: dict[str, int | tuple[int, int] | None] = {}
        self._opened = 0
        self._starting: list[Parker] = []  # those who wait for the connection
        self._subscription: Subscription | None = None
        self._thread: threading.Thread | None = None
        self._error: DistLockError | None = None
        self._down = False
        self._last_wait = 0.0

    # For the ports -----------------------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Subscribed: whoever joins a queue now will hear of its turn."""
        return self._subscription is not None

    def expect(self, token: str) -> None:
        """A question goes out that may put this token into a queue."""
        self._asking[token] = self._opened

    def join(self, token: str, runtime: Runtime) -> Waiter:
        """This token is in a queue. It is awake already if there was news meanwhile, or a new connection."""
        waiter = self._waiters.get(token)
        if waiter is None:
            waiter = Waiter(runtime)
            with self._changed:
                early = self._asking.pop(token, self._opened)
                waiter.granted = early if isinstance(early, tuple) else None
                waiter.woken = early != self._opened
                self._waiters[token] = waiter
        return waiter

    def remove(self, token: str) -> None:
        """This token waits no longer."""
        self._asking.pop(token, None)
        waiter = self._waiters.pop(token, None)
        if waiter is not None:
            self._last_wait = now()
            if waiter.lead or (self._waiters and not self._reading.locked()):
                self._pass_on(waiter)

    async def listen(self, runtime: Runtime) -> None:
        """Return when the subscription stands. Raises ``BackendUnavailable`` within the connect and answer timeouts."""
        parker = runtime.parker()
        with self._changed:
            if self.ready:
                return
            self._error = None
            self._starting.append(parker)
            self._start()
        kwargs = self._address.kwargs
        try:
            await parker.park(kwargs["socket_connect_timeout"] + 2 * kwargs["socket_timeout"])
        finally:
            with self._changed:
                if parker in self._starting:  # gone, or too late: the thread must not stay for it
                    self._starting.remove(parker)
        if not self.ready:
            raise self._error or BackendUnavailable(f"{self._address.name} did not confirm a subscription in time.")

    async def sleep(self, waiter: Waiter, seconds: float) -> bool:
        """Sleep until the store wakes us (True) or the time is over (False), reading for everybody if nobody does."""
        until = now() + seconds
        try:
            while not waiter.woken:
                left = until - now()
                if left <= 0:
                    return False
                if waiter.runtime is THREADS and self.ready and self._reading.acquire(blocking=False):
                    self._read_as(waiter, until)
                else:
                    self._call_for_reader(waiter)
                    await waiter.parker.park(left)
            waiter.woken = False
            return True
        finally:
            if waiter.lead:
                self._pass_on(waiter)

    def close(self) -> None:
        with self._changed:
            self._waiters.clear()
            self._asking.clear()
            self._last_wait = 0.0
            if self._subscription is not None:
                self._subscription.shut()  # whoever reads stops
            self._changed.notify()

    # Reading -----------------------------------------------------------------------------------------------------

    def _read_as(self, waiter: Waiter, until: float) -> None:
        """Read until this waiter is woken or its time is over. Called with the reading lock, and gives it up."""
        try:
            while not waiter.woken and (left := until - now()) > 0 and self._subscription is not None:
                self._deliver(self._subscription.read(left))
        except _FAILURES as error:
            self._broken(error)
        finally:
            self._reading.release()
            self._pass_on(waiter)

    def _deliver(self, news: list[News]) -> None:
        for item in news:
            with self._changed:
                waiter = self._waiters.get(item.token)
                if waiter is None and item.token in self._asking:
                    self._asking[item.token] = item.granted  # None, ask again: another value than any opening's
            if waiter is not None:
                waiter.granted = item.granted
                waiter.wake()

    def _pass_on(self, leaving: Waiter) -> None:
        """A reader leaves: another thread that waits goes on; where only tasks wait, our own thread."""
        leaving.lead = False
        others = [waiter for waiter in list(self._waiters.values()) if waiter is not leaving]
        for waiter in others:
            if waiter.runtime is THREADS:
                waiter.lead = True
                waiter.parker.unpark()
                return
        if others:
            with self._changed:
                self._start()

    def _call_for_reader(self, waiter: Waiter) -> None:
        if not self.ready or (waiter.runtime is not THREADS and not self._reading.locked()):
            with self._changed:
                self._start()

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="distlock-listener", daemon=True)
            self._thread.start()
        self._changed.notify()

    def _broken(self, error: BaseException) -> None:
        """The connection has failed under a reader: our thread opens another, and then everybody asks again."""
        with self._changed:
            subscription, self._subscription = self._subscription, None
            self._changed.notify()
        if subscription is not None:
            subscription.close()
        if self._waiters:
            logger.warning("The listener for locks lost its connection: %s", translated(error, self._address.name))

    # The thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._idle():
                    return
                if self._subscription is not None and not self._wanted():
                    self._changed.wait(LINGER)
                    continue
            if self._subscription is None:
                if not self._subscribe():
                    return
            elif self._reading.acquire(blocking=False):
                try:
                    self._read_for_tasks()
                finally:
                    self._reading.release()

    def _subscribe(self) -> bool:
        """Open the connection and wake all who wait for it. False: it failed, and nobody is left to try again for."""
        while True:
            try:
                subscription = Subscription(self._address)
            except _FAILURES as error:
                if not self._failed(translated(error, self._address.name)):
                    return False
                threading.Event().wait(PAUSE)
                continue
            with self._changed:
                self._subscription, self._down = subscription, False
                self._opened += 1
                starting, self._starting = self._starting, []
                # What was published while nobody listened is lost: everybody asks again.
                for parker in starting:
                    parker.unpark()
                for waiter in list(self._waiters.values()):
                    waiter.wake()
            return True

    def _failed(self, error: DistLockError) -> bool:
        """Tell those who start. True: some wait in a queue, and want another attempt."""
        with self._changed:
            self._error = error
            starting, self._starting = self._starting, []
            waiting = list(self._waiters.values())
            first, self._down = not self._down, True
            if not waiting:
                self._thread = None
        for parker in starting:
            parker.unpark()
        if first:  # they find out by themselves how long the store is away, and need not sleep for a lease before that
            for waiter in waiting:
                waiter.wake()
        return bool(waiting)

    def _idle(self) -> bool:
        """Nobody has waited for a while: end, unless somebody comes at this very moment."""
        if self._waiters or self._asking or self._starting or now() - self._last_wait < LINGER:
            return False
        subscription, self._subscription = self._subscription, None
        self._thread = None
        if subscription is not None:
            subscription.close()
        return True

    def _wanted(self) -> bool:
        """Whether only tasks wait, and nobody reads for them."""
        return (
            bool(self._waiters)
            and not self._reading.locked()
            and not any(waiter.runtime is THREADS for waiter in self._waiters.values())
        )

    def _read_for_tasks(self) -> None:
        try:
            while self._waiters and self._subscription is not None:
                self._deliver(self._subscription.read(SILENCE))
        except _FAILURES as error:
            self._broken(error)
