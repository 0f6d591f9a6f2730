"""A key of a URL's text: what is not of its form is a 404, as with a URL converter; ``check`` looks for spellings."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
from django.core import checks
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import include, path, re_path
from django.utils.decorators import method_decorator
from django.views import View
from rest_framework.decorators import action, api_view
from rest_framework.response import Response
from rest_framework.routers import DefaultRouter
from rest_framework.viewsets import ViewSet

from distlock_web import current_lease, distributed_lockable

pytestmark = pytest.mark.usefixtures("memory")


def held() -> str:
    lease = current_lease()
    assert lease is not None
    return lease.name.removeprefix("disLock:")


by_number = distributed_lockable(key="wallet:{pk:int}")


class Method(View):
    @method_decorator(by_number)
    def get(self, request: HttpRequest, pk: str) -> HttpResponse:
        return HttpResponse(held())


class Direct(View):
    @by_number
    def get(self, request: HttpRequest, pk: str) -> HttpResponse:
        return HttpResponse(held())


@method_decorator(by_number, name="dispatch")
class Dispatched(View):
    def get(self, request: HttpRequest, pk: str) -> HttpResponse:
        return HttpResponse(held())


@by_number
@api_view(["GET"])
def above(request: Any, pk: str) -> Response:
    return Response(held())


@api_view(["GET"])
@by_number
def below(request: Any, pk: str) -> Response:
    return Response(held())


class Wallets(ViewSet):
    @action(detail=True)
    @distributed_lockable(key=["wallet:{pk:int}", "wallet:{request.GET[to]:int}"])
    def transfer(self, request: Any, pk: str) -> Response:
        return Response({"from": pk})


VIEWS = ["method", "direct", "dispatched", "above", "below"]


@pytest.fixture(params=["with the middleware", "without"])
def site(request: pytest.FixtureRequest, settings: Any) -> None:
    settings.ROOT_URLCONF = __name__
    settings.MIDDLEWARE = settings.MIDDLEWARE[:1] if request.param == "with the middleware" else []


@pytest.mark.usefixtures("site")
@pytest.mark.parametrize("view", VIEWS)
def test_a_number_is_a_number_and_all_else_leads_nowhere(view: str) -> None:
    for spelled in ("1", "01", "+1", "%201", "\u0661"):
        answer = Client().get(f"/{view}/{spelled}")
        assert (answer.status_code, answer.content.decode().strip('"')) == (200, "wallet:1"), spelled
    answer = Client().get(f"/{view}/one")
    assert answer.status_code == 404
    assert b"wallet" not in answer.content, "nothing of the key is told"


@pytest.mark.usefixtures("site")
def test_rest_frameworks_answer_is_in_its_form() -> None:
    for address in ("/api/wallets/one/transfer/?to=1", "/api/wallets/1/transfer/?to=one"):
        answer = Client().get(address, headers={"accept": "application/json"})
        assert (answer.status_code, answer.json()) == (404, {"detail": "Not found."})
    assert Client().get("/api/wallets/01/transfer/?to=2").json() == {"from": "01"}


# What `check` says ------------------------------------------------------------------------------------------------


class Rows(ViewSet):
    @action(detail=True, methods=["POST"])
    @distributed_lockable(key="row:{pk}")
    def pay(self, request: Any, pk: str) -> Response:
        return Response()


@distributed_lockable(key=["order:{order_id}", "shop:{shop}"])
def plain(request: HttpRequest, order_id: object, shop: object = "") -> HttpResponse:
    return HttpResponse()


@distributed_lockable(key="order:{order_id:str}")
def text(request: HttpRequest, order_id: str) -> HttpResponse:
    return HttpResponse()


@distributed_lockable(key=lambda request, order_id: f"order:{int(order_id)}")
def made(request: HttpRequest, order_id: str) -> HttpResponse:
    return HttpResponse()


rows = DefaultRouter()
rows.register("rows", Rows, basename="row")


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        (path("api/", include(rows.urls)), "pk"),
        (path("o/<order_id>", plain), "order_id"),
        (path("s/<slug:shop>/", include([path("o/<slug:order_id>", plain)])), "order_id"),
        (re_path(r"^o/(?P<order_id>\d+)$", plain), "order_id"),
        (path("o/<int:order_id>", plain), None),
        (path("o/<uuid:order_id>/<shop>", plain), None),
        (path("o/<order_id>", text), None),
        (path("o/<order_id>", made), None),
    ],
)
def test_w007(pattern: Any, name: str | None, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("urls_of_w007")
    module.urlpatterns = [pattern]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    settings.ROOT_URLCONF = module.__name__
    found = [each.hint for each in checks.run_checks() if each.id == "distlock_web.W007"]
    assert len(found) == (name is not None)
    assert all(f"Write {{{name}:int}} or {{{name}:uuid}} in the key, or <int:{name}> in" in str(hint) for hint in found)
