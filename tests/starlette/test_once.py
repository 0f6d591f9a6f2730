"""``once`` on endpoints: what the first client got the second gets, as FastAPI and Starlette have made it."""

from __future__ import annotations

import asyncio
import functools
import inspect
import zlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Annotated, Any

import fastapi
import pytest
from fastapi import APIRouter, Body, Depends, FastAPI, File, HTTPException, Query, Response, Security, UploadFile
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse
from fastapi.security import APIKeyHeader
from pydantic import BaseModel
from starlette.authentication import AuthCredentials, AuthenticationBackend, SimpleUser
from starlette.background import BackgroundTask
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.middleware.sessions import SessionMiddleware
from starlette.requests import Request

from distlock_web import ConfigurationError, distributed_lockable, once
from distlock_web.ops.held_locks import list_all
from distlock_web.starlette import views
from distlock_web.web import asgi
from distlock_web.web.asgi import ASGIHeaders
from distlock_web.web.asked import MAX_COMPARED
from distlock_web.web.kept_answers import MAX_KEPT, NOT_KEPT
from tests.support.asgi_clients import MakeApp, client_of
from tests.support.waiting import LONG

KEY = "pay:{request.headers[Idempotency-Key]}"
HEADERS = {"Idempotency-Key": "7"}


class Paid(BaseModel):
    order: int
    secret: str = "s"


class Shown(BaseModel):
    order: int


runs: list[str] = []


def injected(response: Response) -> dict[str, int]:
    response.status_code = 202
    response.headers["Location"] = "/payments/7"
    return {"paid": 7}


#: What an endpoint returns, and how it is registered.
ANSWERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "dict": (lambda: {"paid": 7, "margin": 0.1}, {}),
    "nothing": (lambda: None, {}),
    "no content": (lambda: None, {"status_code": 204}),
    "model": (lambda: Paid(order=7), {"status_code": 201}),
    "without a phrase": (lambda: {"paid": 7}, {"status_code": 299}),
    "filtered": (lambda: Paid(order=7), {"response_model": Shown}),
    "injected": (injected, {}),
    "response": (lambda: JSONResponse({"paid": 7}, 201, {"Location": "/payments/7"}), {}),
    "page": (lambda: HTMLResponse("<p>päid"), {}),
    "bytes": (lambda: Response(b"\xff\x00", media_type="image/png"), {}),
    "redirect": (lambda: RedirectResponse("/thanks", 303), {}),
    "background": (lambda: JSONResponse("paid", background=BackgroundTask(runs.append, "mailed")), {}),
}


def pay_endpoint(app: FastAPI, function: Any, *, plain: bool = False, **route: Any) -> None:
    """``/pay``, whose runs are counted."""
    if plain:

        def work(*args: Any, **kwargs: Any) -> Any:
            runs.append("run")
            return function(*args, **kwargs)
    else:

        async def work(*args: Any, **kwargs: Any) -> Any:  # type: ignore[misc]
            runs.append("run")
            return function(*args, **kwargs)

    import inspect

    work.__signature__ = inspect.signature(function, eval_str=True)  # type: ignore[attr-defined]
    app.post("/pay", **route)(once(key=KEY, keep="1h")(work))


@pytest.fixture(autouse=True)
def _no_runs() -> None:
    runs.clear()


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("answer", ANSWERS)
async def test_the_second_answer_is_the_first_one_byte_for_byte(app: FastAPI, answer: str, plain: bool) -> None:
    function, route = ANSWERS[answer]
    pay_endpoint(app, function, plain=plain, **route)
    async with client_of(app) as client:
        first, second = [await client.post("/pay", headers=HEADERS) for _ in range(2)]
        third = await client.post("/pay", headers={"Idempotency-Key": "8"})
    assert first.status_code == second.status_code == third.status_code < 400
    assert first.content == second.content
    assert {**first.headers, "req-id": "", "idempotency-replayed": "true"} == {**second.headers, "req-id": ""}
    assert "Idempotency-Replayed" not in first.headers
    assert runs.count("run") == 2
    assert not list_all(app.state.distlock.registry).rows


