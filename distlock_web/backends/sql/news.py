"""How those who wait here hear of what other processes have done: one thread, whatever the number of waiters.

On PostgreSQL it listens (NOTIFY comes with the commit of the hand-over). Elsewhere, and behind a pooler, it asks for
all of them in one statement: often while the locks change hands, ever more seldom while they do not. What this process
does itself wakes at once. None of it is needed to be right: every sleep ends with the lease that it waits for.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from os import dup
from typing import Any

from ...core.errors import DistLockError
from ...core.runtime import DICE, Token, now
from ...core.worker import Worker
from ...kit.wakeups import Wakeups
from .database import Database
from .dialects import channel_of
from .statement import execute
from .tables import key_of

logger = logging.getLogger("distlock_web")

#: Seconds between two questions: the first, and the longest. Each is the last one's times GROWTH, give or take JITTER.
FIRST, LONGEST, GROWTH, JITTER = 0.005, 0.25, 1.5, 0.25
#: Seconds that the thread stays when no caller waits any more.
IDLE = 5.0
#: Seconds between two tries to listen.
RETRY = 0.5


class Poller:
    """Asks the database, for all who wait here. ``start`` returns when nothing is missed any more."""

    def __init__(self, wakeups: Wakeups, database: Database) -> None:
        self._wakeups = wakeups
        self._database = database
        self._token = Token()
        # Reentrant: garbage that is collected inside may release a lock of its own.
        self._lock = threading.RLock()
        self._worker = Worker("distlock-sql", self._step, lambda: not self._is_idle())
        self._begun = threading.Event()
        self._needed = 0.0
        self._pause, self._seen = FIRST, frozenset[Any]()

    def ready(self) -> bool:
        """Whether one that joins a queue now hears of everything."""
        return self._begun.is_set() and self._worker.runs

    def start(self, token: Token, timeout: float) -> None:
        """What is told to the store of this token is heard of. Without a thread no waiter is told anything, and
        asks when the lease ends."""
        self._token = token
        with self._lock:
            if not self._worker.runs:
                self._begun.clear()
                self._needed = now()
                if not self._worker.start():
                    return
        if not self._begun.wait(timeout):
            self._begun.set()  # those who join now are all woken when it hears something

    def expect(self, token: str, name: str) -> None:
        """This claim waits for the lock of this name, until ``Wakeups`` forgets it."""
        self._wakeups.note(token, name)
        self._seen = frozenset()  # which is not what will be seen: it asks at once, and soon again
        self._worker.wake()

    def leave(self) -> None:
        """The server takes no writes any more: others hand their locks over on another one by now."""

    def close(self) -> None:
        self._worker.stop()

    def _is_idle(self) -> bool:
        return now() - self._needed > IDLE and not self._wakeups.expected()

    def _step(self) -> float:
        self._begun.set()
        if not (waiting := self._wakeups.waiting()):
            return IDLE
        seen = self._look(waiting)
        self._pause = min(self._pause * GROWTH, LONGEST) if seen == self._seen else FIRST
        self._needed, self._seen = now(), seen
        return self._pause * DICE.uniform(1 - JITTER, 1 + JITTER)

    def _look(self, waiting: Mapping[str, str]) -> frozenset[Any]:
        """Wake those that were handed their lock, and those that are to ask again. What there was to see."""
        keys = [key_of(name) for name in sorted(set(waiting.values()))]
        try:
            tables = self._database.tables
            news = tables.news_of_shares if any(Token(token).limit > 1 for token in waiting) else tables.news
            rows = self._database.read(news, {"keys": keys})
        except DistLockError as error:  # they ask themselves when the lease ends, and say what is wrong
            logger.debug("Waiters for locks are not told for a moment: %s", error)
            return frozenset()
        for row in rows:
            if row.token in waiting:
                self._wakeups.wake(row.token)
        return frozenset((row.token, row.fence) for row in rows)


class PostgresListener(Poller):
    """LISTENs on a connection of its own; asks as the other does where a pooler stands between."""

    def __init__(self, wakeups: Wakeups, database: Database) -> None:
        super().__init__(wakeups, database)
        self._driver: Any = None
        self._behind_pooler = False
        self._troubles: tuple[type[Exception], ...] = (DistLockError, *database.address.way.errors)

    def close(self) -> None:
        super().close()
        self.leave()

    def leave(self) -> None:
        driver = self._driver
        if driver is not None:
            with (
                suppress(OSError, *self._database.address.way.errors),  # it has just ended by itself
                socket.socket(fileno=dup(driver.fileno())) as connection,
            ):
                connection.shutdown(socket.SHUT_RDWR)  # the thread that waits for news reads the end

    def _is_idle(self) -> bool:
        if self._behind_pooler:
            return super()._is_idle()
        # The caller that starts this waits until it has begun, also one that was cancelled, and is no more expected.
        return self._begun.is_set() and not self._wakeups.expected()

    def _step(self) -> float:
        if self._behind_pooler:
            return super()._step()
        try:
            with self._database.open() as connection:
                self._behind_pooler = self._is_pooled(connection)
                if not self._behind_pooler:
                    self._listen(connection)
                return 0.0
        except self._troubles as error:
            if self._worker.is_current():
                logger.info("Waiters for locks are not told for a moment: %s", error)
            return RETRY
        finally:
            if self._worker.is_current():
                self._driver = None
                self._begun.set()

    def _is_pooled(self, connection: Any) -> bool:
        """Whether we speak to a pooler. There the news would come to any client."""
        return bool(execute(connection, "SELECT pg_backend_pid()").scalar() != connection.info.backend_pid)

    def _listen(self, driver: Any) -> None:
        self._driver = driver
        execute(driver, f'LISTEN "{channel_of(self._token)}"')
        if self._begun.is_set():
            self._wakeups.wake_all()  # what was said meanwhile has been missed
        self._begun.set()
        while self._worker.is_current():
            driver.limit = None  # keepalives tell of a server that has vanished
            for news in driver.notifies(timeout=IDLE):
                self._wakeups.wake(news.payload)
            if self._is_idle():
                return
