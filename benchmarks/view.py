"""A Django view under a lock: the time that the lock adds, against the raw commands written into the view."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import distlock_web

from .django_setup import install_app, setup
from .plan import Bench, in_turns, one_cpu
from .results import Case, Measure

BARE, RAW, OURS, CACHE_LOCK = "no lock", "raw commands", "distlock_web", "django-redis"
MEASURES = (Measure("request", "µs"), Measure("added", "µs", compared=True))


def run(bench: Bench) -> Iterator[Case]:
    setup(bench.server.url)
    install_app()
    distlock_web.configure({"default": {"LOCATION": bench.server.url}})
    bench.expect(4 * bench.plan.rounds)
    with one_cpu(bench.server) as where:
        yield _case(bench, Case("view", f"A Django view, sync, in process ({where})", MEASURES, RAW))


def _case(bench: Bench, case: Case) -> Case:
    views = {BARE: ("bare", _handler()), RAW: ("raw", _handler()), CACHE_LOCK: ("cache_lock", _handler())}
    views[OURS] = ("decorated", _handler("distlock_web.django.middleware.RequestIDMiddleware"))
    repeat = 0
    for view in views.values():
        _seconds(*view, 20)
        repeat = max(20, repeat, int(bench.plan.slice / _seconds(*view, 20) * 20))
    times: dict[str, list[float]] = {name: [] for name in views}
    for name in in_turns(list(views), bench.plan.rounds):
        times[name].append(_seconds(*views[name], repeat) / repeat * 1e6)
        bench.step(f"{case.name}: {name}")
    for name in (BARE, RAW, OURS, CACHE_LOCK):
        for request, bare in zip(times[name], times[BARE], strict=True):
            case.add(name, request=request, added=request - bare)
    return case


def _handler(*middleware: str) -> Any:
    """Django's handler with this middleware and no other: what the others cost would be in every measurement."""
    from django.conf import settings
    from django.core.handlers.base import BaseHandler

    settings.MIDDLEWARE = list(middleware)
    handler = BaseHandler()
    handler.load_middleware()
    return handler


def _seconds(view: str, handler: Any, repeat: int) -> float:
    from django.test import RequestFactory

    factory, seconds = RequestFactory(), 0.0
    while repeat > 0:
        # Few at a time: thousands of requests that are kept would be the garbage collector's work, as in no server.
        requests = [factory.post(f"/{view}/42") for _ in range(min(repeat, 50))]
        since = time.perf_counter()
        for request in requests:
            response = handler.get_response(request)
        seconds += time.perf_counter() - since
        if response.status_code != 200:
            raise RuntimeError(f"The view {view} answered {response.status_code}: {response.content!r}")
        repeat -= len(requests)
    return seconds
