"""The raw commands over distlock_web's own transport: what a lock would cost if it had no queue, no index, no fence."""

from __future__ import annotations

import secrets
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, cast

from distlock_web.backends.redis import RedisBackend
from distlock_web.backends.redis.scripts.calls import PackedKeys, Script, command, pack_keys
from distlock_web.core.config import StoreConfig
from distlock_web.core.runtime import drive

from ..contenders import COMPARE_AND_DELETE, EXPIRE, AsyncContender, Contender

NAME = "raw, our transport"


class _Set:
    """``SET NX PX``, as the transport takes a script."""

    def call(self, keys: PackedKeys, args: tuple[str | int, ...], *, by_source: bool = False) -> bytes:
        key, token, expire = args
        return command("SET", key, token, "NX", "PX", expire)


SET, RELEASE = cast("Script", _Set()), Script(COMPARE_AND_DELETE.encode())
NO_KEYS = pack_keys()


class Floor(Contender):
    name = NAME

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._backend = RedisBackend(StoreConfig("floor", "redis", url))
        self.exchange = self._backend.server.threads()

    def lock(self, key: str, expire: int = EXPIRE) -> AbstractContextManager[object]:
        return _Held(self.exchange, key, expire)

    def close(self) -> None:
        self._backend.close()
        super().close()


class AsyncFloor(AsyncContender):
    name = NAME

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._backend = RedisBackend(StoreConfig("floor", "redis", url))
        self.exchange = self._backend.server.tasks()

    def lock(self, key: str, expire: int = EXPIRE) -> AbstractAsyncContextManager[object]:
        return _Held(self.exchange, key, expire)

    async def close(self) -> None:
        self._backend.close()
        await super().close()


class _Held:
    __slots__ = ("_exchange", "_expire", "_key", "_token")

    def __init__(self, exchange: Any, key: str, expire: int) -> None:
        self._exchange = exchange
        self._key = key
        self._expire = expire

    async def __aenter__(self) -> None:
        self._token = secrets.token_hex(16)
        if not await self._exchange.run(SET, NO_KEYS, (self._key, self._token, self._expire * 1000)):
            raise RuntimeError(f"{self._key} is not free")

    async def __aexit__(self, *_: object) -> None:
        await self._exchange.run(RELEASE, pack_keys(self._key), (self._token,))

    def __enter__(self) -> None:
        drive(self.__aenter__())

    def __exit__(self, *_: object) -> None:
        drive(self.__aexit__())
