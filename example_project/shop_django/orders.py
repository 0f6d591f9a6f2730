"""Buying for impatient people: as often as they click, it is one order, with one receipt."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from distlock_web import once

from .views import buy


@csrf_exempt
@require_POST
@once(key="order:{request.headers[Idempotency-Key]}", keep="10m", expire=20, wait=20)
def order(request: HttpRequest, item: str) -> HttpResponse:
    answer: HttpResponse = buy(request, item)
    return answer