@pytest.mark.parametrize(
    ("function", "status"),
    [(lambda: JSONResponse({}, 402), 402), (lambda: _raise(HTTPException(409)), 409), (lambda: {1: object()}, 500)],
)
async def test_a_failure_may_be_tried_again(app: FastAPI, function: Any, status: int) -> None:
    pay_endpoint(app, function)
    async with client_of(app) as client:
        said = [(await client.post("/pay", headers=HEADERS)).status_code for _ in range(2)]
    assert (said, len(runs)) == ([status, status], 2)


def _raise(error: Exception) -> None:
    raise error


@pytest.mark.parametrize("approved", [201, 402])
@pytest.mark.parametrize(
    ("function", "status"), [(lambda: _raise(HTTPException(409)), 409), (lambda: {1: object()}, 500)]
)
async def test_what_success_has_not_seen_is_none_of_its_own(
    app: FastAPI, function: Any, status: int, approved: int
) -> None:
    """What the framework answers because the value could not be sent, or nothing was returned."""

    @app.post("/pay", status_code=approved)
    @once(key=KEY, keep="1h", success=lambda value: True)
    async def pay() -> Any:
        runs.append("run")
        return function()

    async with client_of(app) as client:
        said = [(await client.post("/pay", headers=HEADERS)).status_code for _ in range(2)]
    assert (said, len(runs)) == ([status, status], 2)


async def test_an_answer_that_is_too_long_is_said_to_be_done(app: FastAPI) -> None:
    pay_endpoint(app, lambda: "x" * MAX_KEPT, status_code=201)
    async with client_of(app) as client:
        first, second = [await client.post("/pay", headers=HEADERS) for _ in range(2)]
    assert (len(first.content), second.text, second.status_code) == (MAX_KEPT + 2, NOT_KEPT, 201)


@pytest.mark.parametrize("by_name", [False, True])
async def test_a_status_on_the_given_response_is_the_endpoints_own(app: FastAPI, by_name: bool) -> None:
    """However a decorator above hands the response on."""

    @once(key=KEY, keep="1h", success=lambda value: True)
    async def pay(response: Response) -> str:
        runs.append("run")
        response.status_code = 402
        return "declined"

    @app.post("/pay")
    @functools.wraps(pay)
    async def audited(response: Response) -> str:
        return await (pay(response=response) if by_name else pay(response))

    async with client_of(app) as client:
        said = [(await client.post("/pay", headers=HEADERS)).status_code for _ in range(2)]
    assert (said, len(runs)) == ([402, 402], 1)


