"""The listener: one connection per process wakes every waiter of it, in threads and event loops alike.

The release script publishes a waiter's token on its process's channel. A thread that waits reads the connection
itself, for all waiters, and another is appointed when it leaves: so its own news reaches it without a switch of
threads. Where only tasks of event loops wait, the listener's own thread reads. That thread opens the connection with
the first wait, again when it breaks, and closes it some seconds after the last one.

A message that is lost costs a waiter about a lease, for nobody sleeps longer than the holder's and its own.
"""

from __future__ import annotations

import logging
import threading
from typing import Literal, TypeAlias

from ....core.errors import BackendUnavailable, DistLockError
from ....core.runtime import THREADS, Parker, Runtime, now
from .address import Address
from .errors import translated
from .subscription import PING_AFTER, Grant, Notification, Subscription

logger = logging.getLogger("distlock_web")

#: Seconds without any waiter after which connection and thread end: to open them again costs more.
IDLE_TIMEOUT = 5.0
#: Seconds between two attempts to connect again.
PAUSE = 0.2


class Waiter:
    """One waiter of this process: where it sleeps, what it last heard from the store, and its good news."""

    __slots__ = ("asleep", "granted", "parker", "runtime", "sent_at", "server_time_us", "woken")

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.parker: Parker = runtime.parker()
        self.sent_at = 0.0  #: our clock before the last question was sent
        self.server_time_us = 0  #: the store's clock, µs, in the answer to it
        self.granted: Grant | None = None
        self.woken = False  #: by the store, by a new connection to it, or by its end: ask
        self.asleep = False

    def wake(self) -> None:
        self.woken = True
        self.parker.unpark()


class _PendingAcquire:
    """A token whose question is on its way: the news may overtake the answer."""

    __slots__ = ("connection", "news")

    def __init__(self, connection: int) -> None:
        self.connection = connection  #: which one was open
        self.news: Notification | None = None


#: Who reads the connection: a thread that waits, or the listener's own thread, or nobody.
_Reader: TypeAlias = "Waiter | Literal['own'] | None"


