"""ASGI under whatever framework: who it is that asks, which a framework of one's own says in its own way."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from contextlib import nullcontext
from hashlib import sha256
from io import BytesIO
from tempfile import SpooledTemporaryFile
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from distlock_web import ConfigurationError, KeyUnavailable
from distlock_web.web import asgi, asgi_bodies
from distlock_web.web.asgi_bodies import FormPieces
from distlock_web.web.asked import MAX_COMPARED, is_field_of_rendering

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
SHORT = multipart(b"b", (b"a", b"1"))


def before_it(said: bytes, value: bytes) -> tuple[str, bytes]:
    """A short form with one part more, that says its name in this way."""
    return SHORT[0], b"--b\r\ncontent-disposition: form-data; %s\r\n\r\n%s\r\n" % (said, value) + SHORT[1]


#: Forms of one group say the same; two of different groups do not.
FORMS: list[list[tuple[str, bytes]]] = [
    [multipart(b"b", (b"a", b"1"), LONG), multipart(b"other", (b"a", b"1"), LONG, (b"csrf_token", b"t"))],
    [multipart(b"b", (b"a", b"2"), LONG), multipart(b"b", (b"a-csrf_token", b"t"), (b"a", b"2"), LONG)],
    [multipart(b"b", LONG, (b"a", b"1"))],
    [multipart(b"b", (b"a", b"1"), (b"scan", LONG[1] + b"y"))],
    [
        SHORT,
        before_it(b"name=csrf_token", b"t"),
        before_it(b'filename="\\"; name=amount"; name=csrf_token', b"t"),
        ("multipart/form-data; xboundary=a; boundary=b", SHORT[1]),
    ],
    [before_it(b'filename="; name=csrf_token"; name=scan', b"1")],
    [before_it(b'filename="; name=csrf_token"; name=scan', b"2")],
    [before_it(b'filename="\\"; name=csrf_token"; name=scan', b"1")],
    [multipart(b"b", (b"a", b"1\r\n-"))],
    [multipart(b"b")],
    [urlencoded((b"a", b"1"), (b"b", b"2")), urlencoded((b"a", b"1"), (b"csrf%5Ftoken", b"t"), (b"b", b"2"))],
    [urlencoded((b"a", b"12"), (b"b", b""))],
    [urlencoded((b"a", b"1b=2"))],
    [urlencoded((b"a", b"1"), LONG), urlencoded((b"csrfmiddlewaretoken", LONG[1]), (b"a", b"1"), LONG)],
    [urlencoded()],
]


def digest(form: tuple[str, bytes], size: int) -> str:
    content_type, body = form
    pieces = FormPieces.of(content_type)
    assert pieces is not None
    for at in range(0, len(body), size):
        pieces.add(body[at : at + size])
    assert pieces.digest() == pieces.digest()
    return content_type.partition(";")[0] + pieces.digest()


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 8 * 1024, 10**6])
def test_what_a_form_says_does_not_depend_on_the_pieces_that_it_comes_in(size: int) -> None:
    groups = [{digest(form, size) for form in group} for group in FORMS]
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


@pytest.mark.parametrize("size", [1, 2, 5, 10**6])
def test_of_very_many_fields_all_that_is_after_them_counts(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asgi_bodies, "_MAX_PIECES", 3)
    ends = (b"d=4&e=5", b"d=4&e=6", b"csrf_token=t&e=5", b"csrf_token=t&e=6", b"csrf_token=u&e=5", b"")
    forms = [(urlencoded()[0], b"a=1&csrf_token=t&b=2&" + end) for end in ends]
    assert len({digest(form, size) for form in forms}) == len(ends)
    assert [digest(form, size) for form in forms] == [digest(form, 3) for form in forms]
    assert digest((urlencoded()[0], b"a=1&csrf_token=v&b=2&d=4&e=5"), size) == digest(forms[0], 3)


@pytest.mark.parametrize("unit", [b"&", b"a&", b"--b", b"--b.", b"--b\r\n"])
def test_a_body_of_little_else_than_separators_costs_little(unit: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """It kept the event loop busy for seconds, with two digests and a name for each."""
    form = FormPieces.of((SHORT if b"--" in unit else urlencoded())[0])
    assert form is not None
    made: list[object] = []
    monkeypatch.setattr(asgi_bodies, "sha256", lambda: made.append(1) or sha256())
    monkeypatch.setattr(
        asgi_bodies, "is_field_of_rendering", lambda name: made.append(1) or is_field_of_rendering(name)
    )
    form.add(unit * 100_000)
    form.digest()
    assert len(made) <= 10_001


def test_what_is_between_two_separators_says_nothing() -> None:
    content_type, body = urlencoded((b"a", b"1"), (b"b", b"2"))
    assert digest((content_type, b"&" * 1000 + b"a=1&&b=2&"), 10) == digest((content_type, body), 10)


async def take_turns(turns: list[object]) -> None:
    while True:
        turns.append(1)
        await asyncio.sleep(0)


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
    turns: list[object] = []
    other = asyncio.create_task(take_turns(turns))
    more, read = True, [first["body"]]
    while more:
        message = await request.receive()
        read.append(message["body"])
        more = message["more_body"]
    assert b"".join(read) == b"".join(chunks)
    assert len(turns) >= len(read) - 1, "the others have their turn between two chunks"
    other.cancel()
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


class OnDisk(SpooledTemporaryFile[bytes]):
    """What a long body is kept in, and all of them that were made."""

    made: ClassVar[list[OnDisk]] = []

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.made.append(self)


class Full(OnDisk):
    """What it had in memory is gone: the disk has not taken it."""

    def rollover(self) -> None:
        self._file: Any = BytesIO()
        raise OSError(errno.ENOSPC, "No space left on device")


class NoDirectory(OnDisk):
    def rollover(self) -> None:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")


class FullLater(OnDisk):
    """Of one chunk after others."""

    def write(self, data: Any) -> int:
        if self.tell():
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(data)

    def close(self) -> None:
        super().close()
        raise OSError(errno.ENOSPC, "No space left on device")


class Emptied(OnDisk):
    def read(self, *args: Any) -> bytes:
        return b""


@pytest.fixture
def on_disk(monkeypatch: pytest.MonkeyPatch) -> Callable[[type[OnDisk]], None]:
    monkeypatch.setattr(OnDisk, "made", [])
    return lambda kind: monkeypatch.setattr(asgi_bodies, "SpooledTemporaryFile", kind)


LONG_FORM = {"method": "POST", "type": "http", "path": "/", "headers": [(b"content-type", urlencoded()[0].encode())]}
HALF = b"x" * (MAX_COMPARED - 1)


@pytest.mark.parametrize("kind", [Full, NoDirectory, FullLater, Emptied])
async def test_of_a_body_that_could_not_be_kept_nobody_gets_a_part(
    kind: type[OnDisk], on_disk: Callable[[type[OnDisk]], None]
) -> None:
    """It was given without the chunk that was lost, or without an end: a view got nothing for ever."""
    on_disk(kind)
    chunks = [2 * HALF] if kind is NoDirectory else [HALF, HALF]
    sent = [{"type": "http.request", "body": chunk, "more_body": True} for chunk in chunks]
    sent[-1]["more_body"] = False

    async def receive() -> dict[str, Any]:
        return sent.pop(0)

    request = asgi.Request(LONG_FORM, receive, lambda scope: True)
    with nullcontext() if kind is Emptied else pytest.raises(ConfigurationError, match="that has room: set TMPDIR"):
        await request.body()  # of what is emptied it shows when it is read
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="that has room: set TMPDIR"):
            await request.receive()
    with pytest.raises(ConfigurationError, match="that has room: set TMPDIR"):
        await request.body()
    await request.close()
    assert [each.closed for each in OnDisk.made] == [True]


@pytest.mark.parametrize("end", ["answer", "disconnect", "cancel", "failed write"])
async def test_what_a_long_body_is_kept_in_is_closed_with_the_request(
    end: str, on_disk: Callable[[type[OnDisk]], None]
) -> None:
    on_disk(FullLater if end == "failed write" else OnDisk)
    waiting = asyncio.Event()
    last: dict[str, Any] = {"type": "http.request", "body": HALF}
    sent = [{**last, "more_body": True}, {**last, "more_body": True}]

    async def receive() -> dict[str, Any]:
        if sent:
            return sent.pop()
        if end == "cancel":
            waiting.set()
            await asyncio.Event().wait()
        return {"type": "http.disconnect"} if end == "disconnect" else last

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await asgi.running_request().body()

    async def send(message: Any) -> None:
        pass

    running = asyncio.create_task(asgi.RequestMiddleware(app)({**LONG_FORM}, receive, send))
    if end == "cancel":
        await asyncio.wait_for(waiting.wait(), 20)
        running.cancel()
    said = {"disconnect": KeyUnavailable, "cancel": asyncio.CancelledError, "failed write": ConfigurationError}
    with pytest.raises(said[end]) if end in said else nullcontext():
        await asyncio.wait_for(running, 20)
    assert [each.closed for each in OnDisk.made] == [True]