def test_an_endpoint_is_looked_through_for_once_a_single_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that its decorators close over was looked at in each request with a body."""

    class Endpoint:
        async def __call__(self) -> None: ...

    class Unhashable(Endpoint):
        __hash__ = None  # type: ignore[assignment]

    async def plain() -> None: ...

    looked: list[Any] = []
    functions_of = views.functions_of
    monkeypatch.setattr(views, "functions_of", lambda endpoint: looked.append(endpoint) or functions_of(endpoint))
    locked = once(key="pay", keep="1h")(plain)
    endpoints = [(plain, False), (locked, True), (functools.partial(locked), True), (Endpoint(), False)]
    for endpoint, has_once in endpoints * 2:
        assert views.has_once({"endpoint": endpoint}) is has_once
    assert len(looked) == len(endpoints)
    assert not views.has_once({"endpoint": Unhashable()})


LONG_TEXT = "x" * MAX_COMPARED
#: A first request, another one, and whether it is the same.
ASKED: dict[str, tuple[dict[str, Any], dict[str, Any], bool]] = {
    "body": ({"json": {"a": 1}}, {"json": {"a": 2}}, False),
    "no body": ({"json": {"a": 1}}, {}, False),
    "same": ({"json": {"a": 1}}, {"json": {"a": 1}}, True),
    "query": ({"params": {"a": 1}}, {"params": {"a": 2}}, False),
    "token": ({"headers": {"Authorization": "a"}}, {"headers": {"Authorization": "b"}}, False),
    "cookie": ({"headers": {"Cookie": "login=a"}}, {"headers": {"Cookie": "login=b"}}, False),
    "no cookie": ({"headers": {"Cookie": "login=a"}}, {}, False),
    "host": ({"headers": {"Host": "a.shop"}}, {"headers": {"Host": "b.shop"}}, False),
    "form": ({"data": {"a": "1", "csrf_token": "x"}}, {"data": {"a": "1", "csrf_token": "y"}}, True),
    "other form": ({"data": {"a": "1"}}, {"data": {"a": "2"}}, False),
    "file": ({"files": {"f": b"one"}}, {"files": {"f": b"one"}}, True),
    "other file": ({"files": {"f": b"one"}}, {"files": {"f": b"two"}}, False),
    "long form": ({"data": {"a": "1", "b": LONG_TEXT}}, {"data": {"a": "1", "b": LONG_TEXT}}, True),
    "other long form": ({"data": {"a": "1", "b": LONG_TEXT}}, {"data": {"a": "2", "b": LONG_TEXT}}, False),
    "long file": (
        {"data": {"csrf_token": "x"}, "files": {"f": LONG_TEXT + "1"}},
        {"data": {"csrf_token": "y"}, "files": {"f": LONG_TEXT + "1"}},
        True,
    ),
    "other long file": ({"files": {"f": LONG_TEXT + "1"}}, {"files": {"f": LONG_TEXT + "2"}}, False),
    "long in the first form": ({"files": {"f": LONG_TEXT}}, {"files": {"f": b"one"}}, False),
    "in pieces": ({"content": b"abc"}, {"content": b"abx"}, False),
}


@pytest.mark.parametrize("reads", ["the body", "nothing", "in a middleware"])
@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("case", ASKED)
async def test_only_who_asked_for_the_same_is_answered(app: FastAPI, case: str, plain: bool, reads: str) -> None:
    first, second, same = ASKED[case]

    async def read(request: Request) -> int:
        return len(await request.body())

    if reads == "in a middleware":

        async def look(request: Request, call_next: Any) -> Any:
            await request.body()
            return await call_next(request)

        app.add_middleware(BaseHTTPMiddleware, dispatch=look)
    if reads == "nothing" or plain:
        pay_endpoint(app, lambda: "paid", plain=plain)
    else:

        @app.post("/pay")
        @once(key=KEY, keep="1h")
        async def pay(request: Request) -> int:
            return len(await request.body())  # which was read ahead of it

    async with client_of(app) as client:
        answers = []
        for asked in (first, second):
            headers = {**HEADERS, **asked.get("headers", {})}
            answers.append(await client.post("/pay", **{**asked, "headers": headers}))
    assert answers[0].status_code == 200
    expected = (200, True) if same else (422, False)
    assert (answers[1].status_code, "Idempotency-Replayed" in answers[1].headers) == expected
    if reads == "the body" and not plain:
        assert answers[0].json() == int(answers[0].request.headers.get("Content-Length", 0))


class Copying:
    """A middleware that hands on a scope of its own, as ASGI wants of one that changes it."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.app({**scope, "user": SimpleUser(dict(scope["headers"])[b"x-user"].decode())}, receive, send)


async def test_below_a_middleware_that_copies_the_scope_a_view_is_a_view(make_app: MakeApp) -> None:
    """Or it would be taken for a function that a view calls, and anybody's repeated call gets its None."""
    seen: list[tuple[str, str]] = []
    app = make_app(extension={"user": lambda connection: connection.user.username})
    app.add_middleware(Copying)

    @app.post("/pay/{order}")
    @once(key="pay:{request.path_params[order]:int}", keep="1h")
    async def pay(order: str) -> str:
        (row,) = list_all(app.state.distlock.registry).rows
        seen.append((row.holder.path, row.holder.user))
        return "paid"

    async with client_of(app) as client:
        said = [await client.post("/pay/07", headers={"X-User": name}) for name in ("ann", "ann", "bob")]
    assert [(each.status_code, each.text) for each in said[:2]] == [(200, '"paid"')] * 2
    assert (said[2].status_code, seen) == (422, [("POST /pay/{order}", "ann")])


