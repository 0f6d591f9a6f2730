"""A Django project whose locks are in memory and in a real Redis: a test that uses ``store`` runs on both."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.django_project import views
from tests.support.gate import Gate


@pytest.fixture
def store(store_settings: dict[str, Any], settings: Any) -> str:
    """The default store, empty: one of each kind."""
    settings.DISTLOCK = {"default": store_settings}
    return str(store_settings["BACKEND"])


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """Closed: a view that comes to it stays inside its lock until ``gate.opened.set()``."""
    gate = Gate()
    gate.opened.clear()
    monkeypatch.setattr(views, "gate", gate)
    yield gate
    gate.opened.set()


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
