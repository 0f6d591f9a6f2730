"""ASGI under whatever framework: who it is that asks, which a framework of one's own says in its own way."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

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
