"""A fence on its way to another service, whose view checks it against its own row."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.test import Client
from django.urls import path

from distlock_web import ConfigurationError, LeaseLost, StaleFence, configure, fence_headers, lock, read_fence
from tests.support.fenced_tables import Stock

pytestmark = [
    pytest.mark.usefixtures("tables"),
    pytest.mark.parametrize("database", ["sqlite"], indirect=True),
]


def take_one(request: HttpRequest) -> HttpResponse:
    """The other service's view."""
    try:
        fence = read_fence(request.headers)
        stock = Stock.objects.fenced_get(fence, name="bicycle")
        stock.count -= 1
        stock.fenced_save(fence)
    except StaleFence as error:
        return HttpResponse(str(error), status=409)
    return JsonResponse({"left": stock.count})


@pytest.fixture
def post(settings: Any) -> Callable[..., Any]:
    urls = ModuleType("urls")
    urls.urlpatterns = [path("take-one", take_one)]  # type: ignore[attr-defined]
    settings.ROOT_URLCONF = urls
    configure({"default": {"BACKEND": "memory"}})
    Stock.objects.create(name="bicycle", count=10)
    return lambda **headers: Client(headers=headers).post("/take-one")


def test_a_fence_goes_with_a_request(post: Callable[..., HttpResponse]) -> None:
    with lock("bicycle") as first:
        headers = fence_headers(first)
        assert headers == {"Lock-Fence": str(first.fence)}
        assert post(**headers).content == b'{"left": 9}'
    with lock("bicycle") as second:
        assert post(**fence_headers(second)).content == b'{"left": 8}'
    refused = post(**headers)  # the first one's request was on its way for long
    assert (refused.status_code, Stock.objects.get().count) == (409, 8)
    assert b"a newer holder" in refused.content
    with pytest.raises(LeaseLost):
        fence_headers(first)


@pytest.mark.parametrize("sent", [None, "", "x", "-5", "5.0", "５", str(2**63), "9" * 5000, "5 5", "0x5", "1_0"])
def test_what_is_no_fence_is_refused(sent: str | None, post: Callable[..., HttpResponse]) -> None:
    with pytest.raises(StaleFence, match="has no Lock-Fence with a number"):
        read_fence({} if sent is None else {"Lock-Fence": sent})


def test_a_lease_without_a_fence_says_why(post: Callable[..., HttpResponse]) -> None:
    with lock(["a", "b"]) as lease, pytest.raises(ConfigurationError, match=r"lease\.fence_for\(key\)"):
        fence_headers(lease)
    with lock(["a", "b"]) as lease:
        assert fence_headers(lease.fences["disLock:a"])["Lock-Fence"].isdigit()
