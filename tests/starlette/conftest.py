"""Apps whose locks are in memory and in a real Redis."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.applications import Starlette

from distlock_web.starlette import DistLock
from tests.support.asgi_clients import MakeApp


@pytest.fixture
def make_app(store_settings: Mapping[str, Any]) -> Iterator[MakeApp]:
    """Make an app with the extension: ``make_app(FastAPI)``; ``store`` are settings of its default store."""
    made: list[DistLock] = []

    def make(kind: Any = FastAPI, *, store: Mapping[str, Any] | None = None, **options: Any) -> Starlette:
        extension = options.pop("extension", {})
        app: Starlette = kind(**options)
        made.append(DistLock(app, {"default": {**store_settings, **(store or {})}}, **extension))
        return app

    yield make
    for extension in made:
        assert extension.registry is not None
        extension.registry.close()


@pytest.fixture
def app(make_app: MakeApp) -> Any:
    return make_app()
