"""``distributed_lockable`` above the route was silent: Flask called the function without its lock."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from types import ModuleType
from typing import Any

import pytest
from flask import Flask

from distlock_web import ConfigurationError, current_lease, distributed_lockable, once
from distlock_web.flask import DistLock

pytestmark = pytest.mark.usefixtures("memory_store")

locked = distributed_lockable(key="order:{order_id}")
REFUSED = "above the route of the view 'pay'.*below @app.route"


def nightly() -> str:
    return "done"


async def nightly_async() -> str:
    return "done"


@pytest.fixture
def pay() -> Any:
    """A new view for each test: the app of another one may not be collected yet."""

    def pay(order_id: int) -> str:
        return str(current_lease())

    return pay


@pytest.mark.parametrize("register", [lambda app: app.get("/<int:order_id>"), lambda app: app.endpoint("pay")])
def test_above_the_route_it_is_refused(app: Flask, pay: Any, register: Any) -> None:
    view = register(app)(pay)
    with pytest.raises(ConfigurationError, match=REFUSED):
        locked(view)


def test_another_decorator_between_them_hides_nothing(app: Flask, pay: Any) -> None:
    def logged_in(view: Any) -> Any:
        return wraps(view)(lambda *args, **kwargs: view(*args, **kwargs))

    view = logged_in(app.get("/<int:order_id>")(pay))
    with pytest.raises(ConfigurationError, match=REFUSED):
        locked(view)


def test_a_registered_view_is_locked_as_the_message_says(app: Flask, pay: Any) -> None:
    app.get("/<int:order_id>")(pay)
    registered: Any = app.view_functions.pop("pay")
    app.view_functions["pay"] = locked(registered)
    assert "disLock:order:7" in app.test_client().get("/7").text


def test_below_the_route_and_beside_it_nothing_is_refused(app: Flask, pay: Any) -> None:
    app.get("/<int:order_id>")(locked(pay))
    assert "disLock:order:7" in app.test_client().get("/7").text
    other = Flask("other")  # has no locks: its views are its own business
    other.get("/<int:order_id>")(pay)
    locked(pay)


SOURCE = """
from flask import Blueprint, Flask
from distlock_web import distributed_lockable

routes = {routes}

@distributed_lockable(key="order")
@routes.get("/")
def pay():
    return "paid"
"""


@pytest.mark.parametrize(
    ("routes", "install"),
    [
        ('Blueprint("shop", __name__)', lambda app, blueprint: app.register_blueprint(blueprint)),
        ("Flask(__name__)", lambda app, other: DistLock(other)),
    ],
    ids=["blueprint", "before init_app"],
)
def test_where_it_was_not_known_it_is_refused_when_the_app_gets_it(
    app: Flask, monkeypatch: pytest.MonkeyPatch, routes: str, install: Callable[[Flask, Any], object]
) -> None:
    module = ModuleType("a_shops_views")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(SOURCE.format(routes=routes), vars(module))
    with pytest.raises(ConfigurationError, match=r"above the route of the view '(shop\.)?pay'.*below @app\.route"):
        install(app, module.routes)


def test_once_without_a_key_is_refused_where_it_becomes_a_view(app: Flask) -> None:
    """Without arguments it is only there known to be one: every request but the first was a 422."""
    for view in (once(keep=60)(nightly), once(keep=60)(nightly_async)):
        with pytest.raises(ConfigurationError, match=r"view 'pay': once needs a key"):
            app.add_url_rule("/", "pay", view, methods=["POST"])
    app.add_url_rule("/", "pay", once(key="pay", keep=60)(nightly), methods=["POST"])


@pytest.mark.parametrize("function", [nightly, nightly_async])
def test_a_view_whose_store_cannot_do_it_is_refused(function: Any) -> None:
    """Each call of it was a 500."""
    app = Flask("shop")
    app.config["DISTLOCK"] = {"default": {"LOCATION": "zookeeper://127.0.0.1:1"}, "able": {"BACKEND": "memory"}}
    DistLock(app)
    with pytest.raises(ConfigurationError, match=r"The view 'pay': limit is 3.*'default'"):
        app.add_url_rule("/", "pay", distributed_lockable(key="a", limit=3)(function))
    app.add_url_rule("/", "pay", distributed_lockable(key="a", limit=3, store="able")(function))
