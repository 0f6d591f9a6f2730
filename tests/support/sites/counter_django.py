"""A Django project in one file, for real servers: a counter in a real database, under ``ATOMIC_REQUESTS``.

Its commits take a while, as they do where a replica has to confirm them. What the environment says: ``SHOP_DATABASE``
(an entry of DATABASES, in JSON) and ``DISTLOCK_URL``.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

import django
import redis
from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.db import connection, models, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.http import HttpRequest, HttpResponse
from django.urls import path

from distlock_web import current_lease, distributed_lockable
from tests.support import databases  # noqa: F401 - makes PyMySQL known to Django

settings.configure(
    SECRET_KEY="tests",
    ALLOWED_HOSTS=["*"],
    ROOT_URLCONF=__name__,
    USE_TZ=True,
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    DATABASES={"default": {**json.loads(os.environ["SHOP_DATABASE"]), "ATOMIC_REQUESTS": True}},
    INSTALLED_APPS=["distlock_web.django"],
    MIDDLEWARE=["distlock_web.django.middleware.RequestIDMiddleware"],
    DISTLOCK={"default": {"LOCATION": os.environ["DISTLOCK_URL"]}},
)
django.setup()

from distlock_web.django.fencing import FencedModel  # noqa: E402 - a module with models wants its apps ready

COMMIT_TAKES = 0.02  # seconds


def _slowly(self: BaseDatabaseWrapper, commit: Any = BaseDatabaseWrapper._commit) -> None:  # type: ignore[attr-defined]
    time.sleep(COMMIT_TAKES)
    commit(self)


BaseDatabaseWrapper._commit = _slowly  # type: ignore[attr-defined]


class Counter(FencedModel):
    value: models.IntegerField[int, int] = models.IntegerField(default=0)

    class Meta:
        app_label = "shop"


def _increment() -> HttpResponse:
    counter = Counter.objects.get(pk=1)
    counter.value += 1
    counter.save()
    return HttpResponse(str(counter.value))


@distributed_lockable(key="counter", expire=30, wait=60)
def plain(request: HttpRequest) -> HttpResponse:
    """As every lock library's decorator does it: the lock is given back when the function returns."""
    return _increment()


@distributed_lockable(key="counter", expire=30, wait=60, until="commit")
def whole(request: HttpRequest) -> HttpResponse:
    return _increment()


@distributed_lockable(key="paused", expire=2, wait=60, until="commit")
def pausing(request: HttpRequest) -> HttpResponse:
    """Reads, tells the test where it is, and writes when the test says so: by then it may have been stopped a while."""
    counter = Counter.objects.fenced_get(current_lease(), pk=1)
    with redis.Redis.from_url(os.environ["DISTLOCK_URL"]) as signals:
        signals.rpush("inside", os.getpid())
        signals.blpop(["go"], timeout=30)
    Counter.objects.filter(pk=1).update(value=counter.value + 100)
    return HttpResponse("written")


@transaction.non_atomic_requests
def look(request: HttpRequest) -> HttpResponse:
    return HttpResponse(str(Counter.objects.get(pk=1).value))


def make() -> None:
    """The table, and its one row."""
    with connection.schema_editor() as editor:
        editor.create_model(Counter)
    Counter.objects.create(pk=1)


urlpatterns = [path("plain", plain), path("whole", whole), path("pausing", pausing), path("look", look)]
application = get_wsgi_application()
