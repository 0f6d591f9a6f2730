"""A Django project that two workers of a web server serve, under one lock: ``wsgi`` and ``asgi``.

A start-up job takes a lock while the module is imported, where many servers have not forked yet. Who is under the lock
counts itself in Redis. What the environment says: ``DISTLOCK_URL``; ``START_UP_RENEWS``, if a thread of ours shall run
at the time of the fork.
"""

from __future__ import annotations

import asyncio
import os
import time
from concurrent.futures import ThreadPoolExecutor

import django
import redis
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, JsonResponse
from django.urls import path

from distlock_web import distributed_lockable, lock
from distlock_web.core.runtime import in_event_loop

settings.configure(
    SECRET_KEY="tests",
    ALLOWED_HOSTS=["*"],
    ROOT_URLCONF=__name__,
    INSTALLED_APPS=["distlock_web.django"],
    MIDDLEWARE=["distlock_web.django.middleware.RequestIDMiddleware"],
    DISTLOCK={"default": {"LOCATION": os.environ["DISTLOCK_URL"]}},
)
django.setup()

KEY = "stock:1"
#: Seconds that a worker is under the lock; of the lease of one that is killed there.
TAKES, KILLED_LEASE = 0.01, 2


def start_up_job() -> None:
    # Another worker is perhaps being started beside. The thread that renews lives a second longer than the block.
    with lock("start-up", expire=30, wait=30, renew="START_UP_RENEWS" in os.environ):
        pass


if in_event_loop():  # uvicorn's, which imports the app inside of it: there nothing may block
    with ThreadPoolExecutor(1) as thread:
        thread.submit(start_up_job).result()
else:
    start_up_job()


def _count(by: int) -> int:
    """How many are under the lock, with a connection that no fork has copied."""
    with redis.Redis.from_url(os.environ["DISTLOCK_URL"]) as counter:
        return int(counter.incrby("inside", by))


def _answer(inside: int) -> JsonResponse:
    return JsonResponse({"pid": os.getpid(), "inside": inside})


@distributed_lockable(key=KEY, expire=60, wait=60)
def work(request: HttpRequest) -> JsonResponse:
    inside = _count(1)
    time.sleep(TAKES)
    _count(-1)
    return _answer(inside)


@distributed_lockable(key=KEY, expire=60, wait=60)
async def work_async(request: HttpRequest) -> JsonResponse:
    inside = _count(1)
    await asyncio.sleep(TAKES)
    _count(-1)
    return _answer(inside)


def _tell_pid() -> None:
    with redis.Redis.from_url(os.environ["DISTLOCK_URL"]) as told:
        told.rpush("to be killed", os.getpid())


@distributed_lockable(key=KEY, expire=KILLED_LEASE, wait=60, renew=True)
def be_killed(request: HttpRequest) -> JsonResponse:
    """Tells its pid, and goes on until somebody kills it: as long as it lives it renews its lease."""
    _tell_pid()
    time.sleep(60)
    raise AssertionError


@distributed_lockable(key=KEY, expire=KILLED_LEASE, wait=60, renew=True)
async def be_killed_async(request: HttpRequest) -> JsonResponse:
    _tell_pid()
    await asyncio.sleep(60)
    raise AssertionError


def hello(request: HttpRequest) -> JsonResponse:
    return _answer(0)


urlpatterns = [
    path("hello", hello),
    path("wsgi/work", work),
    path("asgi/work", work_async),
    path("wsgi/be-killed", be_killed),
    path("asgi/be-killed", be_killed_async),
]
wsgi, asgi = get_wsgi_application(), get_asgi_application()