@once(key=KEY, keep="1h")
async def pay_by(how: Annotated[str, Query()] = "cash") -> dict[str, str]:
    return {"paid": how}


class Payment:
    @once(key="object:" + KEY, keep="1h")
    async def __call__(self, how: Annotated[str, Query()] = "card") -> dict[str, str]:
        return {"paid": how}


awaits_objects = pytest.mark.skipif(
    tuple(map(int, fastapi.__version__.split(".")[:2])) < (0, 124), reason="FastAPI 0.124 awaits what an object returns"
)


@functools.wraps(pay_by)
async def audited(*args: Any, **kwargs: Any) -> dict[str, str]:
    return await pay_by(*args, **kwargs)


@pytest.mark.parametrize(
    ("endpoint", "paid"),
    [
        (functools.partial(pay_by, how="card"), "card"),
        (functools.partial(functools.partial(pay_by), how="card"), "card"),
        pytest.param(Payment(), "card", marks=awaits_objects),
        pytest.param(functools.partial(Payment(), how="cash"), "cash", marks=awaits_objects),
        (audited, "cash"),
    ],
    ids=["partial", "partial of one", "object", "partial of an object", "decorated"],
)
async def test_whatever_is_called_for_an_endpoint_is_its_view(app: FastAPI, endpoint: Any, paid: str) -> None:
    """Or anybody gets the null of a function that a view calls."""
    app.post("/pay")(endpoint)
    async with client_of(app) as client:
        said = [await client.post("/pay", headers={**HEADERS, "X-Api-Key": name}) for name in ("ann", "ann", "bob")]
    assert [(each.status_code, each.json()) for each in said[:2]] == [(200, {"paid": paid})] * 2
    assert (said[1].headers["Idempotency-Replayed"], said[2].status_code) == ("true", 422)


async def test_of_a_value_that_is_lost_a_line_is_written(app: FastAPI, caplog: pytest.LogCaptureFixture) -> None:
    @once(key="help", keep="1h")
    async def helper() -> str:
        return "helped"

    @app.post("/help")
    async def endpoint() -> str | None:
        return await helper()

    async with client_of(app) as client:
        said = [(await client.post("/help")).json() for _ in range(2)]
    assert said == ["helped", None]
    assert "a repeated call will get None" in caplog.text


@pytest.mark.parametrize("name", ["Authorization", "X-Api-Key", "Cookie"])
async def test_of_a_header_that_is_sent_twice_both_are_compared(app: FastAPI, name: str) -> None:
    """HTTP/2 may send each cookie by itself."""
    pay_endpoint(app, lambda: "paid")
    async with client_of(app) as client:
        said = [
            (await client.post("/pay", headers=[*HEADERS.items(), (name, who), (name, "seen=1")])).status_code
            for who in ("login=ann", "login=ann", "login=bob")
        ]
    assert said == [200, 200, 422]


def test_headers_of_one_name_are_one() -> None:
    sent = [(b"Cookie", b"login=ann"), (b"accept", b"a"), (b"cookie", b"seen=1"), (b"Accept", b"b")]
    headers = ASGIHeaders({"headers": sent})
    assert (headers["Cookie"], headers["Accept"]) == ("login=ann; seen=1", "a, b")


