"""A Django site of one view in four spellings: bare, and under a lock in three ways. Imported once Django is set up."""

from __future__ import annotations

import secrets

import redis
from django.conf import settings
from django.core.cache import cache
from django.http import HttpRequest, HttpResponse
from django.urls import path

from distlock_web import distributed_lockable

from .contenders import COMPARE_AND_DELETE, EXPIRE

client = redis.Redis.from_url(settings.BENCHMARK_URL)
sha = client.script_load(COMPARE_AND_DELETE)


def bare(request: HttpRequest, order_id: int) -> HttpResponse:
    return HttpResponse(b"paid")


def raw(request: HttpRequest, order_id: int) -> HttpResponse:
    key, token = f"order:{order_id}", secrets.token_hex(16)
    if not client.set(key, token, nx=True, px=EXPIRE * 1000):
        return HttpResponse(status=409)
    try:
        return HttpResponse(b"paid")
    finally:
        client.evalsha(sha, 1, key, token)


@distributed_lockable(key="order:{order_id}", expire=EXPIRE)
def decorated(request: HttpRequest, order_id: int) -> HttpResponse:
    return HttpResponse(b"paid")


def cache_lock(request: HttpRequest, order_id: int) -> HttpResponse:
    with cache.lock(f"order:{order_id}", timeout=EXPIRE):  # type: ignore[attr-defined]
        return HttpResponse(b"paid")


urlpatterns = [path(f"{view.__name__}/<int:order_id>", view) for view in (bare, raw, decorated, cache_lock)]
