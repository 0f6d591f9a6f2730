"""Apps whose locks are in memory and in a real Redis: every test that uses ``make_app`` runs on both."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from flask import Flask

from distlock_web.flask import DistLock
from tests.support.gate import Gate

MakeApp = Callable[..., Flask]


@pytest.fixture
def make_app(store_settings: Mapping[str, Any]) -> Iterator[MakeApp]:
    """Make an app with the extension: ``make_app()``; keywords are settings of its default store."""
    apps: list[Flask] = []

    def make(name: str = "shop", **settings: Any) -> Flask:
        app = Flask(name)
        app.config["DISTLOCK"] = {"default": {**store_settings, **settings}}
        DistLock().init_app(app)
        apps.append(app)
        return app

    yield make
    for app in apps:
        app.extensions["distlock"].registry.close()


@pytest.fixture
def app(make_app: MakeApp) -> Flask:
    return make_app()


@pytest.fixture
def gate() -> Iterator[Gate]:
    """Closed: a view that comes to it stays inside its lock until ``gate.opened.set()``."""
    gate = Gate()
    gate.opened.clear()
    yield gate
    gate.opened.set()
