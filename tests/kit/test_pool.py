"""The pool of connections: bounded, last in first out, and whole after every exception."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any

import pytest

from distlock_web.kit import pool as module
from distlock_web.kit.pool import AllInUse, Lent, Pool
from tests.support.waiting import LONG, SOON, eventually


class Server:
    """Connections are numbers."""

    def __init__(self) -> None:
        self.open: set[int] = set()
        self.most = 0
        self._next = itertools.count(1)

    def connect(self, timeout: float | None) -> int:
        number = next(self._next)
        self.open.add(number)
        self.most = max(self.most, len(self.open))
        return number

    def close(self, number: int) -> None:
        self.open.remove(number)


@pytest.fixture
def server() -> Server:
    return Server()


def pool(server: Server, size: int, patience: float = 0.0, connect: Any = None) -> Pool[Lent[int]]:
    return Pool(size, patience, partial(Lent[int], connect or server.connect, server.close))


def test_the_last_that_was_used_is_lent_first(server: Server) -> None:
    connections = pool(server, 3)
    lent = [connections.borrow() for _ in range(3)]
    for one in lent:
        one.end()
    assert [connections.borrow().connection for _ in range(2)] == [3, 2]


def test_all_in_use_is_said_at_once_or_after_the_patience(server: Server) -> None:
    connections = pool(server, 2)
    first, second = connections.borrow(), connections.borrow()
    with pytest.raises(AllInUse):
        connections.borrow()
    second.end(usable=False)
    assert server.open == {1}
    assert connections.borrow().connection == 3, "its place is free"
    first.end()


@pytest.mark.parametrize("usable", [True, False])
def test_one_that_is_given_back_wakes_one_that_waits(
    server: Server, beside: Callable[..., Future[Any]], usable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_SLEEP", LONG)
    connections = pool(server, 1, LONG)
    lent = connections.borrow()
    waiting = beside(connections.borrow)
    eventually(lambda: len(connections.waiting) == 1, "it waits")
    lent.end(usable=usable)
    assert waiting.result(SOON).connection == (1 if usable else 2)


def test_threads_never_have_more_than_there_are(server: Server, beside: Callable[..., Future[Any]]) -> None:
    connections = pool(server, 3, LONG)

    def work() -> None:
        for number in range(50):
            lent = connections.borrow()
            time.sleep(0.0005)
            lent.end(usable=number % 7 > 0)

    for worker in [beside(work) for _ in range(8)]:
        worker.result(LONG)
    assert server.most == 3
    assert not connections.waiting


def test_what_is_in_use_when_all_are_dropped_is_closed_when_it_is_given_back(server: Server) -> None:
    connections = pool(server, 2)
    used, idle = connections.borrow(), connections.borrow()
    idle.end()
    connections.drop()
    assert server.open == {used.connection}
    used.end()
    assert server.open == set()
    assert connections.borrow().connection == 3


def test_a_place_is_free_when_its_connection_fails_or_is_garbage(server: Server) -> None:
    errors: Iterator[bool] = iter([True, False])

    def connect(timeout: float | None) -> int:
        if next(errors, False):
            raise ConnectionError
        return server.connect(timeout)

    connections = pool(server, 1, connect=connect)
    with pytest.raises(ConnectionError) as kept:
        connections.borrow()
    lent = connections.borrow()
    del lent  # whoever had it was interrupted
    assert connections.borrow().connection == 2
    assert kept.value is not None


def test_one_that_is_given_back_while_all_are_dropped_is_not_kept(server: Server) -> None:
    """It would lead to the server of before, a master that is none any more."""
    connections = pool(server, 1)
    used = connections.borrow()

    class DroppedBefore(deque[Any]):
        def append(self, item: Any) -> None:
            connections.drop()
            super().append(item)

    connections.idle = DroppedBefore()
    used.end()
    assert server.open == set()
    assert connections.in_use == 0
