"""What an older version has recorded and this one is asked again: functions and views with ``once``, by the same names.

Both versions run it, so it uses what both have.
"""

from __future__ import annotations

import json
from typing import Any

import django
import flask
from django.conf import settings
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.test import RequestFactory

_APPS = ["django.contrib.contenttypes", "django.contrib.auth", "distlock_web.django"]
if not settings.configured:  # in the program that records
    settings.configure(ALLOWED_HOSTS=["*"], INSTALLED_APPS=_APPS, ROOT_URLCONF=__name__)
    django.setup()

from rest_framework.request import Request  # noqa: E402 - it needs the settings
from rest_framework.response import Response  # noqa: E402
from rest_framework.views import APIView  # noqa: E402

from distlock_web import once  # noqa: E402
from distlock_web.flask import DistLock  # noqa: E402

DAY = 24 * 3600
urlpatterns: list[Any] = []
ran: list[str] = []


@once(key="function", keep=DAY, result=True)
def function() -> dict[str, Any]:
    ran.append("function")
    return {"total": 7, "lines": ["a", "b"]}


@once(key="django:{request.headers[Idempotency-Key]}", keep=DAY)
def django_view(request: HttpRequest) -> HttpResponse:
    ran.append("django")
    return JsonResponse({"charged": request.POST.get("amount", "1")}, status=201)


class RestView(APIView):
    authentication_classes = ()
    permission_classes = ()

    @once(key="rest:{request.headers[Idempotency-Key]}", keep=DAY)
    def post(self, request: Request) -> Response:
        ran.append("rest")
        return Response({"charged": request.data["amount"]}, status=201)


def flask_app(store: dict[str, Any]) -> flask.Flask:
    app = flask.Flask("recorded")
    app.config.update(DISTLOCK={"default": store}, SECRET_KEY="recorded")

    @app.post("/pay")
    @once(key="flask:{request.headers[Idempotency-Key]}", keep=DAY)
    def pay() -> Any:
        ran.append("flask")
        return {"charged": flask.request.form.get("amount", "1")}, 201

    DistLock(app)
    return app


def ask(kind: str, store: dict[str, Any], amount: int = 5) -> tuple[int, Any]:
    """Ask the view of this framework, always with the same key: the status, and what it says."""
    headers = {"Idempotency-Key": "k1", "Authorization": "Bearer shop"}
    if kind == "flask":
        answer = flask_app(store).test_client().post("/pay?shop=1", data={"amount": amount}, headers=headers)
        return answer.status_code, answer.get_json(silent=True)
    rest = kind == "rest"
    data: Any = {"amount": amount}
    more: dict[str, Any] = {"content_type": "application/json"} if rest else {}
    request = RequestFactory().post(f"/{kind}?shop=1", data, headers=headers, **more)
    response: Any = RestView.as_view()(request) if rest else django_view(request)
    if not getattr(response, "is_rendered", True):
        response.render()
    return response.status_code, json.loads(response.content)


VIEWS = ("django", "rest", "flask")
