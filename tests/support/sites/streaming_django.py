"""A Django project that streams under its locks: ``python -m gunicorn tests.support.sites.streaming_django``.

Its views come in pairs: ``/long/…`` under a lease that cannot end by itself during a test, ``/short/…`` under one that
ends many times unless it is renewed. What a body has seen is told in Redis, under ``seen``.
"""

from __future__ import annotations

import asyncio
import os
import random
import tempfile
from collections.abc import AsyncIterator
from typing import Any

import django
from django.conf import settings
from django.http import FileResponse, HttpRequest, HttpResponse, StreamingHttpResponse
from django.urls import path

from distlock_web import distributed_lockable
from tests.support.sites.streamed import CHUNK, KEY, achunks, chunks, tell

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


def _both(view: Any) -> list[Any]:
    return [
        path(f"{name}/{view.__name__}/", distributed_lockable(key=KEY, expire=expire)(view))
        for name, expire in (("long", 60), ("short", 1))
    ]


urlpatterns = [
    *_both(sync_sync),
    *_both(sync_async),
    *_both(async_async),
    *_both(async_sync),
    *_both(file),
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
