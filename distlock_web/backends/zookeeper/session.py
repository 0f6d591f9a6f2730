"""Our session with ZooKeeper: one kazoo client for the whole process; every answer comes within a bounded time."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias

from kazoo import exceptions
from kazoo.client import KazooClient
from kazoo.exceptions import (
    AuthFailedError,
    BadVersionError,
    ConnectionClosedError,
    ConnectionLoss,
    InvalidACLError,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    SessionExpiredError,
    UnimplementedError,
    ZookeeperError,
)
from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler
from kazoo.protocol.connection import ConnectionHandler
from kazoo.protocol.paths import _prefix_root
from kazoo.protocol.serialization import Create
from kazoo.protocol.states import KazooState
from kazoo.retry import KazooRetry
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

from ...core.errors import BackendUnavailable, ConfigurationError
from ...core.process import Process, check_process
from ...core.runtime import now
from ...core.worker import start_thread
from ...kit.outage import Outage
from .address import ZooAddress
from .clock import ServerClock
from .nodes import ROOT

logger = logging.getLogger("distlock_web")

#: A request that is sent, with kazoo's result to come.
Request: TypeAlias = "Callable[[Client], Any]"

#: Answers about nodes, which the algorithm has to hear.
NODE_ERRORS = (NoNodeError, NodeExistsError, BadVersionError, NotEmptyError)
#: What it says to a client with the wrong credentials. kazoo has the last of them since 2.11.
_NO_SASL = getattr(exceptions, "SessionClosedRequireSaslError", AuthFailedError)
_REFUSED = (NoAuthError, AuthFailedError, InvalidACLError, _NO_SASL)
#: What kazoo says where there was no answer.
_UNANSWERED = (ConnectionLoss, ConnectionClosedError, SessionExpiredError)

#: The name of kazoo's threads.
THREAD = "distlock-zookeeper"
#: Seconds for which a removal is kept that could not be sent. What is left then goes with the session.
KEPT = 3600.0


class Session:
    """The client, and whether it is connected. It begins with the first request, and anew after ``close``."""

    def __init__(self, address: ZooAddress, on_change: Callable[[], None]) -> None:
        self.address = address
        self.clock = ServerClock()
        self.outage = Outage(address.name, self._probe, address.timeout)
        self._on_change = on_change
        self._client: Client | None = None
        self._connected = threading.Event()
        self.granted = 0.0  #: seconds that the session lasts without a word from us, as the servers have granted it
        # Reentrant: garbage that is collected inside may release a lock of its own.
        self._lock = threading.RLock()

    @property
    def outlives(self) -> float:
        """Seconds for which an ephemeral node surely stays, after an answer: two thirds of the session.

        The session ends that much later than the leader last heard of us. A follower tells it of us in between, and may
        die before it does: then the leader knows of our heartbeat before the last, a third of the session earlier.
        """
        return self.granted * 2 / 3

    @property
    def ident(self) -> int | None:
        """What the nodes of this session name as their owner."""
        client = self._client
        return client.client_id[0] if client is not None and client.client_id is not None else None

    def send(self, *requests: Request, timeout: float | None = None) -> list[Any]:
        """Send all of them, in this order, and wait for the answers: one round trip.

        What ZooKeeper says about nodes (``NODE_ERRORS``) is an answer. Raises ``BackendUnavailable`` or
        ``ConfigurationError``. While it is silent nothing is sent; but what has a ``timeout`` of its own is: a renewal,
        which has a deadline.
        """
        if threading.current_thread().name == THREAD:
            # Garbage was collected there, and gives back a lock: it would wait for an answer that only it can read.
            raise BackendUnavailable(f"{self.address.name} cannot be asked from the thread that reads its answers.")
        if timeout is None:
            self.outage.refuse_if_silent(begun=True)
        seconds = self.outage.seconds_for(timeout)
        until = now() + seconds
        client = self._running()
        if not self._connected.is_set():
            self.outage.overtakes(self._connected.wait, until, seconds)
            if not self._connected.wait(max(0.0, until - now())):  # kazoo connects to it by itself
                raise BackendUnavailable(f"{self.address.name} cannot be reached.")
        connection = client.connection
        pending = [request(client) for request in requests]
        if pending and self.outage.overtakes(pending[-1].wait, until, seconds):
            self._drop(client, connection)
        return [self._answer(result, until) for result in pending]

    def _drop(self, client: Client, connection: socket.socket | None) -> None:
        """It is dead, and kazoo would find out within two thirds of a session: it makes another now."""
        with self._lock:
            if connection is not None and connection is client.connection:
                self._connected.clear()  # the next request waits for the other one
                with suppress(OSError):  # kazoo has just closed it
                    socket.socket.shutdown(connection, socket.SHUT_RDWR)

    def _probe(self) -> None:
        """A write on a fresh connection, as the beginning of a session is: a majority of the servers agrees to it.

        Where our own client has no connection it is about to have a fresh one: the write is its own.
        """
        client, answered = self._client, False
        try:
            if client is not None and client.is_running and not self._connected.is_set():
                if self._connected.wait(self.address.timeout):
                    written = client.set_async(ROOT, b"")
                    answered = written.wait(self.address.timeout) and not isinstance(written.exception, _UNANSWERED)
            else:
                other = Client(self.address, lambda *_: None)
                try:
                    answered = other.start_async().wait(self.address.timeout)
                finally:
                    _end(other)
        except RuntimeError as error:  # no thread is to be had
            raise BackendUnavailable(f"{self.address.name} cannot be asked: {error}.") from error
        if not answered:
            raise BackendUnavailable(f"{self.address.name} does not answer.")

    def _answer(self, result: Any, until: float) -> Any:
        name = self.address.name
        try:
            # Another thread of kazoo's may have yet to hand it over.
            return result.get(timeout=max(0.001, until - now()))
        except NODE_ERRORS as error:
            return error
        except _REFUSED as error:
            raise ConfigurationError(
                f'{name} refuses us ({type(error).__name__}): OPTIONS["auth"] has to name a user who may read, write, '
                f"create and delete there, the same in every process."
            ) from error
        except UnimplementedError as error:
            raise ConfigurationError(f"{name} is too old: 3.5.3 is the first with container nodes.") from error
        except KazooTimeoutError as error:
            raise BackendUnavailable(f"{name} does not answer.") from error
        except ZookeeperError as error:
            raise BackendUnavailable(f"{name} does not answer: {type(error).__name__} {error}".strip() + ".") from error

    def _running(self) -> Client:
        """The client, which connects by itself."""
        with self._lock:
            client = self._client
            return client if client is not None and client.is_running else self._start()

    def _start(self) -> Client:
        self._end()
        client = self._client = Client(self.address, self._is_connected)
        client.add_listener(partial(self._changed, client))
        try:
            client.start_async()
        except RuntimeError as error:
            raise BackendUnavailable(f"{self.address.name} cannot be asked: {error}.") from error
        return client

    def _is_connected(self, client: Client, session_timeout: float) -> None:
        if client is self._client:
            with self._lock:
                self.granted = session_timeout
                self._connected.set()
            self._on_change()

    def _changed(self, client: Client, state: str) -> None:
        """Called in kazoo's thread: SUSPENDED, the connection is gone; LOST, and the session with it."""
        if client is self._client and state != KazooState.CONNECTED:
            self._connected.clear()
            self._on_change()

    def close(self) -> None:
        """Do what was put off, if it can be done; end the session, and with it what is ephemeral.

        The next request begins another.
        """
        self.outage.close()
        self._end()
        self._on_change()  # each waiter has lost its place in the queue, and asks again

    def _end(self) -> None:
        with self._lock:
            client, self._client = self._client, None
            self._connected.clear()
        if client is not None:
            _end(client, self.address.timeout)


