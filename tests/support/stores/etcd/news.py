"""How those who wait here hear that the row in front of theirs has gone: one thread and connection of the process."""

from __future__ import annotations

import json
import logging
import socket
from base64 import b64decode
from contextlib import suppress
from http.client import HTTPException
from typing import Any

from distlock_web.core.errors import BackendUnavailable
from distlock_web.core.worker import Worker
from distlock_web.kit.wakeups import Wakeups

from .server import Server, text

logger = logging.getLogger("distlock_web")

#: Seconds without news after which it is looked whether somebody still waits; on a new connection, if so.
QUIET = 30.0
#: Seconds between two tries to listen.
RETRY = 0.5


class News:
    """Nobody has to hear of anything to be right: every sleep is bounded (``EtcdVerbs._busy``)."""

    def __init__(self, server: Server, path: bytes, wakeups: Wakeups) -> None:
        self._server, self._path, self._wakeups = server, path, wakeups
        self._worker = Worker("distlock-etcd-news", self._listen, lambda: bool(wakeups.waiting()))
        self._socket: socket.socket | None = None

    def expect(self, token: str, lock: bytes, key: bytes | None = None) -> None:
        """This one waits for the end of a key: of any of its lock, until it has asked which."""
        self._wakeups.note(token, (lock, key))
        self._worker.start()

    def close(self) -> None:
        self._worker.stop()
        if (connection := self._socket) is not None:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _listen(self) -> float:
        try:
            connection = self._server.connect()
        except BackendUnavailable:
            return RETRY
        self._socket = mine = connection.sock
        try:
            end = text(self._path[:-1] + bytes([self._path[-1] + 1]))
            asked = {"key": text(self._path), "range_end": end, "filters": ["NOPUT"]}
            connection.request("POST", "/v3/watch", json.dumps({"create_request": asked}))
            response = connection.getresponse()
            connection.sock.settimeout(QUIET)
            for line in response:
                if not self._worker.is_current():
                    return 0.0
                self._hear(json.loads(line)["result"])
        except (OSError, HTTPException, ValueError, KeyError, AttributeError) as error:  # the last: it was closed
            if self._worker.is_current():
                logger.info("Waiters for locks are not told for a moment: %s", error)
        finally:
            if self._socket is mine:  # else there is another thread by now
                self._socket = None
            connection.close()
        return RETRY

    def _hear(self, news: dict[str, Any]) -> None:
        if news.get("created"):
            self._wakeups.wake_all()  # what was said before that has been missed
        for event in news.get("events", ()):
            gone = b64decode(event["kv"]["key"])
            for token, (lock, key) in self._wakeups.waiting().items():
                if key == gone or (key is None and gone.startswith(lock)):
                    self._wakeups.wake(token)
