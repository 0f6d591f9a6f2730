"""W004, E005 and the warning at run time call a view what people call it, and not ``View.as_view.<locals>.view``."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
from django.core.checks import CheckMessage
from django.db import connection
from django.http import HttpRequest, HttpResponse
from django.views import View
from rest_framework.decorators import api_view
from rest_framework.response import Response
from rest_framework.viewsets import ViewSet

from distlock_web import OpenTransactionWarning, distributed_lockable

pytestmark = pytest.mark.usefixtures("memory", "real_transactions")


class Pay(View):
    def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse()


class Orders(ViewSet):
    def list(self, request: Any) -> Response:
        return Response()


@api_view(["GET"])
def refund(request: Any) -> Response:
    return Response()


VIEWS = {"Pay": Pay.as_view(), "Orders": Orders.as_view({"get": "list"}), "refund": refund}


@pytest.mark.parametrize("name", VIEWS)
def test_by_its_class_or_its_function(
    name: str,
    get: Callable[..., Any],
    checked: Callable[..., list[CheckMessage]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)
    plain = distributed_lockable()(VIEWS[name])
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        assert get(plain).status_code == 200
    [warning] = [each for each in found if issubclass(each.category, OpenTransactionWarning)]
    assert str(warning.message).startswith(f"{__name__}.{name} is held inside")
    [late] = checked(plain)
    assert (late.id, late.msg.split()[:3]) == ("distlock_web.W004", ["The", "view", f"{__name__}.{name}"])
    # What hides the mark of the decorator: Django opens the transaction after all.
    whole: Any = distributed_lockable(until="commit")(VIEWS[name])
    whole._non_atomic_requests = set()
    [early] = checked(whole)
    assert (early.id, early.msg.split()[:3]) == ("distlock_web.E005", ["The", "view", f"{__name__}.{name}"])
