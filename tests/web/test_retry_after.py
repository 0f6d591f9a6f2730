"""Retry-After is how long the lock was held lately, no longer than what is left of the lease, rounded up."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import path

from distlock_web import Lease, LeaseLost, LockBusy, distributed_lockable, lock
from distlock_web.core.registry import MAX_REMEMBERED, HoldTimes, registry
from distlock_web.core.runtime import THREADS, drive
from distlock_web.locks import ending, engine
from distlock_web.locks.lease import scope_of
from distlock_web.locks.options import Options
from distlock_web.locks.scope import Scope
from distlock_web.testing.fault_injector import FaultInjector
from tests.support.revoking import revoke_the_lock

Elsewhere = Callable[..., Lease]


@distributed_lockable(key="order")
def at_once(request: HttpRequest) -> HttpResponse:
    return HttpResponse("done")


@distributed_lockable(key="order")
def slow(request: HttpRequest) -> HttpResponse:
    return HttpResponse("done")


@contextmanager
def taken_by(view: Any, expire: float = 10) -> Iterator[None]:
    """The lock is held by this view, elsewhere."""
    locked = view.__distlock__
    spec = Options({"expire": expire}).spec(("order",), THREADS, locked.name)
    scope = Scope(spec, THREADS)
    context = contextvars.Context()
    context.run(drive, engine.acquire(scope))
    yield
    context.run(drive, ending.end(scope, None, THREADS))


urlpatterns = [path("at-once/", at_once)]


@pytest.fixture(autouse=True)
def site(settings: Any) -> None:
    settings.ROOT_URLCONF = __name__
    settings.MIDDLEWARE = ["distlock_web.django.middleware.RequestIDMiddleware"]


def test_at_once(injector: FaultInjector, elsewhere: Elsewhere) -> None:
    holder = elsewhere("order", expire=30)
    said = int(Client().get("/at-once/")["Retry-After"])
    assert holder.remaining <= said <= 30


def took(*seconds: float, function: str = f"{__name__}.at_once", name: str = "disLock:order") -> None:
    times = registry().store("default").hold_times
    for each in seconds:
        times.note(function, name, each)


@pytest.mark.parametrize(("lately", "said"), [([0.01], 1), ([1.2], 2), ([0.1, 3.5, 90.0], 4), ([90.0], 30)])
def test_what_it_took_lately(injector: FaultInjector, lately: list[float], said: int) -> None:
    """It said 30, which is the lease, of a job of a second."""
    took(*lately)
    with taken_by(at_once, expire=30):
        assert int(Client().get("/at-once/")["Retry-After"]) == said


def test_another_holders_time_counts(injector: FaultInjector) -> None:
    """Who has it says how long it takes, not who wants it."""
    took(1.5)
    took(7.5, function=f"{__name__}.slow")
    with taken_by(slow, expire=30):
        assert Client().get("/at-once/")["Retry-After"] == "8"


def test_a_plain_block_by_its_name(injector: FaultInjector, elsewhere: Elsewhere) -> None:
    with lock("order"):
        pass
    elsewhere("order", expire=30)
    with pytest.raises(LockBusy) as caught:
        lock("order").acquire()
    assert caught.value.usual is not None
    assert caught.value.estimate == caught.value.usual < 5 < caught.value.retry_after
    with pytest.raises(LockBusy) as caught:
        elsewhere("other", expire=30)
        lock("other").acquire()
    assert caught.value.usual is None
    assert caught.value.estimate == caught.value.retry_after


def test_what_failed_or_was_lost_says_nothing(memory: None) -> None:
    times = registry().store("default").hold_times
    with pytest.raises(LookupError), lock("order"):
        raise LookupError
    with pytest.raises(LeaseLost), lock("order"):
        revoke_the_lock()
    assert times.usual("", "disLock:order") is None


def test_a_lock_that_stays_taken_takes_that_long(memory: None) -> None:
    with lock("order", hold_at_least=20) as lease:
        scope_of(lease).holds[0].since -= 5
    usual = registry().store("default").hold_times.usual("", "disLock:order")
    assert usual == pytest.approx(20, abs=1)


def test_only_the_last_ones_are_remembered_and_of_so_many_names() -> None:
    times = HoldTimes()
    for each in range(100):
        times.note("", "a", each)
    assert times.usual("", "a") == 92
    for number in range(5000):
        times.note("", str(number), 1.0)
    times.note("view", "a", 1.0)
    assert len(times._names) <= MAX_REMEMBERED
    assert times.usual("view", "b") == 1.0
