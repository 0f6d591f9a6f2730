"""ASGI under whatever framework: who it is that asks, which a framework of one's own says in its own way."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from distlock_web import KeyUnavailable
from distlock_web.web import asgi

NOBODY = {"None": None, "no text": "", "no texts": (), "an empty one": [""], "an iterator": iter(())}


def asked_by(user: Any, credentials: str) -> str:
    """The digest of a request with these credentials, of which the framework says that it is this user's."""

    class Integration(asgi.ASGIIntegration):
        def user_of(self, request: asgi.Request) -> Any:
            return user

    async def ask() -> str:
        scope = {
            "type": "http", "http_version": "1.1", "method": "POST", "path": "/pay", "query_string": b"",
            "headers": [(b"authorization", credentials.encode())],
        }  # fmt: skip
        asgi.running.set(request := asgi.Request(scope, _nothing, lambda scope: True))
        return await Integration().who_asks(request, (), {}, SimpleNamespace(asynchronous=True))

    return asyncio.run(ask())


async def _nothing() -> dict[str, Any]:
    return {"type": "http.request", "body": b""}


@pytest.mark.parametrize("nobody", NOBODY.values(), ids=NOBODY)
def test_where_nobody_is_logged_in_the_credentials_say_who_asks(nobody: Any) -> None:
    """To everybody else ``once`` showed what the first of them was answered."""
    assert asked_by(nobody, "Bearer ann") != asked_by(nobody, "Bearer bob")


def test_a_user_is_the_same_whatever_token_he_has_now() -> None:
    assert asked_by("ann", "Bearer 1") == asked_by(["ann"], "Bearer 2")
    assert asked_by("ann", "Bearer 1") != asked_by("bob", "Bearer 1")
    assert asked_by("ab", "") != asked_by(["a", "b"], "")


async def test_a_body_that_the_framework_reads_at_the_same_time() -> None:
    """As Quart does: neither may get the other's chunks out of their order."""
    sent: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    scope = {"method": "POST", "headers": [(b"transfer-encoding", b"chunked")]}
    request = asgi.Request(scope, sent.get, lambda scope: True)
    read: list[bytes] = []

    async def framework() -> None:
        more = True
        while more:
            message = await request.receive()
            read.append(message["body"])
            more = message["more_body"]

    reading = asyncio.gather(framework(), request.body())
    for number in range(6):
        await asyncio.sleep(0.001)  # both are waiting
        sent.put_nowait({"type": "http.request", "body": b"%d" % number, "more_body": number < 5})
    _, compared = await asyncio.wait_for(reading, 20)
    assert (b"".join(read), compared) == (b"012345", b"012345")


async def test_a_client_of_which_the_framework_has_heard_that_it_is_gone() -> None:
    sent: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    request = asgi.Request({"method": "POST", "headers": [(b"content-length", b"9")]}, sent.get, lambda scope: True)
    heard = asyncio.create_task(request.receive())
    await asyncio.sleep(0)
    asked = asyncio.create_task(request.body())
    await asyncio.sleep(0)
    sent.put_nowait({"type": "http.disconnect"})
    with pytest.raises(KeyUnavailable, match="The client has gone"):
        await asyncio.wait_for(asked, 20)
    assert (await heard)["type"] == "http.disconnect"
