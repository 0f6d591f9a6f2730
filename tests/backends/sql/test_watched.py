"""A driver in C, whose answers a thread of ours waits for."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from distlock_web.backends.sql.watched import Unanswered, Watched


class Driver:
    """A connection as psycopg2 has it, on one end of a pair; what it is asked is answered by what comes."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self.notifies: list[bytes] = []

    def fileno(self) -> int:
        return self._sock.fileno()

    def poll(self) -> None:
        self.notifies.append(self._sock.recv(100))

    def cursor(self) -> Driver:
        return self

    def execute(self, question: bytes) -> None:
        self._sock.sendall(question)
        if not self._sock.recv(100):
            raise ConnectionError("the server closed the connection")

    def close(self) -> None:
        self._sock.close()


@pytest.fixture
def ends() -> Iterator[tuple[Any, socket.socket]]:
    ours, theirs = socket.socketpair()
    with theirs:
        watched = Watched(Driver(ours), 0.2)
        watched.disarm()
        yield watched, theirs
        watched.close()


def test_an_answer_that_does_not_come(ends: tuple[Any, socket.socket]) -> None:
    watched, _ = ends
    with pytest.raises(Unanswered):
        watched.cursor().execute(b"?")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_ends_no_connection_of_its_parent(ends: tuple[Any, socket.socket]) -> None:
    """A thread of the parent was waiting for an answer when another one forked: its time was over in the child, too."""
    watched, theirs = ends
    watched.limit = 0.5
    with watched.within_limit():
        pid = os.fork()
        if pid == 0:
            mine, _silent = socket.socketpair()
            try:
                Watched(Driver(mine), 1.0).cursor().execute(b"?")
            except Unanswered:
                os._exit(0)
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    theirs.sendall(b"!")
    watched.cursor().execute(b"?")


def test_a_message_on_a_descriptor_above_those_of_select(ends: tuple[Any, socket.socket]) -> None:
    watched, theirs = ends
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2000), hard))
    watched._sock.close()
    high = os.dup2(watched.fileno(), 1500)
    watched._sock = socket.socket(fileno=high)
    theirs.sendall(b"news")
    assert list(watched.notifies(5.0)) == [b"news"]
