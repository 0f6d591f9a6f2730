"""Keys of views: what a visitor does not have, and what the docs show."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client
from django.urls import path
from django.utils.asyncio import async_unsafe
from django.utils.functional import SimpleLazyObject

from distlock_web import current_lease, distributed_lockable


def held() -> HttpResponse:
    lease = current_lease()
    assert lease is not None
    return HttpResponse(lease.name.removeprefix("disLock:"))


@distributed_lockable(key="cart:{request.user.pk}")
def cart(request: HttpRequest) -> HttpResponse:
    return held()


@distributed_lockable(key="cart:{request.user.pk|request.META[REMOTE_ADDR]}")
async def avisitor(request: HttpRequest) -> HttpResponse:
    return held()


@distributed_lockable(key="{request.user}")
def of_user(request: HttpRequest) -> HttpResponse:
    return held()


@distributed_lockable(key="{request.user}")
async def aof_user(request: HttpRequest) -> HttpResponse:
    return held()


@distributed_lockable(key="item:{request.GET[item]}")
def item(request: HttpRequest) -> HttpResponse:
    return held()


@distributed_lockable(key="item:{request.GETT[item]}")
def typo(request: HttpRequest) -> HttpResponse:
    return held()


urlpatterns = [
    path("cart", cart),
    path("avisitor", avisitor),
    path("of_user", of_user),
    path("aof_user", aof_user),
    path("item", item),
    path("typo", typo),
]


class LogIn:
    """In the place of Django's own, which needs a database."""

    user: Any = AnonymousUser()
    async_capable = False

    def __init__(self, get_response: Any) -> None:
        self.get_response = get_response

    def __call__(self, request: Any) -> Any:
        async def auser() -> Any:
            raise AssertionError("the session's user, in whose place this middleware has put its own")

        request.user = SimpleLazyObject(async_unsafe(lambda: self.user))
        request.auser = auser
        return self.get_response(request)


@pytest.fixture(autouse=True)
def site(settings: Any, memory: None) -> None:
    settings.ROOT_URLCONF = __name__
    settings.MIDDLEWARE = ["distlock_web.django.middleware.RequestIDMiddleware", f"{__name__}.LogIn"]


@pytest.fixture
def logged_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LogIn, "user", User(pk=7))


@pytest.mark.parametrize(
    ("address", "missing"), [("/cart", "user.pk"), ("/item", "GET[item]"), ("/item?items=7", "GET")]
)
def test_what_the_request_does_not_have_is_a_400(address: str, missing: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    answer = Client(headers={"accept": "application/json"}).get(address)
    assert (answer.status_code, answer.json()["code"]) == (400, "lock_key_unavailable")
    assert missing not in answer.content.decode()
    [record] = [record for record in caplog.records if record.name == "distlock_web"]
    assert (record.levelname, missing in record.getMessage()) == ("INFO", True)


def test_what_it_has_is_a_key(logged_in: None) -> None:
    assert Client().get("/cart").content == b"cart:7"
    assert Client().get("/item?item=a:b").content == b"item:a%3Ab"


@pytest.mark.parametrize(
    ("view", "key"), [("avisitor", b"cart:7"), ("of_user", b"auth.user:7"), ("aof_user", b"auth.user:7")]
)
async def test_also_where_the_user_is_awaited_or_is_the_key(logged_in: None, view: str, key: bytes) -> None:
    assert (await AsyncClient().get(f"/{view}")).content == key


@pytest.mark.parametrize("view", ["of_user", "aof_user"])
async def test_a_user_that_nobody_is_is_no_key(view: str) -> None:
    assert (await AsyncClient().get(f"/{view}")).status_code == 400


def test_a_mistake_in_the_key_is_no_fault_of_the_client() -> None:
    assert Client(raise_request_exception=False).get("/typo?item=7").status_code == 500
