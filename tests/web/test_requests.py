"""Requests that share a thread or a task: what one leaves behind is nothing to the next."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client
from django.urls import path
from flask import Flask

from distlock_web import Lease, current_lease, lock
from distlock_web.flask import DistLock
from distlock_web.locks.reentry import chain
from tests.support.waiting import LONG, SOON, eventually

DID, NOT_NOW = "did it", "not now"


def once() -> str:
    """At most once a second: the lease is left to its time."""
    return DID if lock("once", expire=1).try_acquire() else NOT_NOW


async def aonce() -> str:
    return DID if await lock("once", expire=1).atry_acquire() else NOT_NOW


def view(request: HttpRequest) -> HttpResponse:
    return HttpResponse(once())


async def async_view(request: HttpRequest) -> HttpResponse:
    return HttpResponse(await aonce())


kept: list[Lease | None] = []


def once_and_keep() -> str:
    """The lease outlives its request: something of the project's has it, or a cycle of references."""
    kept.append(lock("once", expire=LONG).try_acquire())
    return DID if kept[-1] else NOT_NOW


def kept_view(request: HttpRequest) -> HttpResponse:
    return HttpResponse(once_and_keep())


urlpatterns = [path("once/", view), path("aonce/", async_view), path("kept/", kept_view)]


def make_app() -> Flask:
    app = Flask("shop")
    app.config["DISTLOCK"] = {"default": {"BACKEND": "memory"}}
    DistLock(app)
    app.add_url_rule("/once/", view_func=once, endpoint="once")
    app.add_url_rule("/aonce/", view_func=aonce, endpoint="aonce")
    app.add_url_rule("/kept/", view_func=once_and_keep, endpoint="cooldown")
    return app


@pytest.fixture(params=["django, wsgi", "django, asgi", "flask"])
def get(request: pytest.FixtureRequest, settings: Any) -> Iterator[Callable[[str], str]]:
    """One request, in the thread and the context of all requests before it."""
    settings.DISTLOCK = {"default": {"BACKEND": "memory"}}
    settings.ROOT_URLCONF = __name__
    if request.param == "flask":
        app = make_app()
        yield lambda address: app.test_client().get(address).text
        app.extensions["distlock"].registry.close()
    elif request.param == "django, wsgi":
        yield lambda address: Client().get(address).content.decode()
    else:
        with asyncio.Runner() as runner:
            client = AsyncClient()

            async def one(address: str) -> str:
                return (await client.get(address)).content.decode()

            yield lambda address: runner.run(one(address))  # in the runner's one context


@pytest.mark.timing
@pytest.mark.slow
@pytest.mark.parametrize("address", ["/once/", "/aonce/"])
def test_a_lease_that_a_request_leaves_to_its_time_is_not_the_next_requests(
    get: Callable[[str], str], address: str
) -> None:
    """The next request of the same worker thread re-entered it, and the one after its end failed with LeaseLost."""
    assert get(address) == DID
    assert get(address) == NOT_NOW
    answers: list[str] = []
    eventually(lambda: answers.append(get(address)) or answers[-1] == DID, "the lease ends", SOON)
    assert set(answers[:-1]) <= {NOT_NOW}


def test_a_lease_that_outlives_its_request_is_not_the_next_requests(get: Callable[[str], str]) -> None:
    """A weak reference to it was still alive: the next request of the same thread entered as if it were nested."""
    assert get("/kept/") == DID
    assert get("/kept/") == NOT_NOW
    kept.clear()


@pytest.mark.parametrize("get", ["django, wsgi", "flask"], indirect=True)
def test_a_request_inside_of_a_lock_leaves_its_caller_inside(get: Callable[[str], str]) -> None:
    """A test, or an app that calls another, holds a lock around the request: afterwards it still does."""
    with lock("around") as lease:
        assert get("/once/") == DID
        assert current_lease() == lease
    assert chain.current_chain() == chain.OUTSIDE


async def test_an_async_request_inside_of_a_lock_leaves_its_caller_inside(settings: Any) -> None:
    """As above, in one task."""
    settings.DISTLOCK = {"default": {"BACKEND": "memory"}}
    settings.ROOT_URLCONF = __name__
    async with lock("around") as lease:
        assert (await AsyncClient().get("/aonce/")).content.decode() == DID
        assert current_lease() == lease
    assert chain.current_chain() == chain.OUTSIDE
