"""Flask-RESTX and Flask-RESTful stand in front of the app's error handlers, and would answer a busy lock with 500."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flask_restful
import flask_restx
import pytest
from flask import Flask

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