class Listener:
    """All of its state changes under one condition; the connection is read outside of it, by one reader at a time."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._changed = threading.Condition()
        self._waiters: dict[str, Waiter] = {}
        self._asking: dict[str, _PendingAcquire] = {}  # most of them get the lock at once and never wait
        self._starting: list[Parker] = []  # those who wait for the connection
        self._reader: _Reader = None
        self._subscription: Subscription | None = None
        self._connections = 0
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
        self._asking[token] = _PendingAcquire(self._connections)

    def join(self, token: str, runtime: Runtime) -> Waiter:
        """This token is in a queue. It is awake already if there was news meanwhile, or a new connection."""
        waiter = self._waiters.get(token)
        if waiter is None:
            waiter = Waiter(runtime)
            with self._changed:
                asking = self._asking.pop(token, None)
                if asking is not None:
                    waiter.granted = asking.news.grant if asking.news else None
                    waiter.woken = asking.news is not None or asking.connection != self._connections
                self._waiters[token] = waiter
        return waiter

    def remove(self, token: str) -> None:
        """This token waits no longer."""
        self._asking.pop(token, None)
        if token in self._waiters:
            with self._changed:
                self._waiters.pop(token, None)
                self._last_wait = now()

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
        """Sleep until there is something to ask or to hear (True) or the time is over (False)."""
        until = now() + seconds
        with self._changed:
            waiter.asleep = True
            self._appoint()
        try:
            while not waiter.woken and (left := until - now()) > 0:
                if self._reader is waiter:
                    self._read_as(waiter, until)
                else:
                    await waiter.parker.park(left)
        finally:
            with self._changed:
                woken, waiter.woken, waiter.asleep = waiter.woken, False, False
                self._dismiss(waiter)
        return woken

    def close(self) -> None:
        """Let go of the connection. Whoever waits asks by itself, and opens another if it has to go on waiting."""
        with self._changed:
            self._last_wait = 0.0
            if self._subscription is not None:
                self._subscription.shut()  # whoever reads stops
            self._asking.clear()
            self._waiters = {token: waiter for token, waiter in self._waiters.items() if waiter.asleep}
            for waiter in self._waiters.values():
                waiter.wake()
            self._changed.notify_all()

    # Who reads: under the condition ------------------------------------------------------------------------------

    def _appoint(self) -> None:
        """See to it that somebody reads if anybody sleeps: one of the threads that do; for tasks alone, our own."""
        if self._reader is not None:
            return
        sleepers = [waiter for waiter in self._waiters.values() if waiter.asleep]
        if not sleepers:
            return
        if self._subscription is None:
            self._start()
            return
        self._reader = next((waiter for waiter in sleepers if waiter.runtime is THREADS), "own")
        if isinstance(self._reader, Waiter):
            self._reader.parker.unpark()
        else:
            self._start()

    def _dismiss(self, reader: _Reader) -> None:
        """This one reads no longer: another is appointed."""
        if self._reader is reader:
            self._reader = None
            self._appoint()

    def _start(self) -> None:
        """Wake our own thread, or start it."""
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="distlock-listener", daemon=True)
            thread.start()  # may raise, where the system has no more threads: the next one tries again
            self._thread = thread
        self._changed.notify_all()

    # Reading -----------------------------------------------------------------------------------------------------

    def _read_as(self, waiter: Waiter, until: float) -> None:
        """Read for everybody until this waiter is woken or its time is over."""
        try:
            while not waiter.woken and (left := until - now()) > 0 and (subscription := self._subscription):
                self._deliver(subscription.read(left))
        except Exception as error:
            self._broken(error)

    def _read_for_tasks(self) -> None:
        try:
            while self._waiters and (subscription := self._subscription):
                self._deliver(subscription.read(PING_AFTER))
        except Exception as error:
            self._broken(error)
        with self._changed:
            self._dismiss("own")

    def _deliver(self, news: list[Notification]) -> None:
        with self._changed:
            for item in news:
                waiter, asking = self._waiters.get(item.token), self._asking.get(item.token)
                if waiter is not None:
                    waiter.granted = item.grant
                    waiter.wake()
                elif asking is not None:
                    asking.news = item

    def _broken(self, error: BaseException) -> None:
        """The connection has failed under its reader: our thread opens another, and then everybody asks again."""
        with self._changed:
            subscription, self._subscription, self._reader = self._subscription, None, None
            if self._waiters:
                logger.warning("The listener for locks lost its connection: %s", translated(error, self._address.name))
                self._start()
        if subscription is not None:
            subscription.close()

    # Our own thread ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._idle():
                    return
                connected, reading = self._subscription is not None, self._reader == "own"
                if connected and not reading:
                    self._changed.wait(IDLE_TIMEOUT)
                    continue
            if connected:
                self._read_for_tasks()
            elif not self._subscribe():
                return

    def _idle(self) -> bool:
        """Nobody has waited for a while: end."""
        if self._waiters or self._asking or self._starting or now() - self._last_wait < IDLE_TIMEOUT:
            return False
        subscription, self._subscription = self._subscription, None
        self._thread = self._reader = None
        if subscription is not None:
            subscription.close()
        return True

    def _subscribe(self) -> bool:
        """Open the connection and wake all who wait for it. False: it failed, and nobody is left to try again for."""
        try:
            subscription = Subscription(self._address)
        except Exception as error:
            if self._failed(translated(error, self._address.name)):
                threading.Event().wait(PAUSE)
                return True
            return False
        with self._changed:
            self._subscription, self._down = subscription, False
            self._connections += 1
            for parker in self._starting:
                parker.unpark()
            self._starting.clear()
            # What was published while nobody listened is lost: everybody asks again.
            for waiter in self._waiters.values():
                waiter.wake()
            self._appoint()
        return True

    def _failed(self, error: DistLockError) -> bool:
        """Tell those who start. True: some wait in a queue, and want another attempt."""
        with self._changed:
            self._error = error
            for parker in self._starting:
                parker.unpark()
            self._starting.clear()
            if not self._down:  # those who wait learn by themselves how long it is away, without sleeping before that
                for waiter in self._waiters.values():
                    waiter.wake()
            self._down = bool(self._waiters)
            if not self._waiters:
                self._thread = None
            return self._down
