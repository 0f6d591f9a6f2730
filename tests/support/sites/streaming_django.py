"""A Django project that streams under its locks: ``python -m gunicorn tests.support.sites.streaming_django``.

Its views come in pairs: ``/long/…`` under a lease that cannot end by itself during a test, ``/short/…`` under one that
ends many times unless it is renewed. What a body has seen is told in Redis, under ``seen``.
"""

from __future__ import annotations

import asyncio
import os
import random
import tempfile
from collections.abc import AsyncIterator, Iterator
from typing import Any

import django
import redis
from django.conf import settings
from django.http import FileResponse, HttpRequest, HttpResponse, StreamingHttpResponse
from django.urls import path

from distlock_web import current_lease, current_request_id, distributed_lockable, lock

CHUNK = os.urandom(65536)  # which cannot be compressed
KEY = "export"

if not settings.configured:
    settings.configure(
        SECRET_KEY="tests",
        ALLOWED_HOSTS=["*"],
        ROOT_URLCONF="tests.support.sites.streaming_django",
        INSTALLED_APPS=["distlock_web.django"],
        MIDDLEWARE=[
            "distlock_web.django.middleware.RequestIDMiddleware",
            "django.middleware.http.ConditionalGetMiddleware",
            "django.middleware.gzip.GZipMiddleware",
        ],
        DISTLOCK={"default": {"BACKEND": "redis", "LOCATION": os.environ["STREAMING_REDIS"]}},
    )
    django.setup()

_seen = redis.Redis.from_url(os.environ.get("STREAMING_SEEN", "redis://127.0.0.1:1/0"))


def tell(what: str) -> None:
    """What happened, for which request, and inside of how many blocks under the lock."""
    lease = current_lease()
    _seen.rpush("seen", f"{what} {current_request_id()} {lease.depth if lease else 0}")


def chunks(count: int) -> Iterator[bytes]:
    try:
        with lock(KEY):  # enters the lock of the view: an unrelated caller would be told that it is busy
            tell("begun")
        for _ in range(count):
            yield CHUNK
        tell("complete")
    finally:
        tell("ended")


async def achunks(count: int) -> AsyncIterator[bytes]:
    try:
        async with lock(KEY):
            tell("begun")
        for _ in range(count):
            yield CHUNK
            await asyncio.sleep(0)
        tell("complete")
    finally:
        await asyncio.sleep(0)
        tell("ended")


def _count(request: HttpRequest) -> int:
    return int(request.GET["chunks"])


def sync_sync(request: HttpRequest) -> StreamingHttpResponse:
    return StreamingHttpResponse(chunks(_count(request)))


def sync_async(request: HttpRequest) -> StreamingHttpResponse:
    return StreamingHttpResponse(achunks(_count(request)))


async def async_async(request: HttpRequest) -> StreamingHttpResponse:
    return StreamingHttpResponse(achunks(_count(request)))


async def async_sync(request: HttpRequest) -> StreamingHttpResponse:
    return StreamingHttpResponse(chunks(_count(request)))


def file(request: HttpRequest) -> FileResponse:
    content = tempfile.TemporaryFile()  # noqa: SIM115 - the response closes it
    content.truncate(_count(request) * len(CHUNK))
    content.seek(0)
    return FileResponse(content, content_type="application/octet-stream")


def at_return(request: HttpRequest) -> StreamingHttpResponse:
    return StreamingHttpResponse(CHUNK for _ in range(_count(request)))


@distributed_lockable(key=KEY, expire=60, wait=30)
async def work(request: HttpRequest) -> HttpResponse:
    """Takes its time, in the queue or under the lock; its client may not have so much of it."""
    await asyncio.sleep(random.random() / 50)
    return HttpResponse("done")


@distributed_lockable(key=KEY, expire=60, wait=30)
async def stream(request: HttpRequest) -> StreamingHttpResponse:
    async def body() -> AsyncIterator[bytes]:
        for _ in range(10):
            await asyncio.sleep(random.random() / 200)
            yield CHUNK

    return StreamingHttpResponse(body())


@distributed_lockable(key=KEY, expire=60)
async def until_cancelled(request: HttpRequest) -> HttpResponse:
    tell("begun")
    try:
        await asyncio.Event().wait()
    finally:
        tell("ended")
    raise AssertionError


def _both(view: Any, **options: Any) -> list[Any]:
    return [
        path(f"{name}/{view.__name__}/", distributed_lockable(key=KEY, expire=expire, **options)(view))
        for name, expire in (("long", 60), ("short", 1))
    ]


urlpatterns = [
    *_both(sync_sync),
    *_both(sync_async),
    *_both(async_async),
    *_both(async_sync),
    *_both(file),
    *_both(at_return, until="return"),
    path("work/", work),
    path("stream/", stream),
    path("until-cancelled/", until_cancelled),
]


def wsgi(environ: Any, start_response: Any) -> Any:
    return _wsgi(environ, start_response)


async def asgi(scope: Any, receive: Any, send: Any) -> None:
    await _asgi(scope, receive, send)


if __name__ == settings.ROOT_URLCONF:
    from django.core.handlers.asgi import ASGIHandler
    from django.core.handlers.wsgi import WSGIHandler

    _wsgi, _asgi = WSGIHandler(), ASGIHandler()