def _end(client: Client, patience: float = 0.0) -> None:
    """Aside: kazoo waits for a server that hangs as long as a session lasts."""
    try:
        start_thread("distlock-zookeeper-close", client.end).join(patience)
    except RuntimeError:  # no thread is to be had
        client.end()


def committed(answers: Any) -> bool:
    """Whether a transaction was carried out: all of it, or nothing."""
    return not any(isinstance(answer, Exception) for answer in answers)


class Client(KazooClient):  # type: ignore[misc]
    """kazoo's client, with container nodes, threads that bear our name, and time-outs that fit a request."""

    def __init__(self, address: ZooAddress, on_connect: Callable[[Client, float], None]) -> None:
        super().__init__(
            hosts=address.hosts,
            timeout=address.session_timeout,
            handler=_Handler(address.timeout),
            auth_data=[("digest", address.auth)] if address.auth else None,
            default_acl=CREATOR_ALL_ACL if address.auth else None,
            # Left to itself kazoo would come to a minute between two attempts.
            connection_retry=KazooRetry(max_tries=-1, delay=0.05, max_delay=0.25, max_jitter=0.2),
            **address.tls,
        )
        self._connection = _KazooConnection(self, address.timeout, on_connect)

    @property
    def is_running(self) -> bool:
        """Whether it is connected, or trying; a failure that kazoo did not expect ends its thread."""
        thread = self._connection._connection_routine
        return thread is not None and thread.is_alive()

    @property
    def connection(self) -> socket.socket | None:
        """That on which requests are sent now."""
        found: socket.socket | None = self._connection._socket
        return found

    def create_container_async(self, path: str, value: bytes) -> Any:
        """A node that the servers remove when its last child has gone. kazoo has no such call."""
        result = self.handler.async_result()
        acl = self.default_acl or OPEN_ACL_UNSAFE
        self._call(_CreateContainer(_prefix_root(self.chroot, path), value, acl, 4), result)
        return result

    def end(self) -> None:
        try:
            self.stop()
            self.close()
        except Exception as error:  # kazoo gives up with one of its own; the session ends by itself
            logger.info("ZooKeeper: the session could not be closed in time: %s", error)


