"""A Django project whose locks are in memory and in a real Redis: a test that uses ``store`` runs on both."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from distlock_web import Lease, LeaseLost, lock
from tests.support.django_project import views


@pytest.fixture(params=["memory", "redis"])
def store(request: pytest.FixtureRequest, settings: Any) -> str:
    """The default store, empty."""
    chosen = {"BACKEND": request.param}
    if request.param == "redis":
        chosen["LOCATION"] = request.getfixturevalue("redis_url")
    settings.DISTLOCK = {"default": chosen}
    return str(request.param)


@pytest.fixture
def memory(settings: Any) -> None:
    """The default store is in memory, empty."""
    settings.DISTLOCK = {"default": {"BACKEND": "memory"}}


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[views.Gate]:
    """Closed: a view that comes to it stays inside its lock until ``gate.opened.set()``."""
    gate = views.Gate()
    gate.opened.clear()
    monkeypatch.setattr(views, "gate", gate)
    yield gate
    gate.opened.set()


@pytest.fixture
def elsewhere() -> Iterator[Callable[..., Lease]]:
    """Hold a lock outside of the test's own call chain, which would re-enter it: ``elsewhere("order:7")``."""
    held: list[tuple[contextvars.Context, Lease]] = []

    def hold(key: str, **options: Any) -> Lease:
        context = contextvars.Context()
        lease = context.run(lock(key, **{"expire": 10, **options}).acquire)
        held.append((context, lease))
        return lease

    yield hold
    for context, lease in held:
        if lease.state == "held":
            with suppress(LeaseLost):  # released by force: nobody has told the lease yet
                context.run(lease.release)


@pytest.fixture
def in_thread() -> Iterator[Callable[..., threading.Thread]]:
    """Run a call beside the test; what it raises or returns is in ``thread.outcome``."""
    started: list[threading.Thread] = []

    def start(call: Callable[..., Any], *args: Any, **kwargs: Any) -> threading.Thread:
        def run() -> None:
            try:
                thread.outcome = call(*args, **kwargs)  # type: ignore[attr-defined]
            except BaseException as error:
                thread.outcome = error  # type: ignore[attr-defined]

        thread = threading.Thread(target=run)
        started.append(thread)
        thread.start()
        return thread

    yield start
    views.gate.opened.set()
    for thread in started:
        thread.join(20)
        assert not thread.is_alive()
