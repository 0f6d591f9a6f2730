"""Flask-RESTX and Flask-RESTful handle the exceptions of their resources before the app does; others leave it to it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import apiflask
import apiflask.views
import flask_restful
import flask_restx
import flask_smorest
import pytest
from flask import Flask, request
from flask.views import MethodView

from distlock_web import LockBusy, distributed_lockable, lock
from distlock_web.flask import DistLock
from distlock_web.flask.state import KEY
from distlock_web.testing.plugin import hold_lock

Build = Callable[[Flask], Any]


class Pay:
    """The resource. Each API has a base class of its own."""

    @distributed_lockable(key="order:{order_id}")
    def post(self, order_id: int) -> Any:
        return {"paid": order_id}

    @distributed_lockable(key="visitor:{request.args[visitor]}")
    def get(self, order_id: int) -> Any:
        return {}

    def put(self, order_id: int) -> Any:
        with lock(f"order:{order_id}"):
            return {"paid": order_id}

    def delete(self, order_id: int) -> Any:
        raise LookupError("the resource's own")


def restx(app: Flask) -> Any:
    api = flask_restx.Api(app)
    api.add_resource(type("Pay", (Pay, flask_restx.Resource), {}), "/pay/<int:order_id>")
    return api


def restful(app: Flask, **options: Any) -> Any:
    api = flask_restful.Api(app, **options)
    api.add_resource(type("Pay", (Pay, flask_restful.Resource), {}), "/pay/<int:order_id>")
    return api


@pytest.fixture(params=[restx, restful])
def build(request: pytest.FixtureRequest) -> Build:
    return request.param


def make(*steps: Build, store: str = "", **config: Any) -> Flask:
    app = Flask("shop")
    settings = {"LOCATION": store, "OPTIONS": {"socket_connect_timeout": 1}} if store else {"BACKEND": "memory"}
    app.config.update({"DISTLOCK": {"default": settings}, "PROPAGATE_EXCEPTIONS": False, **config})
    app.add_url_rule("/plain/<int:order_id>", view_func=plain, methods=["POST"])
    for step in steps:
        step(app)
    return app


@distributed_lockable(key="order:{order_id}")
def plain(order_id: int) -> str:
    return "paid"


@pytest.fixture(params=["before", "after"])
def app(request: pytest.FixtureRequest, build: Build) -> Flask:
    """Which extension comes first does not matter."""
    return make(DistLock, build) if request.param == "before" else make(build, DistLock)


@pytest.mark.parametrize("method", ["post", "put"])
def test_a_busy_lock_is_a_409_in_the_apis_own_form(app: Flask, method: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "distlock_web")
    with app.app_context(), hold_lock("order:7"):
        answer = app.test_client().open("/pay/7", method=method)
        assert app.test_client().open("/pay/8", method=method).json == {"paid": 8}
    assert (answer.status_code, answer.content_type) == (409, "application/json")
    assert answer.get_json() == {
        "message": answer.get_json()["message"],
        "code": "lock_busy",
        "retry_after": int(answer.headers["Retry-After"]),
        "request_id": answer.headers["Req-Id"],
    }
    assert answer.get_json()["message"].startswith("The same thing is being done")
    assert answer.headers["Cache-Control"] == "no-store"
    (line,) = [record for record in caplog.records if record.name == "distlock_web"]
    assert "'disLock:order:7'" in line.getMessage()


@pytest.mark.parametrize("mode", ["TESTING", "DEBUG", "PROPAGATE_EXCEPTIONS"])
def test_whatever_the_app_does_with_exceptions(build: Build, mode: str) -> None:
    config: dict[str, Any] = {"PROPAGATE_EXCEPTIONS": None, mode: True}
    app = make(DistLock, build, **config)
    with app.app_context(), hold_lock("order:7"):
        assert app.test_client().post("/pay/7").status_code == 409


def test_a_store_that_does_not_answer_is_a_503(build: Build) -> None:
    app = make(DistLock, build, store="redis://127.0.0.1:1/0")
    try:
        answer = app.test_client().post("/pay/7")
        assert (answer.status_code, answer.get_json()["code"]) == (503, "lock_unavailable")
        assert "Retry-After" not in answer.headers
    finally:
        app.extensions[KEY].registry.close()


def test_a_value_that_is_missing_is_a_400(app: Flask) -> None:
    answer = app.test_client().get("/pay/7")
    assert (answer.status_code, answer.get_json()["code"]) == (400, "lock_key_unavailable")


def test_before_request_is_covered(app: Flask) -> None:
    app.before_request(lambda: lock(f"order:{(request.view_args or {})['order_id']}").acquire().release())
    with app.app_context(), hold_lock("order:7"):
        assert app.test_client().delete("/pay/7").status_code == 409


def test_everything_else_is_the_apis_business(app: Flask) -> None:
    assert app.test_client().delete("/pay/7").status_code == 500
    assert app.test_client().post("/nowhere").status_code == 404


def test_the_apps_other_views_answer_as_ever(app: Flask) -> None:
    with app.app_context(), hold_lock("order:7"):
        answer = app.test_client().post("/plain/7", headers={"Accept": "application/json"})
    assert (answer.status_code, answer.content_type) == (409, "application/problem+json")
    assert "disLock" not in answer.text


def test_a_handler_of_the_apps_own_still_comes_first(build: Build) -> None:
    app = make(DistLock, build)
    seen: list[LockBusy] = []

    @app.errorhandler(LockBusy)
    def busy(error: LockBusy) -> Any:
        seen.append(error)
        return {"retry_after": error.retry_after}, 429

    with app.app_context(), hold_lock("order:7"):
        assert app.test_client().post("/plain/7").status_code == 429
    assert str(seen[0]).startswith("Somebody else holds the lock 'disLock:order:7'")


def test_a_handler_of_the_apis_own_comes_first() -> None:
    app = make(DistLock)
    api = restx(app)

    @api.errorhandler(LockBusy)
    def busy(error: LockBusy) -> Any:
        return {"message": f"wait {error.retry_after:.0f}"}, 423

    with app.app_context(), hold_lock("order:7"):
        answer = app.test_client().post("/pay/7")
    assert (answer.status_code, answer.get_json()["message"][:5]) == (423, "wait ")


def test_what_the_api_says_of_our_error_by_name_counts() -> None:
    app = make(DistLock)
    restful(app, errors={"LockBusy": {"message": "later", "status": 423}})
    with app.app_context(), hold_lock("order:7"):
        answer = app.test_client().post("/pay/7")
    assert (answer.status_code, answer.get_json()["message"]) == (423, "later")


class Order(apiflask.Schema):
    paid = apiflask.fields.Integer()


def smorest() -> Flask:
    app = Flask("shop")
    app.config.update(API_TITLE="Shop", API_VERSION="1", OPENAPI_VERSION="3.0.2")
    api, blueprint = flask_smorest.Api(app), flask_smorest.Blueprint("shop", "shop")

    @blueprint.route("/pay/<int:order_id>")
    class Pay(MethodView):
        @blueprint.response(200, Order)
        @distributed_lockable(key="order:{order_id}")
        def post(self, order_id: int) -> Any:
            return {"paid": order_id}

    api.register_blueprint(blueprint)
    return app


def api_flask() -> Flask:
    app = apiflask.APIFlask("shop")
    output: Any = app.output

    class Pay(apiflask.views.MethodView):
        @output(Order)
        @distributed_lockable(key="order:{order_id}")
        def post(self, order_id: int) -> Any:
            return {"paid": order_id}

    app.add_url_rule("/pay/<int:order_id>", view_func=Pay.as_view("pay"))
    return app


@pytest.mark.parametrize("make_app", [smorest, api_flask])
def test_where_the_api_leaves_it_to_the_app_it_is_problem_details(make_app: Callable[[], Flask]) -> None:
    app = make_app()
    app.config.update(DISTLOCK={"default": {"BACKEND": "memory"}}, PROPAGATE_EXCEPTIONS=False)
    DistLock(app)
    with app.app_context(), hold_lock("order:7"):
        busy = app.test_client().post("/pay/7", json={})
        assert app.test_client().post("/pay/8", json={}).json == {"paid": 8}
    assert (busy.status_code, busy.content_type) == (409, "application/problem+json")
    assert busy.get_json(force=True)["retry_after"] == int(busy.headers["Retry-After"])
