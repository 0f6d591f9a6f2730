"""The listener: one thread and one connection per process wake every waiter of it, in threads and event loops alike.

The release script publishes a waiter's token on its process's channel. The thread starts with the first wait and ends
some seconds after the last. A message that is lost costs a waiter at most the holder's lease, for it sleeps no longer.
"""

from __future__ import annotations

import logging
import threading
from typing import Any

import hiredis
from redis.exceptions import RedisError

from ...core.errors import BackendUnavailable, DistLockError
from ...core.runtime import Parker, Process, Runtime, now
from .errors import Refused, translated
from .options import Address, Connection
from .scripts import bulk
from .wire import _PENDING, _reader

logger = logging.getLogger("distlock_web")

#: Seconds without any waiter after which the thread ends: a new one costs a connection and a thread.
LINGER = 5.0
#: Seconds of silence after which we ask whether the server is still there.
SILENCE = 5.0
#: Seconds between two attempts to connect again.
PAUSE = 0.2

_PING = b"*1\r\n$4\r\nPING\r\n"


class Listener:
    def __init__(self, address: Address) -> None:
        self._address = address
        self._lock = threading.Lock()
        self._waiters: dict[str, Parker] = {}
        self._starting: list[Parker] = []  # those who wait for the subscription
        self._thread: threading.Thread | None = None
        self._socket: Any = None
        self._error: DistLockError | None = None
        self._last_wait = 0.0
        #: Subscribed: whoever joins a queue now will hear of its turn.
        self.ready = False

    def add(self, token: str, parker: Parker) -> None:
        self._waiters[token] = parker

    def remove(self, token: str) -> None:
        self._waiters.pop(token, None)
        self._last_wait = now()

    def parker(self, token: str) -> Parker:
        return self._waiters[token]

    async def listen(self, runtime: Runtime) -> None:
        """Return when the subscription stands. Raises ``BackendUnavailable`` within the connect and answer timeouts."""
        parker = runtime.parker()
        with self._lock:
            if self.ready:
                return
            self._error = None
            self._starting.append(parker)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="distlock-listener", daemon=True)
                self._thread.start()
        kwargs = self._address.kwargs
        try:
            await parker.park(kwargs["socket_connect_timeout"] + 2 * kwargs["socket_timeout"])
        finally:
            with self._lock:
                if parker in self._starting:  # gone or too late: the thread must not stay for it
                    self._starting.remove(parker)
        if not self.ready:
            raise self._error or BackendUnavailable(f"{self._address.name} did not confirm a subscription in time.")

    def close(self) -> None:
        with self._lock:
            self._waiters.clear()
            self._last_wait = 0.0
            socket = self._socket
        if socket is not None:
            _shut(socket)

    def _run(self) -> None:
        failures = 0
        while True:
            connection: Connection | None = None
            try:
                connection = self._subscribe()
                failures = 0
                if self._receive(connection) == "idle":
                    return
            except (OSError, RedisError, Refused, hiredis.HiredisError) as error:
                failures += 1
                if self._failed(translated(error, self._address.name), failures):
                    return
            finally:
                # Nothing else: once we have said that we end, `ready` and the socket are our successor's.
                if connection is not None:
                    connection.disconnect()  # type: ignore[no-untyped-call]
            threading.Event().wait(PAUSE)

    def _subscribe(self) -> Connection:
        connection = self._address.connect()
        socket: Any = connection._sock
        self._socket = socket
        socket.sendall(b"*2\r\n" + bulk("SUBSCRIBE") + bulk(f"distlock:wake:{Process.ident}"))
        return connection

    def _receive(self, connection: Connection) -> str:
        """Read and wake until nobody has waited for a while ("idle") or the connection was shut."""
        socket: Any = connection._sock
        reader = _reader()
        asked = False
        while True:
            try:
                data = socket.recv(65536)
            except TimeoutError:
                if self._idle():
                    return "idle"
                if asked:
                    raise
                socket.sendall(_PING)
                asked = True
                continue
            if not data:
                if self._idle():
                    return "idle"
                raise ConnectionError("the server closed the listening connection")
            asked = False
            reader.feed(data)
            while (message := reader.gets()) is not _PENDING:
                if isinstance(message, Refused):
                    raise message
                self._heard(message, socket)

    def _heard(self, message: list[Any], socket: Any) -> None:
        if message[0] == b"message":
            parker = self._waiters.get(message[2].decode())
            if parker is not None:
                parker.unpark()
        elif message[0] == b"subscribe":
            socket.settimeout(SILENCE)
            with self._lock:
                self.ready = True
                starting, self._starting = self._starting, []
            # What was published while nobody listened is lost: everybody asks again. (The first time there is nobody.)
            for parker in [*starting, *list(self._waiters.values())]:
                parker.unpark()

    def _idle(self) -> bool:
        """Nobody has waited for a while: end, unless somebody comes at this very moment."""
        with self._lock:
            if self._waiters or self._starting or now() - self._last_wait < LINGER:
                return False
            self.ready = False
            self._thread = None
            return True

    def _failed(self, error: DistLockError, failures: int) -> bool:
        """Tell those who start; True: nobody is left who would want another attempt."""
        with self._lock:
            self.ready = False
            self._error = error
            starting, self._starting = self._starting, []
            over = not self._waiters
            if over:
                self._thread = None
        for parker in starting:
            parker.unpark()
        if not over and failures == 1:
            logger.warning("The listener for locks lost its connection, waiters ask by themselves: %s", error)
        return over


def _shut(socket: Any) -> None:
    try:
        socket.shutdown(2)
    except OSError:
        pass  # closed already