@pytest.mark.parametrize("where", ["endpoint", "dependency", "router", "app"])
async def test_a_caller_is_known_by_the_header_of_a_security_scheme(make_app: MakeApp, where: str) -> None:
    token = APIKeyHeader(name="X-Token")

    async def user(sent: str = Depends(token)) -> str:
        return sent

    depends = {"dependencies": [Security(token)]}
    app, router = make_app(FastAPI, **(depends if where == "app" else {})), APIRouter()
    of_endpoint = {"endpoint": depends, "dependency": {"dependencies": [Depends(user)]}}.get(where, {})
    pay_endpoint(router, lambda: "paid", **of_endpoint)  # type: ignore[arg-type]
    app.include_router(router, **(depends if where == "router" else {}))
    async with client_of(app) as client:
        said = [
            (await client.post("/pay", headers={**HEADERS, "X-Token": name})).status_code
            for name in ("ann", "ann", "bob")
        ]
    assert said == [200, 200, 422]


@pytest.mark.parametrize("start", [b"", b"x" * MAX_COMPARED], ids=["short", "long"])
async def test_a_form_that_the_framework_parses_is_compared(app: FastAPI, start: bytes) -> None:
    @app.post("/pay")
    @once(key=KEY, keep="1h")
    async def pay(file: Annotated[UploadFile, File()]) -> int:
        return len(await file.read())

    async with client_of(app) as client:
        texts = [start + rest for rest in (b"one", b"one", b"two")]
        said = [await client.post("/pay", headers=HEADERS, files={"file": text}) for text in texts]
    assert [(each.status_code, each.text) for each in said[:2]] == [(200, str(len(texts[0])))] * 2
    assert said[2].status_code == 422


class Login(AuthenticationBackend):
    async def authenticate(self, conn: Any) -> Any:
        name = conn.headers.get("X-User")
        return None if name is None else (AuthCredentials(), SimpleUser(name))


async def test_a_user_is_known_however_he_says_who_he_is(app: FastAPI) -> None:
    app.add_middleware(AuthenticationMiddleware, backend=Login())
    pay_endpoint(app, lambda: "paid")
    async with client_of(app) as client:
        said = [
            (await client.post("/pay", headers={**HEADERS, **more})).status_code
            for more in ({"X-User": "ann"}, {"X-User": "ann", "Cookie": "seen=1"}, {"X-User": "bob"}, {})
        ]
    assert said == [200, 200, 422, 422]


@dataclass
class Certified:
    """A user as a middleware sets it that reads a proxy's header or a client's certificate."""

    name: str


@pytest.mark.parametrize("user", ["ann", {"name": "ann"}, Certified("ann")])
async def test_a_user_who_does_not_say_whether_he_is_somebody_is_not_taken_for_nobody(
    make_app: MakeApp, user: object
) -> None:
    """Without cookies all users would be one caller."""
    app = make_app()

    async def behind(scope: Any, receive: Any, send: Any) -> None:
        await app({**scope, "user": user}, receive, send)

    pay_endpoint(app, lambda: "paid")
    async with client_of(behind, raises=True) as client:
        with pytest.raises(ConfigurationError, match=r"the user .* needs .is_authenticated.*username. \(Starlette"):
            await client.post("/pay", headers=HEADERS)
    assert not runs


async def test_a_session_is_known_by_what_it_says_and_not_by_its_cookie(app: FastAPI) -> None:
    """Which is signed anew with each answer."""
    app.add_middleware(SessionMiddleware, secret_key="s")

    @app.post("/login/{name}")
    async def login(name: str, request: Request) -> None:
        request.session["name"] = name

    pay_endpoint(app, lambda: "paid")
    async with client_of(app) as client:
        await client.post("/login/ann")
        assert (await client.post("/pay", headers=HEADERS)).status_code == 200
        before = client.cookies["session"]
        await asyncio.sleep(1.1)  # the time in its signature has seconds
        await client.post("/login/ann")
        assert client.cookies["session"] != before
        assert (await client.post("/pay", headers=HEADERS)).status_code == 200
        await client.post("/login/bob")
        assert (await client.post("/pay", headers=HEADERS)).status_code == 422


