"""What would be ignored, or fail in the first bad moment, is refused where it is written."""

from __future__ import annotations

import asyncio
import gc
import logging
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from django.core import checks
from flask import Flask

from distlock_web import (
    BackendUnavailable,
    ConfigurationError,
    LockBusy,
    attach,
    configure,
    distributed_lockable,
    events,
    held_locks,
    lock,
)
from distlock_web.core.config import parse
from distlock_web.core.registry import Registry
from distlock_web.flask import DistLock
from distlock_web.locks.key_templates import Key
from distlock_web.testing.plugin import hold_lock
from tests.support.revoking import revoke
from tests.support.waiting import eventually

pytestmark = pytest.mark.usefixtures("memory_store")


async def coroutine_function(*args: object) -> str:
    return "never awaited"


class AsyncCallable:
    async def __call__(self, *args: object) -> None: ...


def pay(order_id: int) -> str:
    return f"paid {order_id}"


async def apay(order_id: int) -> str:
    return f"paid {order_id}"


ASYNC: list[Any] = [coroutine_function, partial(coroutine_function, 1), AsyncCallable()]


# Nobody would await it ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", ASYNC)
def test_an_async_on_lost(given: Any) -> None:
    """The thread that notices the loss called it and dropped the coroutine: nobody was told."""
    with pytest.raises(ConfigurationError, match=r"^on_lost is .*coroutine function.*plain"):
        lock("a", on_lost=given)
    with pytest.raises(ConfigurationError, match=r"^on_lost is .*coroutine function.*plain"):
        distributed_lockable(on_lost=given)
    with pytest.raises(ConfigurationError, match=r"^DISTLOCK\['default'\]\[\"ON_LOST\"\] is .*coroutine function"):
        parse({"default": {"ON_LOST": given}})
    app = Flask("shop")
    app.config.update(DISTLOCK={"default": {"BACKEND": "memory"}}, DISTLOCK_ON_LOST=given)
    with pytest.raises(ConfigurationError, match=r"^DISTLOCK_ON_LOST is .*coroutine function"):
        DistLock(app)


def test_an_on_lost_that_turns_out_to_be_async_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    with lock("a", expire=60, renew=True, on_lost=lambda lease: coroutine_function()) as lease:
        assert revoke(lease.name, lease.fence)
        with pytest.raises(Exception, match="released by force"):
            lease.extend()
        eventually(lambda: "gave a coroutine" in caplog.text, "the mistake is in the log")
    gc.collect()  # a coroutine that nobody awaits would warn now


@pytest.mark.parametrize("inline", [True, False])
@pytest.mark.parametrize("given", ASYNC)
def test_an_async_listener(given: Any, inline: bool) -> None:
    with pytest.raises(ConfigurationError, match=r"listener is .*coroutine function.*plain"):
        events.subscribe(given, inline=inline)
    assert events.listeners == ()


@pytest.mark.parametrize("given", ASYNC)
@pytest.mark.parametrize("option", ["on_busy", "on_backend_error"])
def test_an_async_answer_of_a_plain_function(given: Any, option: str) -> None:
    """It came as "RuntimeError: a blocking port suspended", when the lock was busy for the first time."""
    options: dict[str, Any] = {option: given}
    with pytest.raises(ConfigurationError, match=rf"pay: {option} is .*coroutine function.*plain"):
        distributed_lockable(key="a", **options)(pay)
    distributed_lockable(key="a", **options)(apay)


def gives_a_coroutine(*args: object) -> object:
    return coroutine_function()


@pytest.mark.parametrize("given", [coroutine_function, gives_a_coroutine])
def test_an_async_answer_that_only_the_call_shows(given: Any) -> None:
    configure({"default": {"BACKEND": "memory", "ON_BUSY": given}})
    locked = distributed_lockable(key="a")(pay)
    with hold_lock("a"), pytest.raises(ConfigurationError, match=r"pay: its on_busy gave a coroutine") as caught:
        locked(1)
    assert isinstance(caught.value.__context__, LockBusy)
    assert locked(1) == "paid 1"
    with hold_lock("a"):
        assert asyncio.run(distributed_lockable(key="a")(apay)(1)) == "never awaited"
    gc.collect()


def test_a_key_function_that_turns_out_to_be_async() -> None:
    key: Key = lambda order_id: coroutine_function()  # noqa: E731
    with pytest.raises(ConfigurationError, match=r"pay: an async key function needs an async function to be locked"):
        distributed_lockable(key=key)(pay)(1)
    assert asyncio.run(distributed_lockable(key=key)(apay)(1)) == "paid 1"
    gc.collect()


# It would be ignored, or come too late ------------------------------------------------------------------------------


def test_a_plain_function_cannot_be_cancelled() -> None:
    with pytest.raises(ConfigurationError, match=r"pay: on_lost=\"cancel\" cancels an asyncio task"):
        distributed_lockable(key="a", on_lost="cancel")(pay)
    distributed_lockable(key="a", on_lost="cancel")(apay)


