"""The listener: one connection per process wakes every waiter of it, in threads and event loops alike.

The script that hands a lock over publishes so on the channel of the waiter's process. A thread of ours opens the
connection with the first wait, reads it for all, opens it again when it breaks, and closes it some seconds after
the last wait. A thread that waits alone reads for itself: that spares a switch of threads, most of what a hand-over
costs here.

Nothing here is believed for long. A message that is lost costs a waiter about a lease, for none sleeps longer than
that; a reader that is interrupted (a signal's exception may come anywhere) lets go of the connection, and everybody
asks. State is plain attributes and dictionaries, changed in single steps: no thread waits for a mutex that could stay
locked.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from ....core.backend import Claim
from ....core.errors import BackendUnavailable, DistLockError
from ....core.runtime import Parker, Runtime, Token, now
from ....core.worker import Worker
from .address import RedisAddress
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
#: The same where it only looks whether there is something.
AT_ONCE = 0.0
#: Seconds between two reconnections for which the only reason is that the server knows of no listener here.
UNHEARD_AGAIN_AFTER = 5.0
#: Seconds between two looks at who still waits, and reads.
SUPERVISE_EVERY = 0.5
#: Seconds after which a reader that does not look has been lost.
READER_LOST = 2.0
#: Tokens that are remembered as given up, and for how many seconds: their place in a queue may have outlived that.
GIVEN_UP_KEPT = 5000
GIVEN_UP_FOR = 3600.0


class Listener:
    def __init__(self, address: RedisAddress, give_up: Callable[[Claim, int], None]) -> None:
        self._address = address
        self._give_up = give_up  #: what a caller asked for that has gone; with a fence: that grant alone
        self.waiters: dict[str, Waiter] = {}  #: by token
        self._given_up: dict[str, float] = {}  # tokens, and when each was; the oldest first
        self._starting: dict[Parker, None] = {}  # those who wait for the connection
        self._last_empty_poll = 0.0  # when there was nothing to read, for the last time
        self._ident = ""  # of the store that this is a part of: what the tokens of its waiters begin with
        self._subscription: Subscription | None = None
        self._connections = 0
        self._error: DistLockError | None = None
        self._down = False
        self._last_wait = self._supervised_at = self._unheard_at = 0.0
        self._worker = Worker("distlock-listener", self._step, self._is_left)

    # For the port ------------------------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Subscribed: a waiter that joins a queue now will hear of its turn."""
        return self._subscription is not None

    def expect(self, claim: Claim, runtime: Runtime) -> Waiter:
        """A question goes out that may put this claim into a queue; the message may be here before the answer."""
        waiter = self.waiters.get(claim.token)
        if waiter is None:
            self._ident = claim.token.store
            waiter = self.waiters[claim.token] = Waiter(claim, runtime, self._connections)
        else:
            waiter.connection = self._connections
        return waiter

    def remove(self, token: str) -> None:
        """This token waits no longer."""
        if self.waiters.pop(token, None) is not None:
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
            if self._worker.start() and not self.ready:
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
        self._worker.start()
        try:
            while not waiter.woken and (left := until - now()) > 0:
                subscription = self._subscription if self._alone() is waiter else None
                if subscription is None or not self._read(subscription, min(left, POLL)):
                    self._worker.wake()  # it is to read
                    await parker.park(left)
        finally:
            if len(self.waiters) > 1:  # who came while this one has read
                self._worker.wake()
        woken, waiter.woken = waiter.woken, False
        return woken

    def reconnect_if_unheard(self, waiter: Waiter) -> None:
        """The server that was asked knows of no listener here: ours stayed with another one (a failover behind it)."""
        if waiter.connection == self._connections and now() - self._unheard_at > UNHEARD_AGAIN_AFTER:
            self._unheard_at = now()
            self.reconnect()

    def ask_again(self, concerned: Callable[[Claim], bool]) -> None:
        """Wake those whose lock this is about: what they wait for has gone elsewhere."""
        for waiter in list(self.waiters.values()):
            if concerned(waiter.claim):
                waiter.wake()

    def reconnect(self) -> None:
        """Let go of the connection. Each waiter asks, and opens another if it has to go on waiting."""
        self._broken(self._subscription, None)

    def close(self) -> None:
        """Let go of connection and thread. Each waiter is woken, asks, and registers anew."""
        self._last_wait = 0.0
        waiters, self.waiters = self.waiters, {}
        for waiter in waiters.values():
            waiter.wake()
        self.reconnect()

    # Reading -----------------------------------------------------------------------------------------------------

    def _alone(self) -> Waiter | None:
        """The only one who waits, if that is a thread: it reads for itself, as soon as it sleeps."""
        waiters = list(self.waiters.values()) if len(self.waiters) == 1 else []
        return waiters[0] if len(waiters) == 1 and waiters[0].loop is None else None

    def _read(self, subscription: Subscription, seconds: float) -> bool:
        """Read what comes first within so many seconds, for all who wait. False: another one reads."""
        if not subscription.turn.acquire(blocking=False):
            self._give_up_a_lost_reader(subscription)
            return False
        try:
            self._deliver(subscription, seconds)
        except BaseException as error:
            # Also an interruption: what was read and not delivered is lost, so everybody has to ask.
            self._broken(subscription, error)
            if not isinstance(error, Exception):
                raise
        finally:
            subscription.turn.release()
        return True

    def _give_up_a_lost_reader(self, subscription: Subscription) -> None:
        """One that was interrupted between taking its turn and reading."""
        if now() - subscription.looked_at > READER_LOST:
            self._broken(subscription, None)

    # Our own thread ----------------------------------------------------------------------------------------------

    def _is_left(self) -> bool:
        return bool(self.waiters or self._starting) or self._subscription is not None

    def _step(self) -> float:
        subscription = self._subscription
        if subscription is None:
            return self._subscribe()
        if not self.waiters and now() - self._last_wait > IDLE_TIMEOUT:
            self._broken(subscription, None)
            return 0.0
        if now() - self._supervised_at > SUPERVISE_EVERY:
            self._supervised_at = now()
            for token, waiter in list(self.waiters.items()):
                if waiter.abandoned:
                    self._give_up_for(token)
        alone = self._alone()
        if alone is None and self._read(subscription, POLL if self.waiters else AT_ONCE) and self.waiters:
            return 0.0
        if subscription.turn.locked():  # it reads, or none does: to wake it would be a race without an end
            self._give_up_a_lost_reader(subscription)
        elif alone is not None and alone.parker is not None:
            alone.parker.unpark()  # from now on it reads
        return SUPERVISE_EVERY

    def _subscribe(self) -> float:
        """Open the connection and wake all who wait for it; where that fails, tell them why."""
        begun = now()
        try:
            subscription = Subscription(self._address, self._ident)
        except Exception as error:
            self._error = translated(error, self._address)
            if not self._down:  # those who wait learn by themselves how long it lasts, without sleeping before that
                for waiter in list(self.waiters.values()):
                    waiter.wake()
            self._down = bool(self.waiters)
            self._wake_starting()
            return RECONNECT_AFTER if self.waiters else 0.0
        self._connections += 1
        self._subscription, self._down = subscription, False
        self._last_wait, self._last_empty_poll = now(), begun
        self._wake_starting()
        # What was published meanwhile is lost: every waiter asks again.
        for waiter in list(self.waiters.values()):
            waiter.wake()
        return 0.0

    def _wake_starting(self) -> None:
        for parker in list(self._starting):
            self._starting.pop(parker, None)
            parker.unpark()

    def _deliver(self, subscription: Subscription, seconds: float) -> None:
        connection = self._connections
        begun = subscription.looked_at = now()
        # Many messages and no pause among them would leave it far behind.
        late = begun - self._last_empty_poll > 2 * POLL
        notification = subscription.read(AT_ONCE if late else seconds)
        if notification is None:
            self._last_empty_poll = begun
            return
        waiter = self.waiters.get(notification.token)
        if waiter is None:
            # Of one that is merely unknown it is no news: it was told by the answer to its question, or it waits at
            # another subscriber of this channel: a copy of this machine, the same node under another address.
            given_up = self._given_up.get(notification.token)
            if given_up is not None and notification.grant is not None and now() - given_up < GIVEN_UP_FOR:
                self._give_up(Claim(notification.name, Token(notification.token), 0.0), notification.grant.fence)
            return
        if waiter.abandoned:
            self._give_up_for(notification.token)
            return
        if notification.grant is not None:
            waiter.news = ReceivedGrant(notification.grant, connection, self._last_empty_poll)
        waiter.wake()

    def _give_up_for(self, token: str) -> None:
        """This waiter has gone without a word: its place, or what it was handed, goes on to the next."""
        waiter = self.waiters.pop(token, None)
        if waiter is not None:
            self._give_up(waiter.claim, 0)

    def _broken(self, subscription: Subscription | None, error: BaseException | None) -> None:
        """The connection is not to be used any more: our thread opens another, and everybody asks again."""
        if subscription is None or self._subscription is not subscription:
            return
        try:
            subscription.close()  # before there is another: of a grant that came over both the second would be lost
        finally:
            if self._subscription is subscription:
                self._subscription = None
        if isinstance(error, Exception) and self.waiters:
            logger.warning("The connection that listens for releases was lost: %s", translated(error, self._address))
        for waiter in list(self.waiters.values()):
            waiter.wake()
        self._worker.wake()
