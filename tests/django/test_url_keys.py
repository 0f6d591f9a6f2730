"""A key of a URL's text: ``check`` looks for those of a row that have several spellings."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
from django.core import checks
from django.http import HttpRequest, HttpResponse
from django.urls import include, path, re_path
from rest_framework.decorators import action
from rest_framework.response import Response
from rest_framework.routers import DefaultRouter
from rest_framework.viewsets import ViewSet

from distlock_web import distributed_lockable

pytestmark = pytest.mark.usefixtures("memory")


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
