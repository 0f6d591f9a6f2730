"""A client of an app in this process, by WSGI or ASGI alone: for the contract of frameworks, whatever serves them."""

from __future__ import annotations

import asyncio
import io
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from contextlib import suppress
from contextvars import copy_context
from typing import Any, NamedTuple, Protocol
from urllib.parse import unquote

_log = logging.getLogger("distlock_web.testing")
_RAISED = "The app has raised, where a server would answer 500"


class Reply(NamedTuple):
    """What a client has got. Of a header that came twice, the last."""

    status: int
    headers: Mapping[str, str]  #: by their names in small letters
    body: bytes


class Site(Protocol):
    """An app, as its clients see it."""

    def send(self, method: str, path: str, headers: Mapping[str, str] | None = None, body: bytes = b"") -> Reply:
        """Send one request, and read its answer to the end. Several threads do so at once."""

    def hang_up(self, path: str) -> None:
        """Send a GET, read one chunk of its answer, and go."""


class WSGISite:
    """An app that a server would call by WSGI. What it raises is a 500, or ends its body."""

    def __init__(self, app: Callable[..., Iterable[bytes]]) -> None:
        self._app = app

    def send(self, method: str, path: str, headers: Mapping[str, str] | None = None, body: bytes = b"") -> Reply:
        return copy_context().run(self._send, method, path, headers or {}, body, None)

    def hang_up(self, path: str) -> None:
        copy_context().run(self._send, "GET", path, {}, b"", 1)

    def _send(self, method: str, path: str, headers: Mapping[str, str], body: bytes, most: int | None) -> Reply:
        path, _, query = path.partition("?")
        environ = {
            "REQUEST_METHOD": method, "SCRIPT_NAME": "", "PATH_INFO": unquote(path), "QUERY_STRING": query,
            "SERVER_NAME": "localhost", "SERVER_PORT": "80", "SERVER_PROTOCOL": "HTTP/1.1", "HTTP_HOST": "localhost",
            "wsgi.version": (1, 0), "wsgi.url_scheme": "http", "wsgi.input": io.BytesIO(body),
            "wsgi.errors": io.StringIO(), "wsgi.multithread": True, "wsgi.multiprocess": True, "wsgi.run_once": False,
            "CONTENT_LENGTH": str(len(body)),
        }  # fmt: skip
        for name, value in headers.items():
            key = name.upper().replace("-", "_")
            environ[key if key in ("CONTENT_TYPE", "CONTENT_LENGTH") else f"HTTP_{key}"] = value
        told: list[tuple[str, list[tuple[str, str]]]] = []

        def start_response(status: str, headers: list[tuple[str, str]], exc_info: object = None) -> None:
            told.append((status, headers))

        sent: list[bytes] = []
        steps: Iterable[bytes] = ()
        try:
            steps = self._app(environ, start_response)
            for chunk in steps:
                sent.append(chunk)
                if len(sent) == most:
                    break
        except Exception:
            _log.warning(_RAISED, exc_info=True)
            if not told:
                told.append(("500", []))
        finally:
            with suppress(AttributeError):
                steps.close()  # type: ignore[attr-defined]
        status, said = told[-1]
        return Reply(int(status[:3]), {name.lower(): value for name, value in said}, b"".join(sent))


class ASGISite:
    """An app that a server would call by ASGI, each request in an event loop of its own."""

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self._app = app

    def send(self, method: str, path: str, headers: Mapping[str, str] | None = None, body: bytes = b"") -> Reply:
        return copy_context().run(asyncio.run, self._send(method, path, headers or {}, body, goes=False))

    def hang_up(self, path: str) -> None:
        copy_context().run(asyncio.run, self._send("GET", path, {}, b"", goes=True))

    async def _send(self, method: str, path: str, headers: Mapping[str, str], body: bytes, *, goes: bool) -> Reply:
        path, _, query = path.partition("?")
        said = {"Host": "localhost", "Content-Length": str(len(body)), **headers}
        scope = {
            "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1", "scheme": "http",
            "method": method, "path": unquote(path), "raw_path": path.encode(), "query_string": query.encode(),
            "root_path": "",
            "headers": [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in said.items()],
            "server": ("localhost", 80), "client": ("127.0.0.1", 1), "state": {}, "extensions": {},
        }  # fmt: skip
        told: list[MutableMapping[str, Any]] = []
        asked = [{"type": "http.request", "body": body, "more_body": False}]
        ended = asyncio.Event()

        async def receive() -> dict[str, Any]:
            if asked:
                return asked.pop()
            await ended.wait()
            return {"type": "http.disconnect"}

        async def send(message: MutableMapping[str, Any]) -> None:
            told.append(message)
            if message["type"] != "http.response.body":
                return
            if goes and message.get("body"):
                ended.set()
                await asyncio.Event().wait()  # a client that has gone reads no more
            if not message.get("more_body"):
                ended.set()

        app = asyncio.ensure_future(self._app(scope, receive, send))
        if goes:
            gone = asyncio.ensure_future(ended.wait())
            await asyncio.wait({app, gone}, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait({app}, timeout=1)  # it may be listening, which ends it
            gone.cancel()
            app.cancel()
        with suppress(asyncio.CancelledError):
            try:
                await app
            except Exception:
                _log.warning(_RAISED, exc_info=True)
        start = next((each for each in told if each["type"] == "http.response.start"), None)
        if start is None:
            return Reply(500, {}, b"")
        found = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in start.get("headers", ())}
        chunks = [each.get("body", b"") for each in told if each["type"] == "http.response.body"]
        return Reply(start["status"], found, b"".join(chunks))
