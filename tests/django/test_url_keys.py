"""A key of a URL's text: what is not of its form is a 404, as with a URL converter; ``check`` looks for spellings."""

from __future__ import annotations

import sys
import uuid
from types import ModuleType
from typing import Any

import pytest
from django.core import checks
from django.db import models
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import include, path, re_path
from django.utils.decorators import method_decorator
from django.views import View
from django.views.generic import DetailView
from rest_framework.decorators import action, api_view
from rest_framework.response import Response
from rest_framework.routers import DefaultRouter
from rest_framework.viewsets import GenericViewSet, ViewSet

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


router = DefaultRouter()
router.register("wallets", Wallets, basename="wallet")
urlpatterns = [
    path("method/<pk>", Method.as_view()),
    path("direct/<pk>", Direct.as_view()),
    path("dispatched/<pk>", Dispatched.as_view()),
    path("above/<pk>", above),
    path("below/<pk>", below),
    path("api/", include(router.urls)),
]

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


class Purse(models.Model):
    owner: Any = models.CharField(max_length=9, unique=True)

    class Meta:
        app_label = "url_keys"


class Coupon(models.Model):
    id: Any = models.UUIDField(primary_key=True, default=uuid.uuid4)

    class Meta:
        app_label = "url_keys"


class Shelf(models.Model):
    id: Any = models.CharField(max_length=9, primary_key=True)

    class Meta:
        app_label = "url_keys"


class Lid(models.Model):
    purse: Any = models.OneToOneField(Purse, models.CASCADE, primary_key=True)

    class Meta:
        app_label = "url_keys"


class Acting(GenericViewSet[Any]):
    @action(detail=True, methods=["POST"])
    @distributed_lockable(key="row:{pk}")
    def pay(self, request: Any, pk: str) -> Response:
        return Response()


class ByOwner(GenericViewSet[Any]):
    queryset = Purse.objects.all()
    lookup_field = "owner"

    @action(detail=True, methods=["POST"])
    @distributed_lockable(key="purse:{owner}")
    def pay(self, request: Any, owner: str) -> Response:
        return Response()


class Detail(DetailView):  # type: ignore[type-arg]
    model = Purse
    pk_url_kwarg = "number"

    @method_decorator(distributed_lockable(key="purse:{number}"))
    def get(self, request: HttpRequest, *args: Any, number: str) -> HttpResponse:
        return HttpResponse()


@distributed_lockable(key=["order:{order_id}", "shop:{shop}"])
def plain(request: HttpRequest, order_id: object, shop: object = "") -> HttpResponse:
    return HttpResponse()


@distributed_lockable(key="order:{order_id:str}")
def text(request: HttpRequest, order_id: str) -> HttpResponse:
    return HttpResponse()


@distributed_lockable(key=lambda request, order_id: f"order:{int(order_id)}")
def made(request: HttpRequest, order_id: str) -> HttpResponse:
    return HttpResponse()


def acting(view: type[Any], of: type[models.Model] | None) -> Any:
    routed = DefaultRouter()
    queryset = {} if of is None else {"queryset": of._default_manager.all()}
    routed.register("rows", type(view.__name__, (view,), queryset), basename="row")
    return path("api/", include(routed.urls))


NUMBER = "Write {pk:int} in the key, or <int:pk> in the route."
EITHER = "Write {pk:int} or {pk:uuid} in the key, or <int:pk> in the route. {pk:str} says that it is a text."


@pytest.mark.parametrize(
    ("pattern", "harm", "hint"),
    [
        (acting(Acting, Purse), "1, 01 and +1 are three locks on one row", NUMBER),
        (acting(Acting, Lid), "1, 01 and +1", NUMBER),
        (acting(Acting, Coupon), "upper and lower case are two", NUMBER.replace("int", "uuid")),
        (acting(Acting, None), "1, 01 and +1", EITHER),
        (path("api/", include(DefaultRouter().urls)), "", ""),
        (acting(Acting, Shelf), "", ""),
        (acting(ByOwner, Purse), "", ""),
        (path("d/<number>", Detail.as_view()), "1, 01 and +1", NUMBER.replace("pk", "number")),
        (path("d/<int:number>", Detail.as_view()), "", ""),
        (path("o/<order_id>", plain), "1, 01 and +1", EITHER.replace("pk", "order_id")),
        (
            path("s/<slug:shop>/", include([path("o/<slug:order_id>", plain)])),
            "1, 01",
            EITHER.replace("pk", "order_id"),
        ),
        (re_path(r"^o/(?P<order_id>\d+)$", plain), "1, 01", EITHER.replace("pk", "order_id")),
        (path("o/<int:order_id>", plain), "", ""),
        (path("o/<uuid:order_id>/<shop>", plain), "", ""),
        (path("o/<order_id>", text), "", ""),
        (path("o/<order_id>", made), "", ""),
    ],
)
def test_w007(pattern: Any, harm: str, hint: str, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("urls_of_w007")
    module.urlpatterns = [pattern]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    settings.ROOT_URLCONF = module.__name__
    found = [each for each in checks.run_checks() if each.id == "distlock_web.W007"]
    assert [(harm in each.msg, each.hint) for each in found] == ([(True, hint)] if harm else [])
