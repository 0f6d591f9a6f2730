"""Our session with ZooKeeper: one kazoo client for the whole process; every answer comes within a bounded time."""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

from kazoo.client import KazooClient
from kazoo.exceptions import (
    AuthFailedError,
    BadVersionError,
    ConnectionLoss,
    InvalidACLError,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    SessionClosedRequireSaslError,
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
from ...core.runtime import now
from ...core.worker import start_thread
from .address import Address
from .clock import ServerClock

logger = logging.getLogger("distlock_web")

#: A request that is sent, with kazoo's result to come.
Request: TypeAlias = "Callable[[Client], Any]"

#: Answers about nodes, which the algorithm has to hear.
NODE_ERRORS = (NoNodeError, NodeExistsError, BadVersionError, NotEmptyError)

#: The name of kazoo's threads.
THREAD = "distlock-zookeeper"


class Session:
    """The client, and whether it is connected. It begins with the first request, and anew after ``close``."""

    def __init__(self, address: Address, on_change: Callable[[], None]) -> None:
        self.address = address
        self.clock = ServerClock()
        self._on_change = on_change
        self._client: Client | None = None
        self._connected = threading.Event()
        self._down_since = 0.0
        self._connected_at = 0.0
        self._silent_since: float | None = None  #: connected, and requests wait in vain
        self._session_timeout = 0.0
        self._posted = False  #: whether there were requests that nobody waits for
        # Reentrant: garbage that is collected inside may release a lock of its own.
        self._lock = threading.RLock()

    @property
    def outlives(self) -> float:
        """Seconds for which an ephemeral node surely stays, after an answer: two thirds of the session.

        The session ends that much later than the leader last heard of us. A follower tells it of us in between, and may
        die before it does: then the leader knows of our heartbeat before the last, a third of the session earlier.
        """
        return self._session_timeout * 2 / 3

    @property
    def granted(self) -> float:
        """Seconds that the session lasts without a word from us, as the servers have granted it."""
        return self._session_timeout

    @property
    def ident(self) -> int | None:
        """What the nodes of this session name as their owner."""
        client = self._client
        return client.client_id[0] if client is not None and client.client_id is not None else None

    def send(self, *requests: Request, timeout: float | None = None) -> list[Any]:
        """Send all of them, in this order, and wait for the answers: one round trip.

        What ZooKeeper says about nodes (``NODE_ERRORS``) is an answer. Raises ``BackendUnavailable`` or
        ``ConfigurationError``. Where the last ones wait in vain, nothing is sent; but what has a ``timeout`` of its own
        is: a renewal, which has a deadline.
        """
        if threading.current_thread().name == THREAD:
            # Garbage was collected there, and gives back a lock: it would wait for an answer that only it can read.
            raise BackendUnavailable(f"{self.address.name} cannot be asked from the thread that hears its answers.")
        until = now() + (self.address.timeout if timeout is None else min(timeout, self.address.timeout))
        client = self._ready(until)
        since = self._silent_since
        if since is not None and timeout is None:
            raise BackendUnavailable(f"{self.address.name} does not answer, for {now() - since:.1f} s now.")
        sent = now()
        pending = [request(client) for request in requests]
        return [self._answer(result, sent, until) for result in pending]

    def post(self, request: Request, failed: Callable[[], None]) -> None:
        """Send it and do not wait. ``failed`` is called, in another thread, if ZooKeeper has not done it."""
        client = self._client
        if client is None or not self._connected.is_set():
            failed()
            return

        def check(result: Any) -> None:
            if not result.successful() and not isinstance(result.exception, NODE_ERRORS):
                failed()

        self._posted = True
        request(client).rawlink(check)

    def _settle(self) -> None:
        """At the end of the process: what was posted is not lost. A node that stayed would be the next to hold."""
        client = self._client
        if self._posted and client is not None and client.handler.is_ours and self._connected.is_set():
            client.exists_async("/").wait(self.address.timeout)  # answered after all that was sent before

    def _answer(self, result: Any, sent: float, until: float) -> Any:
        name = self.address.name
        try:
            answer = result.get(timeout=max(0.001, until - now()))
        except NODE_ERRORS as error:
            answer = error
        except (NoAuthError, AuthFailedError, InvalidACLError, SessionClosedRequireSaslError) as error:
            raise ConfigurationError(
                f'{name} refuses us ({type(error).__name__}): OPTIONS["auth"] has to be who may read, write, create '
                f"and delete there, the same in every process."
            ) from error
        except UnimplementedError as error:
            raise ConfigurationError(f"{name} is too old: 3.5.3 is the first with container nodes.") from error
        except KazooTimeoutError as error:
            # Else it had hardly any time, or was sent over a connection before the one that there is now.
            if now() - sent > self.address.timeout / 2 and sent > self._connected_at:
                self._silent_since = self._silent_since or sent
                result.rawlink(self._answered)
            raise BackendUnavailable(f"{name} does not answer.") from error
        except ZookeeperError as error:
            raise BackendUnavailable(f"{name} does not answer: {type(error).__name__} {error}".strip() + ".") from error
        self._silent_since = None
        return answer

    def _answered(self, result: Any) -> None:
        """What was waited for in vain has come; or it has failed with its connection, and there will be another."""
        if not isinstance(result.exception, ConnectionLoss):
            self._silent_since = None

    def _ready(self, until: float) -> Client:
        """The client, connected. While it has been down for longer than a time-out nobody waits for it."""
        client = self._client
        if client is None or not client.is_running:
            with self._lock:
                client = self._client
                if client is None or not client.is_running:
                    client = self._start()
        patience = min(until, self._down_since + self.address.timeout) - now()
        if not self._connected.is_set() and not self._connected.wait(max(0.0, patience)):
            raise BackendUnavailable(f"{self.address.name} cannot be reached.")
        return client

    def _start(self) -> Client:
        self.close()
        self._down_since = now()
        client = self._client = Client(self.address, self._is_connected)
        client.add_listener(partial(self._changed, client))
        client.start_async()
        atexit.register(self._settle)  # after kazoo's own, so that it runs before: then kazoo's threads still do
        return client

    def _is_connected(self, client: Client, session_timeout: float) -> None:
        if client is self._client:
            self._session_timeout = session_timeout
            self._connected_at = now()
            self._silent_since = None
            self._connected.set()
            self._on_change()

    def _changed(self, client: Client, state: str) -> None:
        """Called in kazoo's thread: SUSPENDED, the connection is gone; LOST, and the session with it."""
        if client is self._client and state != KazooState.CONNECTED:
            self._connected.clear()
            self._down_since = self._silent_since or now()  # what was waited for before is not waited for again
            self._on_change()

    def close(self) -> None:
        """End the session, and with it what is ephemeral. The next request begins another."""
        with self._lock:
            client, self._client = self._client, None
            self._connected.clear()
            self._silent_since = None
            atexit.unregister(self._settle)
        if client is not None:
            # Aside: kazoo waits for a server that hangs as long as a session lasts.
            start_thread("distlock-zookeeper-close", client.end).join(self.address.timeout)


def committed(answers: Any) -> bool:
    """Whether a transaction was carried out: all of it, or nothing."""
    return not any(isinstance(answer, Exception) for answer in answers)


class Client(KazooClient):  # type: ignore[misc]
    """kazoo's client, with container nodes, threads that bear our name, and time-outs that fit a request."""

    def __init__(self, address: Address, on_connect: Callable[[Client, float], None]) -> None:
        super().__init__(
            hosts=address.hosts,
            timeout=address.session_timeout,
            handler=_Handler(address.timeout),
            auth_data=[("digest", address.auth)] if address.auth else None,
            default_acl=CREATOR_ALL_ACL if address.auth else None,
            # Left to itself kazoo would come to a minute between two attempts.
            connection_retry=KazooRetry(max_tries=-1, delay=0.05, max_delay=1.0, max_jitter=0.2),
            **address.tls,
        )
        self._connection = _Connection(self, address.timeout, on_connect)

    @property
    def is_running(self) -> bool:
        """Whether it is connected, or trying; a failure that kazoo did not expect ends its thread."""
        thread = self._connection._connection_routine
        return thread is not None and thread.is_alive()

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
        self._pid = os.getpid()

    @property
    def is_ours(self) -> bool:
        """Whether its threads are in this process, and not in the one that forked it."""
        return self._pid == os.getpid()

    def stop(self) -> None:
        # Also at the end of a child, where kazoo would wait for threads that are not there.
        if self.is_ours:
            super().stop()

    def spawn(self, func: Callable[..., object], *args: Any, **kwargs: Any) -> threading.Thread:
        return start_thread(THREAD, partial(func, *args, **kwargs))

    def create_connection(self, *args: Any, **kwargs: Any) -> Any:
        # kazoo allows one host of several, that hangs, a whole session's time.
        return super().create_connection(*args, **{**kwargs, "timeout": self._timeout})


class _Connection(ConnectionHandler):  # type: ignore[misc]
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
