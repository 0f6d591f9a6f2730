"""The decorator on every kind of view: it locks, it excludes, it lets go."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

import pytest
from django.test import AsyncClient, Client
from django.utils.decorators import method_decorator

from distlock_web import ConfigurationError, current_lease, distributed_lockable
from distlock_web.core.registry import registry
from distlock_web.core.runtime import THREADS, drive
from distlock_web.locks.key_templates import KeyTemplates

SYNC = ["function", "methods", "dispatched", "rest-function", "rest-view", "rest/sets", "nested"]
ASYNC = ["coroutine", "async-methods", "async-dispatched", "wrapped", "nested-async"]


def held() -> list[str]:
    return [line.name for line in drive(registry().store("default").port(THREADS).inspect())]


@pytest.mark.parametrize("view", SYNC + ASYNC)
@pytest.mark.usefixtures("store")
def test_under_wsgi_the_view_runs_under_its_lock_and_gives_it_back(view: str) -> None:
    response = Client().get(f"/shop/{view}/7/")
    assert response.status_code == 200
    assert response.json()["locks"] == ["disLock:order:7"]
    assert held() == []


@pytest.mark.parametrize("view", SYNC + ASYNC)
@pytest.mark.usefixtures("store")
async def test_under_asgi_the_view_runs_under_its_lock_and_gives_it_back(view: str) -> None:
    response = await AsyncClient().get(f"/shop/{view}/7/")
    assert response.status_code == 200
    assert response.json()["locks"] == ["disLock:order:7"]
    assert await asyncio.to_thread(held) == []


@pytest.mark.parametrize("view", [*SYNC, *ASYNC, "rest/sets/7/pay"])
@pytest.mark.usefixtures("store")
def test_a_view_whose_lock_is_held_elsewhere_answers_409(view: str, elsewhere: Any) -> None:
    address = f"/shop/{view}/" if view.endswith("pay") else f"/shop/{view}/7/"
    lease = elsewhere("order:7")
    refused = Client().get(address)
    lease.release()
    assert refused.status_code == 409
    assert 1 <= int(refused["Retry-After"]) <= 10
    assert Client().get(address).status_code == 200


@pytest.mark.parametrize("view", ["function", "methods", "dispatched", "rest-view"])
@pytest.mark.usefixtures("store")
def test_two_requests_with_the_same_request_id_exclude_each_other(view: str, gate: Any, in_thread: Any) -> None:
    first = in_thread(Client().get, f"/shop/{view}/7/", headers={"Req-Id": "same"})
    assert gate.entered.wait(20)
    second = Client().get(f"/shop/{view}/7/", headers={"Req-Id": "same"})
    assert second.status_code == 409
    gate.opened.set()
    first.join(20)
    assert first.outcome.status_code == 200


@pytest.mark.parametrize("view", ["coroutine", "async-methods", "async-dispatched", "wrapped"])
@pytest.mark.usefixtures("store")
async def test_two_async_requests_with_the_same_request_id_exclude_each_other(view: str, gate: Any) -> None:
    first = asyncio.create_task(AsyncClient().get(f"/shop/{view}/7/", headers={"Req-Id": "same"}))
    assert await asyncio.to_thread(gate.entered.wait, 20)
    second = await AsyncClient().get(f"/shop/{view}/7/", headers={"Req-Id": "same"})
    assert second.status_code == 409
    gate.opened.set()
    assert (await first).status_code == 200


# method_decorator --------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("memory")
def test_among_other_decorators_the_method_keeps_its_arguments() -> None:
    taken: list[str] = []

    def passing(view: Any) -> Any:
        @functools.wraps(view)
        def inner(*args: Any, **kwargs: Any) -> Any:
            return view(*args, **kwargs)

        return inner

    locked = distributed_lockable(key="order:{request}:{order_id}", expire=10)

    class Shop:
        @method_decorator([locked, passing, never_cache_like])
        def first(self, request: str, order_id: int) -> None:
            taken.extend(current_lease().names)

        @method_decorator(passing)
        @method_decorator(locked)
        def last(self, request: str, order_id: int) -> None:
            taken.extend(current_lease().names)

    def call(method: Any) -> None:
        method("r", 7)  # by position: the names have to come from the method itself

    call(Shop().first)
    call(Shop().last)
    assert taken == ["disLock:order:r:7"] * 2


def never_cache_like(view: Any) -> Any:
    @functools.wraps(view)
    def inner(request: Any, *args: Any, **kwargs: Any) -> Any:
        return view(request, *args, **kwargs)

    return inner


@pytest.mark.usefixtures("memory")
def test_a_method_is_looked_at_once_and_not_for_every_call(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    class Counted(KeyTemplates):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            made.append(args[0])
            super().__init__(*args, **kwargs)

    monkeypatch.setattr("distlock_web.locks.decorator.KeyTemplates", Counted)

    class Shop:
        @method_decorator(distributed_lockable(key="order:{order_id}", expire=10))
        def pay(self, order_id: int) -> None: ...

    made.clear()  # method_decorator tries the decorator on a dummy
    for order_id in range(5):
        Shop().pay(order_id=order_id)
    assert made == ["order:{order_id}"]


@pytest.mark.usefixtures("memory")
def test_a_coroutine_that_would_run_without_the_lock_is_refused() -> None:
    async def work() -> None: ...

    with pytest.raises(ConfigurationError, match="decorate the async function itself"):
        distributed_lockable(key="a")(lambda: work())()  # type: ignore[unused-coroutine]
    assert held() == []