async def test_a_middleware_makes_of_the_second_answer_what_it_made_of_the_first(app: FastAPI) -> None:
    app.add_middleware(GZipMiddleware, minimum_size=10)
    pay_endpoint(app, lambda: "x" * 1000)
    async with client_of(app) as client:
        packed = {**HEADERS, "Accept-Encoding": "gzip"}
        first, second = [await client.post("/pay", headers=packed) for _ in range(2)]
        plain = await client.post("/pay", headers={**HEADERS, "Accept-Encoding": "identity"})
    assert first.json() == second.json() == plain.json() == "x" * 1000
    assert [each.headers.get("Content-Encoding") for each in (first, second, plain)] == ["gzip", "gzip", None]
    assert zlib.crc32(first.content) == zlib.crc32(second.content)


@pytest.mark.skipif("scope" not in inspect.signature(Depends).parameters, reason="FastAPI 0.121 has brought it")
async def test_what_a_dependency_commits_before_the_answer_is_a_part_of_the_work(app: FastAPI) -> None:
    """A dependency of the function's scope: its commit has failed, so nothing is recorded, and the next call works."""
    commits: list[bool] = []

    async def session() -> AsyncIterator[str]:
        yield "session"
        commits.append(bool(list_all(app.state.distlock.registry).rows))
        if len(commits) == 1:
            raise RuntimeError("the commit has failed")

    @app.post("/pay")
    @once(key=KEY, keep="1h", expire=LONG)
    async def pay(opened: str = Depends(session, scope="function")) -> str:
        runs.append("run")
        return "paid"

    async with client_of(app) as client:
        said = [(await client.post("/pay", headers=HEADERS)).status_code for _ in range(3)]
    assert (said, len(runs), commits) == ([500, 200, 200], 2, [True, True, False])  # of the last one nothing was done
    assert not list_all(app.state.distlock.registry).rows


async def test_a_second_answer_is_no_failure_to_what_a_dependency_has_opened(app: FastAPI) -> None:
    ends: list[str] = []

    async def session() -> AsyncIterator[str]:
        try:
            yield "session"
        except Exception as error:
            ends.append(type(error).__name__)
            raise HTTPException(500) from error
        ends.append("commit")

    @app.post("/pay", status_code=201)
    @once(key=KEY, keep="1h")
    async def pay(opened: str = Depends(session)) -> str:
        return "paid"

    async with client_of(app) as client:
        first, second = [await client.post("/pay", headers=HEADERS) for _ in range(2)]
    assert (first.status_code, first.content) == (second.status_code, second.content) == (201, b'"paid"')
    assert second.headers["Idempotency-Replayed"] == "true"
    assert ends == ["commit", "commit"]


@pytest.mark.parametrize("wraps", [False, True])
async def test_a_decorator_above_once_gets_no_response_for_a_value(app: FastAPI, wraps: bool) -> None:
    def doubled(function: Any) -> Any:
        async def double() -> list[str]:
            value = await function()
            assert isinstance(value, str)
            return [value, value]

        return functools.wraps(function)(double) if wraps else double

    @app.post("/pay", status_code=299, response_model=None)
    @doubled
    @once(key=KEY, keep="1h")
    async def pay() -> str:
        return "paid"

    async with client_of(app) as client:
        first, second = [await client.post("/pay", headers=HEADERS) for _ in range(2)]
    assert (first.status_code, first.json()) == (second.status_code, second.json()) == (299, ["paid", "paid"])


@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("plain", [False, True])
async def test_the_body_is_kept_for_an_endpoint_that_a_decorator_hides(app: FastAPI, plain: bool, depth: int) -> None:
    """One without ``functools.wraps``. The body was thrown away as of no concern: each call was a 500."""

    def hidden(function: Any) -> Any:
        async def acalled(body: Annotated[Any, Body()]) -> Any:
            return await function(body)

        def called(body: Annotated[Any, Body()]) -> Any:
            return function(body)

        return called if plain else acalled

    async def apay(body: Annotated[Any, Body()]) -> Any:
        return [body, "paid"]

    def pay(body: Annotated[Any, Body()]) -> Any:
        return [body, "paid"]

    endpoint: Any = once(key=KEY, keep="1h")(pay if plain else apay)
    for _ in range(depth):
        endpoint = hidden(endpoint)
    app.post("/pay", response_model=None)(endpoint)
    async with client_of(app) as client:
        said = [await client.post("/pay", headers=HEADERS, json={"order": order}) for order in (7, 7, 8)]
    assert [each.status_code for each in said] == [200, 200, 422]
    assert (said[1].json(), said[1].headers["Idempotency-Replayed"]) == ([{"order": 7}, "paid"], "true")


