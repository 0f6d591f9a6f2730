"""Every lock that is measured, as its own users write it: ``with contender.lock(key):``, a new object each time.

All of them wait, on default clients of redis-py with hiredis, unless a comment says what had to be different.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any

import redis
import redis.asyncio

#: Seconds that a lock lives, and that a waiter waits: longer than any wait here, so that nothing expires or gives up.
EXPIRE, WAIT = 10, 60

#: What everybody does by hand: give back only what is one's own.
COMPARE_AND_DELETE = "return redis.call('GET', KEYS[1]) == ARGV[1] and redis.call('DEL', KEYS[1]) or 0"


class Contender:
    """One way to lock. Made once per process; importing its library is part of making it."""

    name: str

    def __init__(self, url: str) -> None:
        self.client = redis.Redis.from_url(url)

    def prepare(self, key: str) -> None:
        """Make the lock free, before anybody asks for it."""

    def lock(self, key: str, expire: int = EXPIRE) -> AbstractContextManager[object]:
        raise NotImplementedError

    def renewed(self, key: str, expire: int) -> AbstractContextManager[object]:
        """A lock that is renewed for as long as it is held."""
        raise NotImplementedError

    def close(self) -> None:
        self.client.close()


class Distlock(Contender):
    name = "distlock_web"

    def __init__(self, url: str) -> None:
        import distlock_web

        self._lock = distlock_web.lock
        self._registry = distlock_web.configure({"default": {"LOCATION": url}})

    def lock(self, key: str, expire: int = EXPIRE) -> AbstractContextManager[object]:
        return self._lock(key, expire=expire, wait=WAIT)

    def renewed(self, key: str, expire: int) -> AbstractContextManager[object]:
        return self._lock(key, expire=expire, renew=True)

    def close(self) -> None:
        self._registry.close()


class Raw(Contender):
    """``SET NX PX`` and ``EVALSHA``, written out: the least that a lock through redis-py can send. It cannot wait."""

    name = "raw commands"

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.sha = self.client.script_load(COMPARE_AND_DELETE)

    def lock(self, key: str, expire: int = EXPIRE) -> AbstractContextManager[object]:
        return _RawLock(self, key, expire)


class _RawLock:
    __slots__ = ("_expire", "_key", "_raw", "_token")

    def __init__(self, raw: Raw, key: str, expire: int) -> None:
        self._raw = raw
        self._key = key
        self._expire = expire

    def __enter__(self) -> None:
        self._token = secrets.token_hex(16)
        if not self._raw.client.set(self._key, self._token, nx=True, px=self._expire * 1000):
            raise RuntimeError(f"{self._key} is not free")

    def __exit__(self, *_: object) -> None:
        self._raw.client.evalsha(self._raw.sha, 1, self._key, self._token)


class HandOff(Contender):
    """The least that a queue in Redis can send: one element in a list, taken with BLPOP, put back with RPUSH.

    No TTL, no owner, no way back from a dead holder: what a hand-over costs when nothing else is promised.
    """

    name = "BLPOP hand-off"

    def prepare(self, key: str) -> None:
        self.client.delete(key)
        self.client.rpush(key, 1)

    def lock(self, key: str, expire: int = EXPIRE) -> AbstractContextManager[object]:
        return _Element(self.client, key)


class _Element:
    __slots__ = ("_client", "_key")

    def __init__(self, client: redis.Redis, key: str) -> None:
        self._client = client
        self._key = key

    def __enter__(self) -> None:
        # Below redis-py's socket timeout of 5 s, which would end a longer BLPOP with an error.
        while self._client.blpop([self._key], 4) is None:
            pass

    def __exit__(self, *_: object) -> None:
        self._client.rpush(self._key, 1)


class RedisPy(Contender):
    name = "redis-py Lock"

    def lock(self, key: str, expire: int = EXPIRE) -> AbstractContextManager[object]:
        return self.client.lock(key, timeout=expire)


class PythonRedisLock(Contender):
    name = "python-redis-lock"

    def __init__(self, url: str) -> None:
        import redis_lock

        self._lock = redis_lock.Lock
        # Its BLPOP sleeps longer than redis-py 8's default socket timeout of 5 s, which ends it with an error.
        self.client = redis.Redis.from_url(url, socket_timeout=None)

    def lock(self, key: str, expire: int = EXPIRE) -> AbstractContextManager[object]:
        return self._lock(self.client, key, expire=expire)

    def renewed(self, key: str, expire: int) -> AbstractContextManager[object]:
        return self._lock(self.client, key, expire=expire, auto_renewal=True)


class Pottery(Contender):
    """Redlock over one master: what it costs where one server is enough."""

    name = "pottery Redlock"

    def __init__(self, url: str) -> None:
        import pottery

        super().__init__(url)
        self._lock = pottery.Redlock

    def lock(self, key: str, expire: int = EXPIRE) -> AbstractContextManager[object]:
        return self._lock(key=key, masters={self.client}, auto_release_time=expire)


class DjangoRedis(Contender):
    """``cache.lock``: redis-py's Lock, reached through the cache's client."""

    name = "django-redis"

    def __init__(self, url: str) -> None:
        import django_redis  # noqa: F401 - is it installed?

        from .django_setup import setup

        setup(url)
        from django.core.cache import cache

        self._cache: Any = cache

    def lock(self, key: str, expire: int = EXPIRE) -> AbstractContextManager[object]:
        return self._cache.lock(key, timeout=expire)

    def close(self) -> None:
        self._cache.close()


class AsyncContender:
    """The same for event loops: ``async with contender.lock(key):``. Made inside the loop."""

    name: str

    def __init__(self, url: str) -> None:
        self.client: Any = redis.asyncio.Redis.from_url(url)

    def lock(self, key: str, expire: int = EXPIRE) -> AbstractAsyncContextManager[object]:
        raise NotImplementedError

    async def close(self) -> None:
        await self.client.aclose()


class AsyncDistlock(AsyncContender):
    name = Distlock.name

    def __init__(self, url: str) -> None:
        import distlock_web

        self._lock = distlock_web.lock
        self._registry = distlock_web.configure({"default": {"LOCATION": url}})

    def lock(self, key: str, expire: int = EXPIRE) -> AbstractAsyncContextManager[object]:
        return self._lock(key, expire=expire, wait=WAIT)

    async def close(self) -> None:
        self._registry.close()
        await asyncio.sleep(0)  # its transport closes in the loop's next turn


class AsyncRaw(AsyncContender):
    name = Raw.name

    sha = ""

    def lock(self, key: str, expire: int = EXPIRE) -> AbstractAsyncContextManager[object]:
        return _AsyncRawLock(self, key, expire)


class _AsyncRawLock:
    __slots__ = ("_expire", "_key", "_raw", "_token")

    def __init__(self, raw: AsyncRaw, key: str, expire: int) -> None:
        self._raw = raw
        self._key = key
        self._expire = expire

    async def __aenter__(self) -> None:
        self._raw.sha = self._raw.sha or await self._raw.client.script_load(COMPARE_AND_DELETE)
        self._token = secrets.token_hex(16)
        if not await self._raw.client.set(self._key, self._token, nx=True, px=self._expire * 1000):
            raise RuntimeError(f"{self._key} is not free")

    async def __aexit__(self, *_: object) -> None:
        await self._raw.client.evalsha(self._raw.sha, 1, self._key, self._token)


class AsyncRedisPy(AsyncContender):
    name = "redis.asyncio Lock"

    def lock(self, key: str, expire: int = EXPIRE) -> AbstractAsyncContextManager[object]:
        return self.client.lock(key, timeout=expire)


class AsyncPottery(AsyncContender):
    name = "pottery AIORedlock"

    def __init__(self, url: str) -> None:
        import pottery

        super().__init__(url)
        self._lock = pottery.AIORedlock

    def lock(self, key: str, expire: int = EXPIRE) -> AbstractAsyncContextManager[object]:
        return self._lock(key=key, masters={self.client}, auto_release_time=expire)


OURS = Distlock.name
FREE: Sequence[type[Contender]] = (Raw, Distlock, RedisPy, PythonRedisLock, Pottery, DjangoRedis)
FREE_ASYNC: Sequence[type[AsyncContender]] = (AsyncRaw, AsyncDistlock, AsyncRedisPy, AsyncPottery)
CONTENDED: Sequence[type[Contender]] = (HandOff, Distlock, RedisPy, PythonRedisLock, Pottery, DjangoRedis)
