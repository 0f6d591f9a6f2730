"""Apps whose locks are in memory and in a real Redis: every test that uses ``make_app`` runs on both."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from flask import Flask

from distlock_web.flask import DistLock

MakeApp = Callable[..., Flask]


@pytest.fixture(params=["memory", "redis"])
def store_settings(request: pytest.FixtureRequest) -> Mapping[str, Any]:
    """One alias of DISTLOCK."""
    if request.param == "memory":
        return {"BACKEND": "memory"}
    return {"BACKEND": "redis", "LOCATION": request.getfixturevalue("redis_url")}


@pytest.fixture
def make_app(store_settings: Mapping[str, Any]) -> Iterator[MakeApp]:
    """Make an app with the extension: ``make_app()``; keywords are settings of its default store."""
    apps: list[Flask] = []

    def make(name: str = "shop", *, header: str | None = None, **settings: Any) -> Flask:
        app = Flask(name)
        app.config["DISTLOCK"] = {"default": {**store_settings, **settings}}
        if header is not None:
            app.config["DISTLOCK_REQUEST_ID_HEADER"] = header
        DistLock().init_app(app)
        apps.append(app)
        return app

    yield make
    for app in apps:
        app.extensions["distlock"].registry.close()


@pytest.fixture
def app(make_app: MakeApp) -> Flask:
    return make_app()


class Gate:
    """Keeps a view inside its lock until the test has looked: order without sleeping."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.opened = threading.Event()

    def hold(self) -> None:
        self.entered.set()
        assert self.opened.wait(20), "the test never opened the gate"


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.opened.set()
