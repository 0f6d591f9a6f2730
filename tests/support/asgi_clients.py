"""Clients of an ASGI app, in its process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx

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