async def test_a_client_that_sends_its_body_in_drops_keeps_a_thread_for_a_time_only(
    app: FastAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asgi, "READ_SECONDS", 0.05)
    pay_endpoint(app, lambda: "paid", plain=True)

    answered = asyncio.Event()
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        await answered.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)
        answered.set()

    scope = {
        "type": "http", "method": "POST", "path": "/pay", "raw_path": b"", "query_string": b"", "http_version": "1.1",
        "headers": [(b"idempotency-key", b"7"), (b"content-length", b"7")], "root_path": "",
    }  # fmt: skip
    await app(scope, receive, send)
    assert sent[0]["status"] == 400
    assert not runs


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("version", ["1.0", "1.1", "2"])
async def test_a_body_that_no_header_announces_is_compared(app: FastAPI, version: str, plain: bool) -> None:
    """An adapter of a cloud's functions hands on neither ``Content-Length`` nor ``Transfer-Encoding``."""
    pay_endpoint(app, lambda: "paid", plain=plain)
    said = []
    for body in (b"one", b"one", b"two"):
        sent: list[Any] = []

        async def receive(body: bytes = body) -> dict[str, Any]:
            return {"type": "http.request", "body": body}

        async def send(message: Any, sent: list[Any] = sent) -> None:
            sent.append(message)

        scope = {
            "type": "http", "method": "POST", "path": "/pay", "raw_path": b"", "query_string": b"",
            "http_version": version, "headers": [(b"idempotency-key", b"7")], "root_path": "",
        }  # fmt: skip
        await app(scope, receive, send)
        said.append(sent[0]["status"])
    assert (said, len(runs)) == ([200, 200, 422], 1)


async def test_of_two_at_once_one_is_done_and_the_other_is_told_to_come_again(app: FastAPI) -> None:
    pay_endpoint(app, lambda: "paid")
    async with client_of(app) as client:
        said = await asyncio.gather(*(client.post("/pay", headers=HEADERS) for _ in range(2)))
    assert len(runs) == 1
    assert {each.status_code for each in said} <= {200, 409}


async def test_once_may_stand_above_a_lock_and_below_one(app: FastAPI) -> None:
    for path, decorators in {
        "/above": (once(key=KEY, keep="1h"), distributed_lockable(key="till")),
        "/below": (distributed_lockable(key="till"), once(key="b" + KEY, keep="1h")),
    }.items():

        async def work() -> str:
            runs.append("run")
            return "paid"

        app.post(path)(decorators[0](decorators[1](work)))
    async with client_of(app) as client:
        for path in ("/above", "/below"):
            first, second = [await client.post(path, headers=HEADERS) for _ in range(2)]
            assert (first.content, second.headers["Idempotency-Replayed"]) == (second.content, "true")
    assert len(runs) == 2


