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


@pytest.mark.parametrize(
    "register",
    [
        lambda app: app.get("/<int:order_id>"),
        lambda app: app.route("/<int:order_id>", methods=["POST"]),
        lambda app: app.endpoint("pay"),
    ],
    ids=["get", "route", "endpoint"],
)
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


BLUEPRINT = """
from flask import Blueprint
from distlock_web import distributed_lockable

routes = Blueprint("shop", __name__)

@distributed_lockable(key="order")
@routes.get("/")
def pay():
    return "paid"
"""

LATE = """
from flask import Flask
from distlock_web import distributed_lockable

routes = Flask(__name__)

@distributed_lockable(key="order")
@routes.get("/")
def pay():
    return "paid"
"""


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    def run(source: str) -> Any:
        module = ModuleType("a_shops_views")
        monkeypatch.setitem(sys.modules, module.__name__, module)
        exec(source, vars(module))
        return module

    return run


def test_in_a_blueprint_it_is_refused_when_an_app_takes_the_blueprint(app: Flask, module: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"above the route of the view 'shop\.pay'"):
        app.register_blueprint(module(BLUEPRINT).routes)


def test_of_a_route_before_init_app_it_is_refused_there(module: Any) -> None:
    views = module(LATE)
    with pytest.raises(ConfigurationError, match=REFUSED):
        DistLock(views.routes)


@pytest.mark.parametrize("source", [BLUEPRINT, LATE], ids=["blueprint", "app"])
def test_in_the_right_order_both_are_fine(app: Flask, module: Any, source: str) -> None:
    lock, route = '@distributed_lockable(key="order")\n', '@routes.get("/")\n'
    assert lock + route in source
    routes = module(source.replace(lock + route, route + lock)).routes
    if isinstance(routes, Flask):
        DistLock(routes)
    else:
        app.register_blueprint(routes)
        routes = app
    assert routes.test_client().get("/").text == "paid"


def test_once_without_a_key_is_refused_where_it_becomes_a_view(app: Flask) -> None:
    """Without arguments it is only there known to be one: every request but the first was a 422."""
    for view in (once(keep=60)(nightly), once(keep=60)(nightly_async)):
        with pytest.raises(ConfigurationError, match=r"view 'pay': once needs a key"):
            app.add_url_rule("/", "pay", view, methods=["POST"])
    app.add_url_rule("/", "pay", once(key="pay", keep=60)(nightly), methods=["POST"])


@pytest.mark.parametrize(
    ("locked", "words"),
    [
        (distributed_lockable(key="a", limit=3), "limit is 3"),
        (distributed_lockable(key="a", shared=True), "shared is True"),
        (distributed_lockable(key="a", max_waiters=1, wait=5), "max_waiters is 1"),
        (once(key="a", keep=60), "once keeps a record"),
    ],
)
@pytest.mark.parametrize("function", [nightly, nightly_async])
def test_a_view_whose_store_cannot_do_it_is_refused(locked: Any, words: str, function: Any) -> None:
    """Each call of it was a 500."""
    app = Flask("shop")
    app.config["DISTLOCK"] = {"default": {"LOCATION": "zookeeper://127.0.0.1:1"}, "able": {"BACKEND": "memory"}}
    DistLock(app)
    with pytest.raises(ConfigurationError, match=f"The view 'pay': {words}.*'default'"):
        app.add_url_rule("/", "pay", locked(function))
    app.add_url_rule("/", "pay", distributed_lockable(key="a", limit=3, store="able")(function))
