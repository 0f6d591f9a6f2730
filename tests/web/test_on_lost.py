"""What a view whose lock is really lost in the middle does about it, and what its client sees: in Django and Flask."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from django.test import AsyncClient, Client

from distlock_web import LeaseLost, current_lease
from tests.support.both import SITES, Get, View, serving, urls
from tests.support.revoking import revoke_the_lock
from tests.support.waiting import eventually

told: list[str] = []


def tell(lease: Any) -> None:
    told.append(lease.reason)


def revoked() -> str:
    """Its lock is revoked, and it goes on without a look."""
    revoke_the_lock()
    return "done"


async def arevoked() -> str:
    await asyncio.to_thread(revoke_the_lock)
    return "done"


def expired() -> str:
    lease = current_lease()
    assert lease is not None
    assert lease.lost.wait(30)
    return "done"


async def aexpired() -> str:
    lease = current_lease()
    assert lease is not None
    assert await lease.lost
    return "done"


async def hanging() -> str:
    await asyncio.to_thread(revoke_the_lock)
    await asyncio.Event().wait()
    raise AssertionError


LOSSES = {"revoked": revoked, "arevoked": arevoked, "expired": expired, "aexpired": aexpired}
POLICIES = {"raise": "raise", "warn": "warn", "callable": tell}
VIEWS = {
    **{
        f"{policy}/{name}/": View(
            view, {"key": "order", "expire": 0.2 if "expired" in name else 10.0, "wait": 5, "on_lost": on_lost}
        )
        for policy, on_lost in POLICIES.items()
        for name, view in LOSSES.items()
    },
    "hanging/": View(hanging, {"key": "order", "expire": 4.0, "renew": True, "on_lost": "cancel"}),
    "hanging-expired/": View(hanging, {"key": "order", "expire": 3.0, "on_lost": "cancel"}),
}
urlpatterns = urls(VIEWS)
pytestmark = pytest.mark.usefixtures("memory")


@pytest.fixture(params=SITES)
def get(request: pytest.FixtureRequest, settings: Any) -> Iterator[Get]:
    told.clear()
    with serving(request.param, __name__, VIEWS, settings) as get:
        yield get


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.timing] if "expired" in name else []) for name in LOSSES]
)
@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy(get: Get, policy: str, name: str, caplog: pytest.LogCaptureFixture) -> None:
    """A loss that is raised is a 500: a 409 or 503 would invite to do again what may have been done."""
    answer = get(f"{policy}/{name}/")
    if policy == "raise":
        assert answer.status == 500
        return
    assert (answer.status, answer.text) == (200, "done")
    [record] = [record for record in caplog.records if record.name == "distlock_web"]
    assert (record.levelname, "order" in record.getMessage()) == ("WARNING", True)
    if policy == "callable":
        eventually(lambda: told, "it is told, beside the request where the watchdog notices")
        assert told == [name.removeprefix("a")]


def test_the_loss_reaches_the_error_reports(settings: Any) -> None:
    settings.ROOT_URLCONF = __name__
    with pytest.raises(LeaseLost) as caught:
        Client().get("/raise/revoked/")
    assert caught.value.reason == "revoked"


@pytest.mark.parametrize("name", ["hanging", "hanging-expired"])
async def test_cancel_stops_a_view_that_hangs(name: str, async_client: AsyncClient, settings: Any) -> None:
    settings.ROOT_URLCONF = __name__
    with pytest.raises(LeaseLost):
        await asyncio.wait_for(async_client.get(f"/{name}/"), 30)