async def test_an_answer_that_is_recorded_at_its_return(app: FastAPI) -> None:
    """``until="return"``: what the client gets is not known then, so the value is kept, or that it is not."""
    functions: dict[str, Callable[..., Any]] = {"/value": lambda: {"paid": 7}, "/given": injected}
    for path, function in functions.items():

        async def work(*args: Any, function: Any = function, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        work.__signature__ = inspect.signature(function, eval_str=True)  # type: ignore[attr-defined]
        app.post(path)(once(key=path + KEY, keep="1h", until="return")(work))
    async with client_of(app) as client:
        first, second = [await client.post("/value", headers=HEADERS) for _ in range(2)]
        assert (first.content, second.headers["Idempotency-Replayed"]) == (second.content, "true")
        first, second = [await client.post("/given", headers=HEADERS) for _ in range(2)]
    assert (first.status_code, second.status_code, second.text) == (202, 200, NOT_KEPT)


async def test_a_function_that_an_endpoint_calls_is_no_endpoint(app: FastAPI) -> None:
    @once(key="help", keep="1h", result=True)
    async def helper(body: Annotated[Any, Body()]) -> dict[str, Any]:
        runs.append("run")
        return {"said": body}

    @app.post("/help")
    async def endpoint(body: Annotated[Any, Body()]) -> Any:
        return await helper(body)

    async with client_of(app) as client:
        said = [(await client.post("/help", json=number)).json() for number in (1, 2)]
    assert (said, len(runs)) == ([{"said": 1}] * 2, 1)


async def test_what_is_sent_before_an_answer_goes_its_way(app: FastAPI) -> None:
    """Early hints, or what a template tells a test client. And an answer needs no headers, which may be an iterator."""

    class Hinting(Response):
        def __init__(self, start: dict[str, Any]) -> None:
            super().__init__("paid")
            self.start = start

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "http.response.debug", "info": {"template": "paid.html"}})
            await send({"type": "http.response.start", "status": 201, **self.start})
            await send({"type": "http.response.body", "body": b"paid"})

    starts: dict[str, dict[str, Any]] = {"none": {}, "iterator": {"headers": iter([(b"location", b"/7")])}}

    @app.post("/pay/{start}")
    @once(key=KEY, keep="1h")
    async def pay(start: str) -> Hinting:
        return Hinting(starts[start])

    for start in starts:
        sent: list[Any] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request"}

        async def send(message: Any, sent: list[Any] = sent) -> None:
            sent.append(message)

        scope = {
            "type": "http", "method": "POST", "path": f"/pay/{start}", "raw_path": b"", "query_string": b"",
            "http_version": "1.1", "headers": [(b"idempotency-key", start.encode())], "root_path": "",
        }  # fmt: skip
        for _ in range(2):
            await app(scope, receive, send)
        kinds = [each["type"].rpartition(".")[2] for each in sent]
        assert kinds == ["debug", "start", "body", "start", "body"]
        locations = [dict(sent[at]["headers"]).get(b"location") for at in (1, 3)]
        assert locations == [None if start == "none" else b"/7"] * 2
        assert [sent[at]["status"] for at in (1, 3)] == [201, 201]


class InPieces(Response):
    """As Quart and others send each answer."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
        for at in range(0, len(self.body), 3000):
            piece = bytes(self.body[at : at + 3000])
            if piece == BREAKS * 3000:
                raise ValueError("the framework's own")
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body"})


BREAKS = b"!"


@pytest.mark.parametrize("length", [0, 1, 6000, MAX_KEPT, MAX_KEPT + 1, 10 * MAX_KEPT])
async def test_an_answer_that_is_sent_in_pieces_is_kept_as_a_whole(app: FastAPI, length: int) -> None:
    body = bytes(ord("a") + at % 26 for at in range(length))

    @app.post("/pay")
    @once(key=KEY, keep=60)
    async def pay() -> Any:
        runs.append("paid")
        return InPieces(body)

    runs.clear()
    async with client_of(app) as client:
        first, second = [await client.post("/pay", headers=HEADERS) for _ in range(2)]
    assert (first.status_code, second.status_code, runs) == (200, 200, ["paid"])
    assert first.content == body
    assert second.content == body if length <= MAX_KEPT else second.text.startswith("This has been done.")
    assert second.headers["idempotency-replayed"] == "true"


async def test_one_that_breaks_off_is_done_again(app: FastAPI) -> None:
    bodies = [b"a" * 3000 + BREAKS * 3000, b"whole"]

    @app.post("/pay")
    @once(key=KEY, keep=60)
    async def pay() -> Any:
        return InPieces(bodies.pop(0))

    async with client_of(app) as client:
        first, second = [await client.post("/pay", headers=HEADERS) for _ in range(2)]
    assert (first.status_code, second.status_code, second.content) == (500, 200, b"whole")
