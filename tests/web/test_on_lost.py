"""What a view whose lock is really lost in the middle does about it, and what its client sees."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client
from django.urls import path
from flask import Flask

from distlock_web import LeaseLost, current_lease, distributed_lockable
from distlock_web.flask import DistLock
from distlock_web.testing.fault_injector import FaultInjector
from tests.support.revoking import revoke_the_lock

told: list[Any] = []


def tell(lease: Any) -> None:
    told.append(lease.reason)


def revoked(request: HttpRequest) -> HttpResponse:
    """Its lock is revoked, and it goes on without a look."""
    revoke_the_lock()
    return HttpResponse("done")


def expired(request: HttpRequest) -> HttpResponse:
    lease = current_lease()
    assert lease is not None
    assert lease.lost.wait(30)
    return HttpResponse("done")


def looking(request: HttpRequest) -> HttpResponse:
    lease = current_lease()
    assert lease is not None
    while True:
        lease.raise_if_lost()
        threading.Event().wait(0.01)


async def arevoked(request: HttpRequest) -> HttpResponse:
    await asyncio.to_thread(revoke_the_lock)
    return HttpResponse("done")


async def aexpired(request: HttpRequest) -> HttpResponse:
    lease = current_lease()
    assert lease is not None
    assert await lease.lost
    return HttpResponse("done")


async def hanging(request: HttpRequest) -> HttpResponse:
    await asyncio.to_thread(revoke_the_lock)
    await asyncio.Event().wait()
    raise AssertionError


VIEWS: dict[str, Callable[..., Any]] = {
    "sync revoked": revoked,
    "sync expired": expired,
    "async revoked": arevoked,
    "async expired": aexpired,
}
EXPIRE = {"revoked": 10.0, "expired": 0.2}


def _guarded(name: str, view: Any, **options: Any) -> Any:
    return distributed_lockable(key="order", expire=EXPIRE[name.split()[1]], wait=5, **options)(view)


urlpatterns = [
    *(path(f"raise/{name}/", _guarded(name, view)) for name, view in VIEWS.items()),
    *(path(f"warn/{name}/", _guarded(name, view, on_lost="warn")) for name, view in VIEWS.items()),
    *(path(f"callable/{name}/", _guarded(name, view, on_lost=tell)) for name, view in VIEWS.items()),
    path("looking/", distributed_lockable(key="order", expire=0.5)(looking)),
    path("hanging/", distributed_lockable(key="order", expire=2.0, renew=True, on_lost="cancel")(hanging)),
    path("hanging-expired/", distributed_lockable(key="order", expire=1.0, on_lost="cancel")(hanging)),
]


@pytest.fixture(autouse=True)
def site(settings: Any, injector: FaultInjector) -> None:
    settings.ROOT_URLCONF = __name__
    settings.MIDDLEWARE = ["distlock_web.django.middleware.RequestIDMiddleware"]
    told.clear()


every_view = pytest.mark.parametrize("name", VIEWS)


@pytest.mark.timing
@every_view
def test_raise_is_an_error_of_the_server(name: str) -> None:
    """It reaches whoever reads the error reports; and no 409 or 503 invites to do again what may have been done."""
    with pytest.raises(LeaseLost) as caught:
        Client().get(f"/raise/{name}/")
    assert caught.value.reason == name.split()[1]
    assert Client(raise_request_exception=False).get(f"/raise/{name}/").status_code == 500


@pytest.mark.timing
@every_view
def test_warn_is_a_line_in_the_log(name: str, caplog: pytest.LogCaptureFixture) -> None:
    assert Client().get(f"/warn/{name}/").content == b"done"
    [record] = [record for record in caplog.records if record.name == "distlock_web"]
    assert record.levelname == "WARNING"
    assert "order" in record.getMessage()


@pytest.mark.timing
@every_view
def test_a_callable_is_called_once(name: str) -> None:
    assert Client().get(f"/callable/{name}/").content == b"done"
    until = time.monotonic() + 10  # where the watchdog notices, it is called in a thread of its own
    while not told and time.monotonic() < until:
        time.sleep(0.01)
    assert told == [name.split()[1]]


@pytest.mark.timing
def test_a_view_that_looks_stops_at_once() -> None:
    with pytest.raises(LeaseLost, match="ended before the block did"):
        Client().get("/looking/")


@pytest.mark.parametrize("name", ["hanging", "hanging-expired"])
async def test_cancel_stops_a_view_that_hangs(name: str, async_client: AsyncClient) -> None:
    with pytest.raises(LeaseLost):
        await asyncio.wait_for(async_client.get(f"/{name}/"), 30)


@pytest.mark.timing
def test_in_flask(store_settings: dict[str, Any]) -> None:
    app = Flask("shop")
    app.config["DISTLOCK"] = {"default": store_settings}
    DistLock(app)
    for policy in ("raise", "warn", tell):
        view = distributed_lockable(key="order", expire=10, on_lost=policy)(lambda: revoke_the_lock() or "done")
        app.add_url_rule(f"/{getattr(policy, '__name__', policy)}/", f"{policy}", view)
    client = app.test_client()
    assert client.get("/raise/").status_code == 500
    assert client.get("/warn/").text == client.get("/tell/").text == "done"
    assert told == ["revoked"]
    app.extensions["distlock"].registry.close()
