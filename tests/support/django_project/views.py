"""Views of every kind, each under a lock that its test knows by name."""

from __future__ import annotations

import threading

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import include, path
from django.utils.decorators import method_decorator
from django.views import View
from rest_framework import viewsets
from rest_framework.decorators import action, api_view
from rest_framework.response import Response
from rest_framework.routers import SimpleRouter
from rest_framework.views import APIView

from distlock_web import current_lease, current_request_id, distributed_lockable
from tests.support.gate import Gate

gate = Gate()


def answer(**more: object) -> JsonResponse:
    lease = current_lease()
    names = list(lease.names) if lease else []
    return JsonResponse({"locks": names, "request_id": current_request_id(), **more})


async def without_lock_async(request: HttpRequest) -> HttpResponse:
    return answer(thread=threading.get_ident())


@distributed_lockable(key="order:{order_id}", expire=10)
def function(request: HttpRequest, order_id: int) -> HttpResponse:
    gate.pass_through()
    return answer()


@distributed_lockable(key="order:{order_id}", expire=10)
async def coroutine(request: HttpRequest, order_id: int) -> HttpResponse:
    await gate.apass_through()
    return answer()


@distributed_lockable(key="order:{order_id}", expire=10)
def nested(request: HttpRequest, order_id: int) -> HttpResponse:
    return function(request, order_id=order_id)


@distributed_lockable(key="order:{order_id}", expire=10)
async def nested_async(request: HttpRequest, order_id: int) -> HttpResponse:
    return await coroutine(request, order_id=order_id)


class Methods(View):
    @method_decorator(distributed_lockable(key="order:{order_id}", expire=10))
    def get(self, request: HttpRequest, order_id: int) -> HttpResponse:
        gate.pass_through()
        return answer()

    @distributed_lockable(key="order:{order_id}", expire=10)
    def post(self, request: HttpRequest, order_id: int) -> HttpResponse:
        return answer()


class AsyncMethods(View):
    @method_decorator(distributed_lockable(key="order:{order_id}", expire=10))
    async def get(self, request: HttpRequest, order_id: int) -> HttpResponse:
        await gate.apass_through()
        return answer()

    @distributed_lockable(key="order:{order_id}", expire=10)
    async def post(self, request: HttpRequest, order_id: int) -> HttpResponse:
        return answer()


@method_decorator(distributed_lockable(key="order:{order_id}", expire=10), name="dispatch")
class Dispatched(View):
    def get(self, request: HttpRequest, order_id: int) -> HttpResponse:
        gate.pass_through()
        return answer()


@method_decorator(distributed_lockable(key="order:{order_id}", expire=10), name="dispatch")
class AsyncDispatched(View):
    async def get(self, request: HttpRequest, order_id: int) -> HttpResponse:
        await gate.apass_through()
        return answer()


class Bare(View):
    async def get(self, request: HttpRequest, order_id: int) -> HttpResponse:
        await gate.apass_through()
        return answer()


@api_view(["GET"])
@distributed_lockable(key="order:{order_id}", expire=10)
def rest_function(request: object, order_id: int) -> Response:
    gate.pass_through()
    return Response({"locks": list(current_lease().names)})


class RestView(APIView):
    @distributed_lockable(key="order:{order_id}", expire=10)
    def get(self, request: object, order_id: int) -> Response:
        gate.pass_through()
        return Response({"locks": list(current_lease().names)})


class RestSet(viewsets.ViewSet):
    @distributed_lockable(key="order:{pk:int}", expire=10)
    def retrieve(self, request: object, pk: str) -> Response:
        gate.pass_through()
        return Response({"locks": list(current_lease().names)})

    @action(detail=True)
    @distributed_lockable(key="order:{pk:int}", expire=10)
    def pay(self, request: object, pk: str) -> Response:
        gate.pass_through()
        return Response({"locks": list(current_lease().names)})


router = SimpleRouter()
router.register("sets", RestSet, basename="set")

urlpatterns = [
    path("without-lock-async/", without_lock_async),
    path("function/<int:order_id>/", function),
    path("coroutine/<int:order_id>/", coroutine),
    path("nested/<int:order_id>/", nested),
    path("nested-async/<int:order_id>/", nested_async),
    path("methods/<int:order_id>/", Methods.as_view()),
    path("async-methods/<int:order_id>/", AsyncMethods.as_view()),
    path("dispatched/<int:order_id>/", Dispatched.as_view()),
    path("async-dispatched/<int:order_id>/", AsyncDispatched.as_view()),
    path("wrapped/<int:order_id>/", distributed_lockable(key="order:{order_id}", expire=10)(Bare.as_view())),
    path("rest-function/<int:order_id>/", rest_function),
    path("rest-view/<int:order_id>/", RestView.as_view()),
    path("rest/", include(router.urls)),
]
