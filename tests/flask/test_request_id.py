"""Flask's middleware, beside what tests/web/test_request_ids.py says of both frameworks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import pytest
from flask import Flask, current_app, stream_with_context

from distlock_web import current_request_id, lock
from distlock_web.core.request_id import current_origin, path_of
from distlock_web.flask import DistLock


@pytest.fixture
def app() -> Flask:
    app = Flask("shop")
    app.config["DISTLOCK"] = {"default": {"BACKEND": "memory"}}
    DistLock(app)
    app.add_url_rule("/id", view_func=current_request_id, endpoint="id")
    return app


Started: TypeAlias = list[list[tuple[str, str]]]  #: the headers of each response


def starting(started: Started) -> Any:
    """A server's ``start_response``."""

    def start_response(status: str, headers: list[tuple[str, str]], exc_info: object = None) -> None:
        started.append(headers)

    return start_response


def test_the_lock_knows_method_and_route_and_nothing_of_what_stands_in_the_url(app: Flask) -> None:
    def path() -> str:
        origin = current_origin()
        assert origin is not None
        return path_of(origin)

    seen = []
    app.before_request(lambda: seen.append(path()))

    @app.post("/reset/<uid>/<token>")
    def reset(uid: str, token: str) -> str:
        return path()

    client = app.test_client()
    assert client.post("/reset/MQ/s3cret?x=1").text == "POST /reset/<uid>/<token>"
    assert client.post("/reset/MQ/s3cret", base_url="http://localhost/shop").text == "POST /shop/reset/<uid>/<token>"
    assert client.get("/nowhere/s3cret").status_code == 404
    assert seen == ["POST /reset/<uid>/<token>", "POST /shop/reset/<uid>/<token>", ""], "also in before_request"


@pytest.mark.parametrize("with_context", [True, False])
def test_a_streamed_body_runs_under_the_id_and_in_the_stores_of_its_app(app: Flask, with_context: bool) -> None:
    @app.get("/stream")
    def stream() -> Iterator[str]:
        def body() -> Iterator[str]:
            for part in range(2):
                with lock(f"part:{part}") as lease:
                    yield f"{current_request_id()} {lease.name};"

        return stream_with_context(body()) if with_context else body()

    response = app.test_client().get("/stream", headers={"Req-Id": "seven"})
    assert current_origin() is None  # the body has begun and is not at its end
    assert response.text == "seven disLock:part:0;seven disLock:part:1;"
    assert current_origin() is None


def test_closing_a_streamed_body_early_reaches_the_view(app: Flask) -> None:
    closed: list[str] = []

    @app.get("/stream")
    def stream() -> Iterator[str]:
        def body() -> Iterator[str]:
            try:
                while True:
                    yield "more"
            finally:
                closed.append(current_request_id())

        return body()

    app.test_client().get("/stream", headers={"Req-Id": "seven"}).close()
    assert closed == ["seven"]
    assert current_origin() is None


def test_a_file_still_reaches_the_server_as_a_file(app: Flask) -> None:
    from wsgiref.util import FileWrapper

    from flask import Response, send_file

    @app.get("/file")
    def file() -> Response:
        return send_file(__file__)

    environ = {
        "REQUEST_METHOD": "GET", "PATH_INFO": "/file", "SERVER_NAME": "x", "SERVER_PORT": "80",
        "wsgi.url_scheme": "http", "wsgi.file_wrapper": FileWrapper, "HTTP_REQ_ID": "seven",
    }  # fmt: skip
    started: Started = []
    body = app(environ, starting(started))
    assert isinstance(body, FileWrapper)  # gunicorn sends it with sendfile()
    assert dict(started[0])["Req-Id"] == "seven"
    body.close()


def test_an_app_that_answers_with_another_app_keeps_its_own_id_and_stores(make_app: Callable[..., Flask]) -> None:
    inner, outer = make_app("inner", PREFIX="in:"), make_app("outer", PREFIX="out:")
    inner.add_url_rule("/call", view_func=lambda: _name(), endpoint="call")

    @outer.get("/call")
    def call() -> str:
        return f"{_name()} {inner.test_client().get('/call', headers={'Req-Id': 'eight'}).text} {_name()}"

    assert outer.test_client().get("/call", headers={"Req-Id": "seven"}).text == (
        "outer seven out:k inner eight in:k outer seven out:k"
    )


def _name() -> str:
    with lock("k") as lease:
        return f"{current_app.name} {current_request_id()} {lease.name}"
