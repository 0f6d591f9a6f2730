"""What wakes those who wait: a node tells the subscribers of a lock that it was released.

One connection, to the first node that can be reached, listens for all waiters of this store in this process. A message
wakes one of them. Nothing here is believed: whoever is woken asks, and the others ask when the lease ends.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import Any

from ...core.backend import Claim
from ...core.blocking_port import Wakeups
from ...core.errors import DistLockError
from ...core.runtime import Parker, Runtime, now
from ...core.worker import Worker
from ..redis.transport.errors import FAILURES, TIMEOUTS, translated
from .node import Node

logger = logging.getLogger("distlock_web")

#: Seconds between two attempts to reach a node that will tell us.
RETRY_AFTER = 0.2
#: Seconds that a read waits; so long the connection stays without waiters.
POLL, IDLE = 0.5, 5.0
#: Seconds of silence after which the node is asked whether it is there, and has as long to answer.
PING_AFTER = 5.0

_CHANNEL = "distlock:wake:"


class Notifications:
    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = nodes
        self._wakeups = Wakeups()
        self._waiting: dict[str, dict[str, None]] = {}  #: tokens, by the name that they wait for
        #: How many releases were heard of, by the names of which the node has confirmed that it tells.
        self._heard: dict[str, int] = {}
        self._connection: Any = None
        self._node = nodes[0]  #: to which it leads
        self._changing = threading.RLock()  # reentrant: garbage that is collected inside may give up a wait
        self._last_message = self._last_wait = 0.0
        self._pinged = False
        self._worker = Worker(
            "distlock-redlock", self._step, lambda: bool(self._waiting) or self._connection is not None
        )

    def expect(self, claim: Claim, runtime: Runtime) -> Parker:
        """Where the waiter of this claim sleeps. It is woken when the node begins to tell, too."""
        parker = self._wakeups.expect(claim.token, runtime)
        with self._changing:
            waiting = self._waiting.setdefault(claim.name, {})
            is_first = not waiting
            waiting[claim.token] = None
            if is_first:
                self._say("SUBSCRIBE", claim.name)
        self._worker.start()
        return parker

    def hears(self, name: str) -> bool:
        return name in self._heard

    def releases(self, name: str) -> int:
        """How many were heard of, while somebody waited."""
        return self._heard.get(name, 0)

    def forget(self, claim: Claim, *, served: bool = False) -> None:
        """It waits no longer. If it was woken for nothing, the next one shall look."""
        self._wakeups.forget(claim.token)
        with self._changing:
            waiting = self._waiting.get(claim.name)
            if waiting is None or claim.token not in waiting:
                return
            del waiting[claim.token]
            self._last_wait = now()
            if waiting:
                if not served:
                    self._wake(claim.name)
                return
            del self._waiting[claim.name]
            self._heard.pop(claim.name, None)
            self._say("UNSUBSCRIBE", claim.name)

    def close(self) -> None:
        """Let go of the connection. Who goes on waiting asks, and opens another."""
        self._last_wait = 0.0
        self._drop()
        self._wakeups.wake_all()

    def _wake(self, name: str) -> None:
        for token in list(self._waiting.get(name, ())):
            if self._wakeups.wake(token):
                return
            self._waiting.get(name, {}).pop(token, None)  # its event loop has closed

    def _say(self, word: str, *names: str) -> None:
        """In one step with what is noted of it: else the node would hear the last two changes in the other order."""
        if self._connection is None or not names:
            return  # whoever opens it subscribes to all
        try:
            self._connection.send_command(word, *(_CHANNEL + name for name in names))
        except FAILURES:
            pass  # whoever reads finds that it broke, and opens another

    # The thread's ----------------------------------------------------------------------------------------------------

    def _step(self) -> float:
        connection = self._connection
        if connection is None:
            return self._open()
        if (not self._waiting and now() - self._last_wait > IDLE) or self._node.is_silent():
            self._drop()
            return 0.0
        try:
            self._ask_for_life(connection)
            message = connection.read_response(disable_decoding=True, timeout=POLL, disconnect_on_error=False)
        except TIMEOUTS:
            return 0.0
        except FAILURES as error:
            if self._connection is connection:  # else it was closed, by ours
                logger.warning("The releases of locks are not heard: %s", translated(error, self._node.address))
            self._drop()
            return RETRY_AFTER  # a server that refuses to tell would be asked again and again
        self._last_message, self._pinged = now(), False
        if type(message) is list and len(message) > 1 and type(message[1]) is bytes:
            self._heard_of(message[0], message[1].decode("utf-8", "replace").removeprefix(_CHANNEL))
        return 0.0

    def _heard_of(self, kind: bytes, name: str) -> None:
        with self._changing:
            if name not in self._waiting or kind not in (b"subscribe", b"message"):
                return  # the last one has gone meanwhile
            self._heard[name] = self._heard.get(name, 0) + (kind == b"message")
            self._wake(name)

    def _open(self) -> float:
        for node in self._nodes:
            try:
                node.outage.refuse_if_silent()
                connection: Any = node.address.connect()
            except (*FAILURES, DistLockError):
                continue  # another one may tell; those who wait learn from their own questions what is wrong
            connection.health_check_interval = 0  # redis-py's own PING would read what was published as its answer
            self._last_message, self._pinged = now(), False
            self._node = node
            with self._changing:
                self._connection = connection
                self._say("SUBSCRIBE", *self._waiting)
            return 0.0
        return RETRY_AFTER

    def _ask_for_life(self, connection: Any) -> None:
        # A connection that a firewall dropped looks like a quiet one.
        silence = now() - self._last_message
        if self._pinged and silence > 2 * PING_AFTER:
            raise ConnectionError("the node is silent on the listening connection")
        if not self._pinged and silence > PING_AFTER:
            with self._changing:
                connection.send_command("PING")
            self._pinged = True

    def _drop(self) -> None:
        with self._changing:
            connection, self._connection = self._connection, None
            self._heard.clear()
        if connection is not None:
            connection.disconnect()
