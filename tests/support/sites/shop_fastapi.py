"""A FastAPI app that two workers of uvicorn serve: ``app``. The environment says ``SHOP_REDIS``."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import redis.asyncio as redis
from fastapi import FastAPI
from fastapi.responses import StreamingResponse

from distlock_web import distributed_lockable, once
from distlock_web.starlette import DistLock

URL = os.environ["SHOP_REDIS"]
counter = redis.Redis.from_url(URL)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    yield
    await counter.aclose()


app = FastAPI(lifespan=lifespan)
DistLock(app, {"default": {"LOCATION": URL}})


@app.post("/sell/{item}")
@distributed_lockable(key="stock:{item}", wait=60, expire=30)
async def sell(item: str) -> dict[str, int]:
    sold = int(await counter.get("sold") or 0)
    await asyncio.sleep(0.005)  # here another one would read the same
    await counter.set("sold", sold + 1)
    return {"sold": sold + 1, "pid": os.getpid()}


@app.post("/pay", status_code=201)
@once(key="pay:{request.headers[Idempotency-Key]}", keep="1h", wait=30)
async def pay(order: dict[str, int]) -> dict[str, object]:
    return {"payment": await counter.incr("payments"), "order": order, "pid": os.getpid()}


@app.get("/export")
@distributed_lockable(key="export", expire=2)
async def export() -> StreamingResponse:
    async def body() -> AsyncIterator[bytes]:
        yield f"{os.getpid():<10}".encode()
        while True:
            yield b"x" * 65536
            await asyncio.sleep(0.001)

    return StreamingResponse(body())
