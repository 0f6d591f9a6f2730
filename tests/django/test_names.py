"""What is locked without a key is called what people call it, and what has no name of its own needs a key."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.csrf import csrf_exempt
from django.views.generic import TemplateView
from rest_framework.decorators import action, api_view
from rest_framework.response import Response
from rest_framework.views import APIView
from rest_framework.viewsets import ViewSet

from distlock_web import ConfigurationError, current_lease, distributed_lockable

pytestmark = pytest.mark.usefixtures("memory_store")


def held() -> str:
    lease = current_lease()
    assert lease is not None
    return lease.name


class Pay(View):
    def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse(held())


def logged(func: Callable[..., Any]) -> Callable[..., Any]:
    """A plain decorator, whose closure is of the same form as that of REST framework's ``@api_view``."""

    @functools.wraps(func)
    def wrapper(self: View, *args: Any, **kwargs: Any) -> Any:
        return func(self, *args, **kwargs)

    return wrapper


class Logged(View):
    @logged
    def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse(held())


class Invoices(Logged):
    pass


class Orders(ViewSet):
    def list(self, request: Any) -> Response:
        return Response(held())

    @action(detail=False)
    @distributed_lockable()
    def paid(self, request: Any) -> Response:
        return Response(held())


class Single(APIView):
    def get(self, request: Any) -> Response:
        return Response(held())


@api_view(["GET", "POST"])
def refund(request: Any) -> Response:
    return Response(held())


@distributed_lockable()
def plain(request: HttpRequest) -> HttpResponse:
    return HttpResponse(held())


def shown(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


@method_decorator(distributed_lockable(), name="dispatch")
class Dispatched(Pay):
    pass


VIEWS: dict[str, tuple[Callable[..., Any], str]] = {
    "as_view": (distributed_lockable()(Pay.as_view()), "Pay"),
    "as_view of a class that inherits a decorated method": (distributed_lockable()(Invoices.as_view()), "Invoices"),
    "ViewSet": (distributed_lockable()(Orders.as_view({"get": "list"})), "Orders"),
    "action of a ViewSet": (Orders.as_view({"get": "paid"}), "Orders.paid"),
    "APIView": (distributed_lockable()(Single.as_view()), "Single"),
    "api_view": (distributed_lockable(refund), "refund"),
    "dispatch": (Dispatched.as_view(), "Dispatched.dispatch"),
    "function": (plain, "plain"),
    "behind another decorator": (distributed_lockable(csrf_exempt(Pay.as_view())), "Pay"),
}


@pytest.mark.parametrize("which", VIEWS)
def test_each_view_has_its_own_name(which: str) -> None:
    view, name = VIEWS[which]
    answer = view(RequestFactory().get("/"))
    body = answer.data if isinstance(answer, Response) else answer.content.decode()
    assert body == f"disLock:{__name__}.{name}"


def test_a_class_that_is_given_something_needs_a_key() -> None:
    # The pages of a site that TemplateView makes had one lock.
    page = TemplateView.as_view(template_name="a.html")
    with pytest.raises(ConfigurationError, match=r"TemplateView\(\.\.\.\)\), and would share its lock.*give it a key="):
        distributed_lockable(page)
    assert callable(distributed_lockable(key="a")(page))


@pytest.mark.parametrize(
    "view",
    [
        Orders.as_view({"get": "list"}),
        refund,
        Pay.as_view(),
        login_required(Pay.as_view()),
        *(logged(view) for view in (Pay.as_view(), Orders.as_view({"get": "list"}), refund, shown)),
    ],
)
def test_a_key_names_the_views_own_arguments(view: Callable[..., Any]) -> None:
    """That of a ViewSet claims to wrap its ``dispatch``, whose first argument is ``self``."""
    seen = []

    def key(request: HttpRequest, **kwargs: object) -> str:
        seen.append(request)
        return "x"

    locked = distributed_lockable(key=["path:{request.path}", key])(view)
    request = RequestFactory().get("/here")
    request.user = type("User", (), {"is_authenticated": True, "is_active": True})()
    assert locked(request).status_code == 200
    assert seen == [request]


def test_so_it_is_of_a_method_behind_another_decorator() -> None:
    class Shown(View):
        @method_decorator(distributed_lockable(key="path:{request.path}"))
        @logged
        def get(self, request: HttpRequest) -> HttpResponse:
            return HttpResponse(held())

    answer: Any = Shown.as_view()(RequestFactory().get("/here"))
    assert answer.content == b"disLock:path:/here"
