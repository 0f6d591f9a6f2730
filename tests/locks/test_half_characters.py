"""Half of a character comes in a client's JSON or in bytes that are no UTF-8. No store takes it: Redis raises a bug."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from distlock_web import attach, configure, distributed_lockable, lock, once, request_scope
from distlock_web.core.errors import DistLockError
from distlock_web.core.registry import registry
from distlock_web.core.request_id import Origin, bind_origin, unbind_origin
from distlock_web.core.runtime import Runtime
from distlock_web.testing.fault_injector import FaultInjector
from tests.support.tickets import forged

HALF = "a\udcff"


class Noted(FaultInjector):
    """What goes to the store."""

    def __init__(self) -> None:
        super().__init__(registry().store("default"))
        self.given = list[object]()

    async def send(self, runtime: Runtime, verb: str, send: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        self.given.append(args)
        return await super().send(runtime, verb, send, args)


def texts_in(given: object) -> Iterator[str]:
    if isinstance(given, str):
        yield given
    elif isinstance(given, Iterable):
        for each in given:
            yield from texts_in(each)


def taken(key: Any = "a", **options: Any) -> None:
    with lock(key, **options):
        pass


def called(key: Any, *given: object, **options: Any) -> None:
    distributed_lockable(key=key, **options)(lambda given: None)(*given)


def named_like_that() -> None:
    def work() -> None: ...

    work.__qualname__ = HALF
    distributed_lockable(key="a")(work)()


def in_a_thread() -> None:
    thread = threading.Thread(target=taken, name=HALF)
    thread.start()
    thread.join()


def in_a_request(**origin: Any) -> None:
    bound = bind_origin(Origin.new(**{"request_id": "r", **origin}))
    try:
        taken()
    finally:
        unbind_origin(bound)


def answered() -> None:
    call = once(key="a", keep=60, result=True)(lambda: {HALF: HALF})
    assert call() == call() == {HALF: HALF}


def asked_for() -> None:
    with request_scope(HALF):
        taken()


def by_setting() -> None:
    configure({"default": {"BACKEND": "memory", "PREFIX": HALF}})


#: By what they are given: what of theirs reaches the store comes there whole.
WRITTEN: dict[str, Callable[[], object]] = {
    "a key": lambda: taken(HALF),
    "several keys": lambda: taken(["b", HALF]),
    "a long key": lambda: taken(HALF * 1000),
    "the value of a template": lambda: called("a:{given}", HALF),
    "a template": lambda: called(f"{HALF}:{{given}}", 1),
    "the key of a function": lambda: called(lambda given: HALF, 1),
    "the name of a function": named_like_that,
    "the name of a thread": in_a_thread,
    "the id of a request": lambda: in_a_request(request_id=HALF),
    "the id that a neighbour gives a request": lambda: in_a_request(named=lambda: HALF),
    "the path of a request": lambda: in_a_request(path=HALF),
    "the user of a request": lambda: in_a_request(user=lambda: HALF),
    "what once keeps": answered,
}
#: These are refused, in words.
REFUSED: dict[str, Callable[[], object]] = {
    "the prefix of a lock": lambda: taken(prefix=HALF),
    "the prefix of a store": by_setting,
    "the store of a lock": lambda: taken(store=HALF),
    "the id of a job": asked_for,
    "a ticket": lambda: attach(forged() + HALF),
    "the name in a ticket": lambda: attach(forged(held=[[HALF, 1]])),
    "the prefix in a ticket": lambda: attach(forged(prefix=HALF)),
    "the store in a ticket": lambda: attach(forged(store=HALF)),
}


@pytest.mark.usefixtures("memory_store")
@pytest.mark.parametrize("call", WRITTEN.values(), ids=WRITTEN)
def test_what_goes_to_a_store_has_no_half_of_a_character(call: Callable[[], object]) -> None:
    noted = Noted()
    call()
    texts = list(texts_in(noted.given))
    assert texts
    for text in texts:
        text.encode()


@pytest.mark.usefixtures("memory_store")
@pytest.mark.parametrize("call", REFUSED.values(), ids=REFUSED)
def test_what_is_not_written_otherwise_is_refused_before_anything_is_sent(call: Callable[[], object]) -> None:
    noted = Noted()
    with pytest.raises(DistLockError):
        call()
    assert noted.given == []
