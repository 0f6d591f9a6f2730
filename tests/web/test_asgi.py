"""ASGI under whatever framework: who it is that asks, which a framework of one's own says in its own way."""

from __future__ import annotations

import asyncio
from hashlib import sha256
from types import SimpleNamespace
from typing import Any

import pytest

from distlock_web import KeyUnavailable
from distlock_web.web import asgi, asgi_bodies
from distlock_web.web.asgi_bodies import FormPieces
from distlock_web.web.asked import MAX_COMPARED

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


PART = b'\r\nContent-Disposition: form-data; name="%s"%s\r\n\r\n%s\r\n'


def multipart(boundary: bytes, *parts: tuple[bytes, bytes]) -> tuple[str, bytes]:
    said = b"".join(b"--" + boundary + PART % (name, b"", value) for name, value in parts)
    return f'multipart/form-data; boundary="{boundary.decode()}"', said + b"--" + boundary + b"--\r\n"


def urlencoded(*parts: tuple[bytes, bytes]) -> tuple[str, bytes]:
    return "application/x-www-form-urlencoded", b"&".join(b"=".join(part) for part in parts)


LONG = (b"scan", b"x-" * 9_000)
#: Forms of one group say the same; two of different groups do not.
FORMS: list[list[tuple[str, bytes]]] = [
    [multipart(b"b", (b"a", b"1"), LONG), multipart(b"other", (b"a", b"1"), LONG, (b"csrf_token", b"t"))],
    [multipart(b"b", (b"a", b"2"), LONG), multipart(b"b", (b"a-csrf_token", b"t"), (b"a", b"2"), LONG)],
    [multipart(b"b", LONG, (b"a", b"1"))],
    [multipart(b"b", (b"a", b"1"), (b"scan", LONG[1] + b"y"))],
    [multipart(b"b", (b"a", b"1"))],
    [multipart(b"b", (b"a", b"1\r\n-"))],
    [multipart(b"b")],
    [urlencoded((b"a", b"1"), (b"b", b"2")), urlencoded((b"a", b"1"), (b"csrf%5Ftoken", b"t"), (b"b", b"2"))],
    [urlencoded((b"a", b"12"), (b"b", b""))],
    [urlencoded((b"a", b"1"), LONG), urlencoded((b"csrfmiddlewaretoken", LONG[1]), (b"a", b"1"), LONG)],
    [urlencoded()],
]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 8 * 1024, 10**6])
def test_what_a_form_says_does_not_depend_on_the_pieces_that_it_comes_in(size: int) -> None:
    def digest(form: tuple[str, bytes]) -> str:
        content_type, body = form
        pieces = FormPieces.of(content_type)
        assert pieces is not None
        for at in range(0, len(body), size):
            pieces.add(body[at : at + size])
        assert pieces.digest() == pieces.digest()
        return content_type.partition(";")[0] + pieces.digest()

    groups = [{digest(form) for form in group} for group in FORMS]
    assert [len(group) for group in groups] == [1] * len(FORMS)
    assert len(set.union(*groups)) == len(FORMS)


@pytest.mark.parametrize("media_type", ["", "text/plain", "multipart/form-data", "multipart/mixed; boundary=b"])
def test_what_is_no_form_is_compared_as_it_is(media_type: str) -> None:
    assert FormPieces.of(media_type) is None


@pytest.mark.parametrize("media_type", ["text/plain", "multipart/form-data"])
async def test_a_long_body_that_is_no_form_counts_by_the_length_that_it_says(media_type: str) -> None:
    """Without a boundary it cannot be compared as a form: it was read, and refused as one that says no length."""

    async def receive() -> dict[str, Any]:
        raise AssertionError("it is not read")

    headers = [(b"content-type", media_type.encode()), (b"content-length", b"%d" % (MAX_COMPARED + 1))]
    request = asgi.Request({"method": "POST", "headers": headers}, receive, lambda scope: True)
    assert await request.body() == MAX_COMPARED + 1


def test_what_is_between_two_separators_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A body of nothing else kept the event loop busy for seconds, with a digest for each."""
    form = FormPieces.of("application/x-www-form-urlencoded")
    assert form is not None
    made: list[object] = []
    monkeypatch.setattr(asgi_bodies, "sha256", lambda: made.append(1) or sha256())
    form.add(b"&" * 1000 + b"a=1&&b=2")
    usual = FormPieces.of("application/x-www-form-urlencoded")
    assert usual is not None
    usual.add(b"a=1&b=2")
    assert form.digest() == usual.digest()
    assert len(made) < 20


async def test_what_was_read_ahead_of_a_long_form_is_in_a_file_and_the_app_gets_it_in_its_order() -> None:
    chunks = [b"%07d" % number * 40_000 for number in range(20)]  # 5.6 MB
    sent: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    for chunk in chunks:
        sent.put_nowait({"type": "http.request", "body": chunk, "more_body": True})
    sent.put_nowait({"type": "http.request", "more_body": False})
    sent.put_nowait({"type": "http.disconnect"})
    headers = [(b"content-type", b"application/x-www-form-urlencoded")]
    request = asgi.Request({"method": "POST", "headers": headers}, sent.get, lambda scope: True)
    first = await request.receive()  # which the app has had before
    await request.body()
    more, read = True, [first["body"]]
    while more:
        message = await request.receive()
        read.append(message["body"])
        more = message["more_body"]
    assert b"".join(read) == b"".join(chunks)
    assert (await request.receive())["type"] == "http.disconnect"
    await request.close()


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
