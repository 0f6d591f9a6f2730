"""Flask-RESTX and Flask-RESTful stand in front of the app's error handlers, and would answer a busy lock with 500.

Others leave it to the app.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import apiflask
import apiflask.views
import flask_restful
import flask_restx
import flask_smorest
import pytest
from flask import Flask
from flask.views import MethodView

from distlock_web import LockBusy, distributed_lockable
from distlock_web.flask import DistLock
from distlock_web.testing.plugin import hold_lock

Build = Callable[[Flask], Any]


class Pay:
    """The resource. Each API has a base class of its own."""

    @distributed_lockable(key="order:{order_id}")
    def post(self, order_id: int) -> Any:
        return {"paid": order_id}

    def delete(self, order_id: int) -> Any:
        raise LookupError("the resource's own")


def restx(app: Flask) -> Any:
    flask_restx.Api(app).add_resource(type("Pay", (Pay, flask_restx.Resource), {}), "/pay/<int:order_id>")


def restful(app: Flask) -> Any:
    flask_restful.Api(app).add_resource(type("Pay", (Pay, flask_restful.Resource), {}), "/pay/<int:order_id>")


@pytest.fixture(params=[restx, restful])
def build(request: pytest.FixtureRequest) -> Build:
    return request.param


def make(*steps: Build, **config: Any) -> Flask:
    app = Flask("shop")
    app.config.update({"DISTLOCK": {"default": {"BACKEND": "memory"}}, "PROPAGATE_EXCEPTIONS": False, **config})
    for step in steps:
        step(app)
    return app


@pytest.fixture(params=["before", "after"])
def app(request: pytest.FixtureRequest, build: Build) -> Flask:
    """Which extension comes first does not matter."""
    return make(DistLock, build) if request.param == "before" else make(build, DistLock)


def test_a_busy_lock_is_a_409_in_json(app: Flask) -> None:
    with app.app_context(), hold_lock("order:7"):
        answer = app.test_client().post("/pay/7")
        page = app.test_client().post("/pay/7", headers={"Accept": "text/html"})
        assert app.test_client().post("/pay/8").json == {"paid": 8}
    assert (answer.status_code, answer.content_type) == (409, "application/problem+json")
    assert (page.status_code, page.mimetype) == (409, "text/html")


@pytest.mark.parametrize("mode", ["TESTING", "DEBUG", "PROPAGATE_EXCEPTIONS"])
def test_whatever_the_app_does_with_exceptions(build: Build, mode: str) -> None:
    app = make(DistLock, build, **{"PROPAGATE_EXCEPTIONS": None, mode: True})
    with app.app_context(), hold_lock("order:7"):
        assert app.test_client().post("/pay/7").status_code == 409


def test_everything_else_is_the_apis_business(app: Flask) -> None:
    assert app.test_client().delete("/pay/7").status_code == 500
    assert app.test_client().post("/nowhere").status_code == 404


def test_a_handler_of_the_apps_own_comes_first(build: Build) -> None:
    app = make(DistLock, build)
    app.register_error_handler(LockBusy, lambda error: ({"retry_after": error.retry_after}, 429))
    with app.app_context(), hold_lock("order:7"):
        assert app.test_client().post("/pay/7").status_code == 429


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