class _CreateContainer(Create):  # type: ignore[misc]
    type = 19


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """Where kazoo gets its threads and sockets from."""

    def __init__(self, timeout: float) -> None:
        super().__init__()
        self._timeout = timeout
        self._generation = Process.generation

    def start(self) -> None:
        try:
            super().start()
        except RuntimeError:  # one of two threads was to be had, and kazoo's stop() would leave it: one for each try
            self._running = True
            super().stop()
            raise

    def stop(self) -> None:
        # Also at the end of a child, where kazoo would wait for threads that are not there.
        check_process()
        if self._generation == Process.generation:
            super().stop()

    def spawn(self, func: Callable[..., object], *args: Any, **kwargs: Any) -> threading.Thread:
        return start_thread(THREAD, partial(func, *args, **kwargs))

    def create_connection(self, *args: Any, **kwargs: Any) -> Any:
        # kazoo allows one host of several, that hangs, a whole session's time.
        return super().create_connection(*args, **{**kwargs, "timeout": self._timeout})


class _KazooConnection(ConnectionHandler):  # type: ignore[misc]
    """kazoo's connection; it tells the session time-out that the server has granted, which kazoo keeps to itself."""

    def __init__(self, client: Client, timeout: float, on_connect: Callable[[Client, float], None]) -> None:
        super().__init__(client, client._conn_retry.copy(), logger=client.logger)
        self._timeout = timeout
        self._on_connect = on_connect

    def _connect(self, host: str, hostip: str, port: int) -> Any:
        read_timeout, connect_timeout = super()._connect(host, hostip, port)
        self._on_connect(self.client, read_timeout * 3 / 2 / 1000)  # milliseconds, and two thirds of it
        return read_timeout, connect_timeout

    def _invoke(self, timeout: float, request: Any, xid: int | None = None) -> Any:
        return super()._invoke(min(timeout, self._timeout), request, xid)
