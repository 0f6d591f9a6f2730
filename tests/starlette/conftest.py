"""Apps whose locks are in memory and in a real Redis, and clients in the same process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.applications import Starlette

from distlock_web.starlette import DistLock

MakeApp = Callable[..., Any]
Client = httpx.AsyncClient


@asynccontextmanager
async def client_of(app: Any, *, raises: bool = False) -> AsyncIterator[Client]:
    """A client without a network. ``raises``: what the app raises is raised here, and answered with 500 otherwise."""
    transport = httpx.ASGITransport(app, raise_app_exceptions=raises)
    async with Client(transport=transport, base_url="http://shop") as client:
        yield client


async def entered(event: Any) -> None:
    """Until a view is inside."""
    assert await asyncio.to_thread(event.wait, 20), "no view has come"


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
