"""The listener: one connection per process wakes every waiter of it, in threads and event loops alike.

The script that hands a lock over publishes so on the channel of the waiter's process. A thread that waits reads the
connection itself, for all waiters, so that its own message reaches it without a switch of threads; where only tasks of
event loops wait, the listener's own thread reads. That thread also opens the connection with the first wait, again when
it breaks, sees to it that somebody reads, and closes it some seconds after the last wait.

Nothing here is believed for long. A message that is lost costs a waiter about a lease, for nobody sleeps longer than
that; a reader that is interrupted (a signal's exception may come anywhere) gives its connection up, and everybody asks.
State is plain attributes and dictionaries, changed in single steps: there is no mutex that could stay locked.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from ....core.backend import Claim
from ....core.errors import BackendUnavailable, DistLockError
from ....core.runtime import IDENT_DIGITS, THREADS, Parker, Runtime, ThreadParker, drive, now
from ....core.worker import start_thread
from .address import Address
from .errors import translated
from .subscription import Subscription
from .waiter import ReceivedGrant, Waiter

logger = logging.getLogger("distlock_web")

#: Seconds without any waiter after which connection and thread end: to open them again costs more.
IDLE_TIMEOUT = 5.0
#: Seconds between two attempts to connect again.
RECONNECT_AFTER = 0.2
#: Seconds that a reader waits for data at a time: about so much sooner than it was read a message may have come.
POLL = 0.05
#: Seconds after which a reader that does not poll has been lost.
READER_LOST = 1.0
#: Seconds between two reconnections for which the only reason is that the server knows of no listener here.
UNHEARD_AGAIN_AFTER = 5.0
#: Seconds between two looks of the listener's own thread at who reads and who still waits.
SUPERVISE_EVERY = 0.5
#: Tokens that are remembered as given up, and for how many seconds: their place in a queue may have outlived that.
GIVEN_UP_KEPT = 5000
GIVEN_UP_FOR = 3600.0


class Listener:
    def __init__(self, address: Address, give_up: Callable[[Claim, int], None]) -> None:
        self._address = address
        self._give_up = give_up  #: what somebody asked for who has gone; with a fence: that grant alone
        self._waiters: dict[str, Waiter] = {}
        self._given_up: dict[str, float] = {}  # tokens, and when each was; the oldest first
        self._threads_asleep: dict[Waiter, None] = {}
        self._starting: dict[Parker, None] = {}  # those who wait for the connection
        self._reader_lock = threading.Lock()  # who has it reads
        self._polled = 0.0
        self._last_empty_poll = 0.0  # when there was nothing to read, for the last time
        self._ident = ""  # of the store that this is a part of: what the tokens of its waiters begin with
        self._subscription: Subscription | None = None
        self._connections = 0
        self._thread: threading.Thread | None = None
        self._thread_start = threading.RLock()
        self._wakeup = ThreadParker()  # no Event: a signal inside of its set() would leave it locked
        self._error: DistLockError | None = None
        self._down = False
        self._last_wait = self._supervised_at = self._unheard_at = 0.0

    # For the port ------------------------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Subscribed: whoever joins a queue now will hear of its turn."""
        return self._subscription is not None

    def expect(self, claim: Claim, runtime: Runtime) -> Waiter:
        """A question goes out that may put this claim into a queue; the message may be here before the answer."""
        waiter = self._waiters.get(claim.token)
        if waiter is None:
            self._ident = claim.token[:IDENT_DIGITS]
            waiter = self._waiters[claim.token] = Waiter(claim, runtime, self._connections)
        else:
            waiter.connection = self._connections
        return waiter

    def may_be_queued(self, token: str) -> bool:
        """Whether it was told that it has a place in the queue."""
        waiter = self._waiters.get(token)
        return waiter is not None and waiter.sent_at is not None

    def remove(self, token: str) -> None:
        """This token waits no longer."""
        if self._waiters.pop(token, None) is not None:
            self._last_wait = now()
        self._given_up.pop(token, None)

    def gave_up(self, token: str) -> None:
        """The same, and whatever it is handed from now on is to be given back: the cancel that says so may be lost."""
        self.remove(token)
        self._given_up[token] = now()
        if len(self._given_up) > 2 * GIVEN_UP_KEPT:
            for old in list(self._given_up)[:GIVEN_UP_KEPT]:
                self._given_up.pop(old, None)

    async def listen(self, runtime: Runtime) -> None:
        """Return when the subscription stands. Raises ``BackendUnavailable`` within the connect and answer timeouts."""
        parker = runtime.parker()
        self._error = None
        self._starting[parker] = None
        try:
            self._ensure_thread()
            if not self.ready:
                kwargs = self._address.kwargs
                await parker.park(kwargs["socket_connect_timeout"] + 2 * kwargs["socket_timeout"])
        finally:
            self._starting.pop(parker, None)
        if not self.ready:
            raise self._error or BackendUnavailable(f"{self._address.name} did not confirm a subscription in time.")

    async def sleep(self, waiter: Waiter, seconds: float) -> bool:
        """Sleep until there is something to ask or to hear (True) or the time is over (False)."""
        until = now() + seconds
        parker = waiter.parker = waiter.parker or waiter.runtime.parker()
        is_thread = waiter.runtime is THREADS
        try:
            if is_thread:
                if not self._threads_asleep:
                    self._polled = now()  # until now nobody had to read
                self._threads_asleep[waiter] = None
            self._ensure_thread()
            while not waiter.woken and (left := until - now()) > 0:
                if not (is_thread and self._read_as(waiter, until)):
                    await parker.park(left)
        finally:
            self._threads_asleep.pop(waiter, None)
            if not self._reader_lock.locked():  # it has read, or was to read next
                self._wake_next_reader()
            woken, waiter.woken = waiter.woken, False
        return woken

    def reconnect_if_unheard(self, waiter: Waiter) -> None:
        """The server that was asked knows of no listener here: ours stayed with another one (a failover behind it)."""
        if waiter.connection == self._connections and now() - self._unheard_at > UNHEARD_AGAIN_AFTER:
            self._unheard_at = now()
            self.reconnect()

    def ask_again(self, concerned: Callable[[Claim], bool]) -> None:
        """Wake those whose lock this is about: what they wait for has gone elsewhere."""
        for waiter in list(self._waiters.values()):
            if concerned(waiter.claim):
                waiter.wake()

    def reconnect(self) -> None:
        """Let go of the connection. Whoever waits asks, and opens another if it has to go on waiting."""
        self._broken(self._subscription, None)

    def close(self) -> None:
        """Let go of connection and thread. Whoever goes on waiting is woken, asks, and registers anew."""
        self._last_wait = 0.0
        waiters, self._waiters = self._waiters, {}
        for waiter in waiters.values():
            waiter.wake()
        self.reconnect()
        self._wakeup.unpark()

    # Reading -----------------------------------------------------------------------------------------------------

    def _read_as(self, waiter: Waiter, until: float) -> bool:
        """Read for everybody until this waiter is woken or its time is over. False: somebody else does, or none can."""
        subscription, reader_lock = self._subscription, self._reader_lock
        if subscription is None or not reader_lock.acquire(blocking=False):
            return False
        try:
            while not waiter.woken and (left := until - now()) > 0 and self._subscription is subscription:
                self._deliver(subscription, min(left, POLL))
        except BaseException as error:
            # Also an interruption: what was read and not delivered is lost, so everybody has to ask.
            self._broken(subscription, error)
            if not isinstance(error, Exception):
                raise
        finally:
            reader_lock.release()
        return True

    def _wake_next_reader(self) -> None:
        """Wake one of the threads that sleep, so that it reads; where there is none, the listener's own."""
        for waiter in list(self._threads_asleep):
            if not waiter.woken and waiter.parker is not None:
                waiter.parker.unpark()
                return
        if self._waiters:
            self._wakeup.unpark()

    def _read_for_tasks(self) -> None:
        subscription, reader_lock = self._subscription, self._reader_lock
        if subscription is None or self._threads_asleep or not reader_lock.acquire(blocking=False):
            return
        try:
            while self._waiters and not self._threads_asleep and self._subscription is subscription:
                self._deliver(subscription, POLL)
                if self._polled - self._supervised_at > SUPERVISE_EVERY:
                    return
        except Exception as error:
            self._broken(subscription, error)
        finally:
            reader_lock.release()
            self._wake_next_reader()

    def _deliver(self, subscription: Subscription, seconds: float) -> None:
        connection = self._connections
        begun = self._polled = now()
        if begun - self._last_empty_poll > 2 * POLL and not subscription.pending():
            self._last_empty_poll = begun  # many messages and no pause among them would leave it far behind
        notification = subscription.read(seconds)
        if notification is None:
            self._last_empty_poll = begun
            return
        waiter = self._waiters.get(notification.token)
        if waiter is None:
            # Of one that is merely unknown it is no news: it was told by the answer to its question, or it waits at
            # another subscriber of this channel: a copy of this machine, the same node under another address.
            given_up = self._given_up.get(notification.token)
            if given_up is not None and notification.grant is not None and now() - given_up < GIVEN_UP_FOR:
                self._give_up(Claim(notification.name, notification.token, 0.0), notification.grant.fence)
            return
        if waiter.abandoned:
            self._give_up_for(notification.token)
            return
        if notification.grant is not None:
            waiter.news = ReceivedGrant(notification.grant, connection, self._last_empty_poll)
        waiter.wake()

    def _give_up_for(self, token: str) -> None:
        """This waiter has gone without a word: its place, or what it was handed, goes on to the next."""
        waiter = self._waiters.pop(token, None)
        if waiter is not None:
            self._give_up(waiter.claim, 0)

    def _broken(self, subscription: Subscription | None, error: BaseException | None) -> None:
        """The connection is not to be used any more: our thread opens another, and everybody asks again."""
        if subscription is None or self._subscription is not subscription:
            return
        try:
            subscription.close()  # before there is another: of a grant that came over both the second would be nobody's
        finally:
            if self._subscription is subscription:
                self._subscription = None
        if isinstance(error, Exception) and self._waiters:
            logger.warning("The listener for locks lost its connection: %s", translated(error, self._address))
        for waiter in list(self._waiters.values()):
            waiter.wake()
        self._wakeup.unpark()

    # Our own thread ----------------------------------------------------------------------------------------------

    def _ensure_thread(self) -> None:
        thread = self._thread
        if thread is None or not thread.is_alive():
            with self._thread_start:  # two threads would open two connections
                if self._thread is None or not self._thread.is_alive():
                    # It may raise, where the system has no more threads: the next one tries again.
                    self._thread = start_thread("distlock-listener", self._run)
        if self._subscription is None or not self._threads_asleep:
            self._wakeup.unpark()

    def _run(self) -> None:
        self._supervised_at = now()
        while not self._ended():
            if self._subscription is None:
                if self._waiters or self._starting:
                    self._subscribe()
                    continue
            else:
                self._read_for_tasks()
                self._supervised_at = now()
                self._supervise()
            reads = self._waiters and not self._threads_asleep and not self._reader_lock.locked()
            if not reads or self._subscription is None:
                drive(self._wakeup.park(SUPERVISE_EVERY))

    def _supervise(self) -> None:
        """See to it that somebody reads, and that nobody is waited for who has gone with its event loop."""
        to_read = self._threads_asleep or (self._waiters and self._reader_lock.locked())
        if to_read and now() - self._polled > READER_LOST:
            # Interrupted between taking the lock and reading, or stopped with the whole process.
            self._reader_lock = threading.Lock()
            self._broken(self._subscription, None)
        for token, waiter in list(self._waiters.items()):
            if waiter.abandoned:
                self._give_up_for(token)

    def _ended(self) -> bool:
        """Nobody has waited for a while: end."""
        with self._thread_start:
            if self._waiters or self._starting or now() - self._last_wait < IDLE_TIMEOUT:
                return False
            subscription, self._subscription, self._thread = self._subscription, None, None
        if subscription is not None:
            subscription.close()
        return True

    def _subscribe(self) -> None:
        """Open the connection and wake all who wait for it; where that fails, tell them why."""
        begun = now()
        try:
            subscription = Subscription(self._address, self._ident)
        except Exception as error:
            self._error = translated(error, self._address)
            if not self._down:  # those who wait learn by themselves how long it lasts, without sleeping before that
                for waiter in list(self._waiters.values()):
                    waiter.wake()
            self._down = bool(self._waiters)
            self._wake_starting()
            if self._waiters:
                time.sleep(RECONNECT_AFTER)
            return
        self._connections += 1
        self._subscription, self._down = subscription, False
        self._polled, self._last_empty_poll = now(), begun
        self._wake_starting()
        # What was published while nobody listened is lost: everybody asks again.
        for waiter in list(self._waiters.values()):
            waiter.wake()

    def _wake_starting(self) -> None:
        for parker in list(self._starting):
            self._starting.pop(parker, None)
            parker.unpark()
