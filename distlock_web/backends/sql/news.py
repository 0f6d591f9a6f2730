"""How those who wait here hear of what other processes have done: one thread, whatever the number of waiters.

On PostgreSQL it listens (NOTIFY comes with the commit of the hand-over). Elsewhere, and behind a pooler, it asks for
all of them in one statement, soon at first and then ever more seldom. What this process does itself wakes at once. None
of it is needed to be right: every sleep ends with the lease that it waits for.
"""

from __future__ import annotations

import logging
import random
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from os import dup
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from ...core.blocking_port import Wakeups
from ...core.errors import DistLockError
from ...core.runtime import Process, now
from .database import Database
from .dialects import channel_of

logger = logging.getLogger("distlock_web")

#: Seconds between two questions: the first, and the longest. Each is the last one's times GROWTH, give or take JITTER.
FIRST, LONGEST, GROWTH, JITTER = 0.02, 0.5, 1.5, 0.25
#: Seconds that the thread stays when nobody waits any more.
IDLE = 5.0
#: Seconds between two tries to listen.
RETRY = 0.5


class Poller:
    """Asks the database, for all who wait here. ``start`` returns when nothing is missed any more."""

    def __init__(self, wakeups: Wakeups) -> None:
        #: Set before it is used: tokens that have something to hear, of those that wait for these names.
        self.ask: Callable[[Sequence[str]], Sequence[str]] = lambda names: ()
        self._wakeups = wakeups
        self._names: dict[str, str] = {}  # by token: the lock that it waits for
        # Reentrant: garbage that is collected inside may release a lock of its own.
        self._lock = threading.RLock()
        self._thread: threading.Thread | None = None
        self._begun = threading.Event()
        self._stirred = threading.Event()

    def ready(self) -> bool:
        with self._lock:
            return self._thread is not None

    def start(self, timeout: float) -> None:
        with self._lock:
            if self._thread is None:
                self._begun.clear()
                self._stirred.clear()
                thread = threading.Thread(target=self._run, name="distlock-sql", daemon=True)
                thread.start()
                self._thread = thread
        self._begun.wait(timeout)

    def expect(self, token: str, name: str) -> None:
        """This claim waits for the lock of this name, until ``Wakeups`` forgets it."""
        self._names[token] = name
        self._stirred.set()

    def close(self) -> None:
        with self._lock:
            self._thread = None
        self._stirred.set()

    def _run(self) -> None:
        with self._lock:
            pass  # from here on it is known as the thread that is wanted
        self._begun.set()
        self._poll()

    def _wanted(self) -> bool:
        """Whether this thread is the one that is wanted."""
        return self._thread is threading.current_thread()

    def _end_if_idle(self) -> bool:
        with self._lock:
            if self._wanted() and not self._wakeups.expected():
                self._thread = None
            return not self._wanted()

    def _poll(self) -> None:
        pause, idle_since = FIRST, now()
        while self._wanted():
            waiting = self._waiting()
            if waiting:
                pause = FIRST if self._ask(waiting) else min(pause * GROWTH, LONGEST)
                idle_since = now()
            elif now() - idle_since > IDLE and self._end_if_idle():
                return
            seconds = pause if waiting else IDLE
            if self._stirred.wait(seconds * random.uniform(1 - JITTER, 1 + JITTER)):  # noqa: S311 - no secret
                self._stirred.clear()
                pause = FIRST

    def _waiting(self) -> dict[str, str]:
        expected = self._wakeups.expected()
        for token in self._names.keys() - expected:
            self._names.pop(token, None)
        return self._names.copy()

    def _ask(self, waiting: dict[str, str]) -> bool:
        """Wake those that have something to hear. Whether there was one."""
        try:
            tokens = self.ask(sorted(set(waiting.values())))
        except DistLockError as error:  # they ask themselves when the lease ends, and say what is wrong
            logger.debug("Waiters for locks are not told for a moment: %s", error)
            return False
        heard = [self._wakeups.wake(token) for token in tokens if token in waiting]
        return any(heard)


class Listener(Poller):
    """LISTENs on a connection of its own; asks as the other does where a pooler stands between, unless told."""

    def __init__(self, wakeups: Wakeups, database: Database) -> None:
        super().__init__(wakeups)
        self._database = database
        self._driver: Any = None

    def close(self) -> None:
        super().close()
        driver = self._driver
        if driver is not None:
            with (
                suppress(OSError, self._database.driver_error),  # it has just ended by itself
                socket.socket(fileno=dup(driver.fileno())) as connection,
            ):
                connection.shutdown(socket.SHUT_RDWR)  # the thread that waits for news reads the end

    def _run(self) -> None:
        with self._lock:
            pass  # from here on it is known as the thread that is wanted
        while self._wanted():
            try:
                with self._database.open() as connection:
                    if self._is_pooled(connection):
                        self._begun.set()
                        break
                    self._listen(connection)
            except (DistLockError, SQLAlchemyError, self._database.driver_error) as error:
                if self._wanted():
                    logger.info("Waiters for locks are not told for a moment: %s", error)
            finally:
                self._driver = None
                self._begun.set()
            if self._wanted():
                self._stirred.wait(RETRY)
                self._stirred.clear()
        self._poll()

    def _is_pooled(self, connection: Connection) -> bool:
        """Whether we speak to a pooler, where the news would come to whoever has the server at that moment."""
        greeted_by: int = self._driver_of(connection).info.backend_pid
        return (
            self._database.address.listen is None
            and connection.exec_driver_sql("SELECT pg_backend_pid()").scalar() != greeted_by
        )

    def _listen(self, connection: Connection) -> None:
        self._driver = driver = self._driver_of(connection)
        connection.exec_driver_sql(f'LISTEN "{channel_of(Process.ident)}"')
        if self._begun.is_set():
            self._wakeups.wake_all()  # what was said meanwhile has been missed
        self._begun.set()
        while self._wanted():
            driver.limit = None
            for news in driver.notifies(timeout=IDLE):
                self._wakeups.wake(news.payload)
            if self._end_if_idle():
                return
            driver.limit = self._database.address.timeout
            connection.exec_driver_sql("SELECT 1")  # a server that has vanished says nothing either

    def _driver_of(self, connection: Connection) -> Any:
        return connection.connection.driver_connection