def test_renew_for_of_a_block_that_is_not_renewed() -> None:
    with pytest.raises(ConfigurationError, match=r"^renew_for .*needs renew=True"):
        lock("a", renew_for=60).acquire()
    assert not lock("a").locked()
    with lock("a", renew_for=60, renew=True):
        pass
    configure({"default": {"BACKEND": "memory", "RENEW": True}})
    with lock("a", renew_for=60):
        pass


@pytest.mark.parametrize("given", [5, b"default", ["default"], object()])
def test_a_store_that_is_no_alias(given: Any) -> None:
    for entry_point in (lambda: lock("a", store=given), lambda: distributed_lockable(store=given)):
        with pytest.raises(ConfigurationError, match=r"^store is .*alias.*DISTLOCK"):
            entry_point()


def test_none_is_as_good_as_left_out() -> None:
    names = ("prefix", "expire", "renew", "renew_for", "store", "on_lost", "hold_at_least")
    options: dict[str, Any] = dict.fromkeys(names)
    with lock("a", **options) as lease:
        assert lease.name == "disLock:a"
    more = dict.fromkeys(("on_busy", "on_backend_error", "until", "database"))
    assert distributed_lockable(key="a", **options, **more)(pay)(1) == "paid 1"


SHORT = [
    ({"LOCATION": "redlock://a.invalid,b.invalid,c.invalid", "EXPIRE": 0.05}, "0.1"),
    ({"LOCATION": "sqlite:////nowhere/locks.sqlite3", "EXPIRE": 0.02}, "0.05"),
    ({"BACKEND": "memory", "EXPIRE": 0.001}, "0.01"),
]


@pytest.mark.parametrize(("setting", "least"), SHORT)
def test_an_expire_that_the_store_cannot_express(setting: dict[str, Any], least: str, settings: Any) -> None:
    """Nobody was told before the first lock was taken, and then of an option that nobody had given."""
    said = rf"^DISTLOCK\['default'\]\[\"EXPIRE\"\] is {setting['EXPIRE']}; .*less than {least} seconds"
    with pytest.raises(ConfigurationError, match=said):
        _ = Registry({"default": setting}).store("default").backend
    app = Flask("shop")
    app.config["DISTLOCK"] = {"default": setting}
    with pytest.raises(ConfigurationError, match=said):
        DistLock(app)
    settings.DISTLOCK = {"default": setting}
    [message] = [each for each in checks.run_checks() if each.id == "distlock_web.E001"]
    assert message.msg.startswith("DISTLOCK['default'][\"EXPIRE\"]")


# Whose error it is, and what things are called -----------------------------------------------------------------------


@pytest.mark.parametrize("error", [LockBusy("of another lock"), BackendUnavailable("of another store")])
async def test_an_error_of_the_key_function_is_not_the_locks_own(error: Exception, caplog: Any) -> None:
    """In async code it counted as that of the lock itself, and the call was skipped, or answered by ``on_busy``."""
    caplog.set_level(logging.INFO)

    def key(order_id: int) -> str:
        raise error

    options: dict[str, Any] = {"key": key, "on_busy": "skip", "on_backend_error": lambda *args: "answered"}
    with pytest.raises(type(error), match="of another"):
        await distributed_lockable(**options)(apay)(1)
    with pytest.raises(type(error), match="of another"):
        await asyncio.to_thread(distributed_lockable(**options)(pay), 1)
    assert "skipped" not in caplog.text


def test_several_keys_may_come_first_as_one_may() -> None:
    for keys in (["a:{order_id}", "b:{order_id}"], ("a:{order_id}", lambda order_id: f"b:{order_id}")):

        @distributed_lockable(keys)
        def names(order_id: int) -> list[str]:
            return sorted(row.lock.name for row in held_locks())

        assert names(7) == ["disLock:a:7", "disLock:b:7"]
    with pytest.raises(ConfigurationError, match="two keys"):
        distributed_lockable(["a"], key="b")
    with pytest.raises(ConfigurationError, match="the list of keys is empty"):
        distributed_lockable([])(pay)


class Charge:
    def __call__(self, order_id: int) -> str:
        return "paid"


@pytest.mark.parametrize(
    ("function", "name"),
    [(Charge(), f"{__name__}.Charge(...)"), (partial(pay, 5), f"{__name__}.pay(...)")],
)
def test_an_object_that_can_be_called_is_called_by_its_class(function: Callable[..., str], name: str) -> None:
    locked = distributed_lockable(key="a")(function)
    assert locked.__distlock__.name == name  # type: ignore[attr-defined]
    with pytest.raises(ConfigurationError, match=r"has no name of its own \(.*\(\.\.\.\)\).*give it a key="):
        distributed_lockable(function)


@pytest.mark.parametrize(
    ("call", "twin"),
    [
        (lambda: lock("a").acquire(), "await lock(...).aacquire()"),
        (lambda: lock("a").locked(), "await lock(...).alocked()"),
        (lambda: attach("ticket"), "await aattach(...)"),
        (lambda: held_locks(), "await aheld_locks(...)"),
    ],
)
async def test_a_blocking_call_in_an_event_loop_names_its_own_twin(call: Callable[[], object], twin: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(twin)):
        call()
