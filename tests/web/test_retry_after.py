"""Retry-After is what is left of the holder's lease, rounded up: also for those that have waited."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import path

from distlock_web import Lease, LockBusy, distributed_lockable, lock
from distlock_web.testing.fault_injector import FaultInjector

Elsewhere = Callable[..., Lease]


@distributed_lockable(key="order", wait=1.2)
def waiting(request: HttpRequest) -> HttpResponse:
    return HttpResponse("done")


@distributed_lockable(key="order")
def at_once(request: HttpRequest) -> HttpResponse:
    return HttpResponse("done")


urlpatterns = [path("waiting/", waiting), path("at-once/", at_once)]


@pytest.fixture(autouse=True)
def site(settings: Any) -> None:
    settings.ROOT_URLCONF = __name__
    settings.MIDDLEWARE = ["distlock_web.django.middleware.RequestIDMiddleware"]


def test_at_once(injector: FaultInjector, elsewhere: Elsewhere) -> None:
    holder = elsewhere("order", expire=30)
    said = int(Client().get("/at-once/")["Retry-After"])
    assert holder.remaining <= said <= 30


@pytest.mark.slow
def test_after_a_wait_what_is_left_then(injector: FaultInjector, elsewhere: Elsewhere) -> None:
    holder = elsewhere("order", expire=5)
    said = int(Client().get("/waiting/")["Retry-After"])
    assert holder.remaining <= said < 5


def test_it_is_true(injector: FaultInjector, elsewhere: Elsewhere) -> None:
    """Whoever comes back after so long gets it, if its holder is gone."""
    elsewhere("order", expire=0.5)
    with pytest.raises(LockBusy) as caught:
        lock("order").acquire()
    with lock("order", wait=caught.value.retry_after + 0.5):
        pass
