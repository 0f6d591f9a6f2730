"""The listening connection: subscribed to the channel of one store of this process, read by one at a time."""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

from ....core.runtime import now
from ..scripts.calls import command
from .address import RedisAddress
from .errors import TIMEOUTS, ErrorReply
from .exchange import Reply
from .wire import wire_of

#: Seconds of silence after which the server is asked whether it is still there, and given as long to answer.
PING_AFTER = 5.0
_PING = command("PING")


class Grant(NamedTuple):
    """The lock was handed over: its fence, and when, by the server's clock in µs."""

    fence: int
    at: int


class Notification(NamedTuple):
    """What the server published for one waiter: a grant, or None: ask again."""

    token: str
    grant: Grant | None
    name: str  #: of the lock


#: Something was read, and no waiter has this token.
NOBODYS = Notification("", None, "")


class Subscription:
    """One open connection. Raises ``FAILURES``, and ``ErrorReply``, as to a user without the rights."""

    def __init__(self, address: RedisAddress, ident: str) -> None:
        connection: Any = address.connect()
        connection.health_check_interval = 0  # redis-py's own PING reads what was published meanwhile as its answer
        self._connection = connection
        self._wire = wire_of(connection, address.kwargs["socket_timeout"])
        self.turn = threading.Lock()  #: the thread that has it reads; it is only tried
        self.looked_at = now()  #: when a thread began to read, for the last time
        self._heard, self._pinged = self.looked_at, 0.0
        try:
            channel = f"distlock:wake:{ident}"
            if address.clustered:  # PUBLISH reaches the subscribers of every node: this is what is said at this one
                channel += f":{self._ask('CLUSTER', 'MYID').decode()}"
            # A user without these rights would wait in vain for ever: it is told before it queues.
            self._ask("PUBLISH", channel, "")
            self._ask("PUBSUB", "NUMSUB", channel)
            self._ask("SUBSCRIBE", channel)  # only the server's word makes it sure that a waiter who queues now hears
        except BaseException:
            self.close()
            raise

    def _ask(self, *words: str) -> Reply:
        self._wire.write(command(*words))
        return self._reply(None)

    def _reply(self, timeout: float | None) -> Reply:
        reply = self._wire.read(timeout)
        if isinstance(reply, ErrorReply):
            raise reply
        return reply

    def read(self, seconds: float) -> Notification | None:
        """What comes first within so many seconds; None: nothing. A server that has gone raises."""
        self._ask_for_life()
        try:
            message = self._reply(seconds)
        except TIMEOUTS:
            return None
        self._heard, self._pinged = now(), 0.0
        return _notification(message[2]) if message[0] == b"message" else NOBODYS

    def _ask_for_life(self) -> None:
        # A connection that a firewall dropped looks like a quiet one: no waiter would be woken again.
        # The answer's time begins with the question: before that it was us, perhaps, who stood still.
        moment = now()
        if self._pinged and moment - self._pinged > PING_AFTER:
            raise ConnectionError("the server is silent on the listening connection")
        if not self._pinged and moment - self._heard > PING_AFTER:
            self._wire.write(_PING)
            self._pinged = moment

    def close(self) -> None:
        self._connection.disconnect()


def _notification(payload: bytes) -> Notification:
    """``NOBODYS``: not one of our messages; anybody may publish on a channel."""
    try:
        token, fence, at, name = payload.decode("utf-8", "replace").split(" ", 3)  # a name may have blanks
        return Notification(token, None if fence == "-" else Grant(int(fence), int(at)), name)
    except ValueError:
        return NOBODYS
