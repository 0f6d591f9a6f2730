"""What a key of a Flask view may name, and what its lock is called without one."""

from __future__ import annotations

from typing import Any

import flask_login
import pytest
from flask import Flask, g, session
from flask.views import MethodView

from distlock_web import ConfigurationError, current_lease, distributed_lockable

pytestmark = pytest.mark.usefixtures("memory_store")


def held() -> str:
    lease = current_lease()
    assert lease is not None
    return lease.name.removeprefix("disLock:")


class Item(MethodView):
    def get(self) -> str:
        return held()


def test_a_class_is_called_so_and_by_its_endpoint(app: Flask) -> None:
    for endpoint in ("books", "shoes"):
        view: Any = distributed_lockable()(Item.as_view(endpoint))
        app.add_url_rule(f"/{endpoint}", view_func=view)
    for endpoint in ("books", "shoes"):
        assert app.test_client().get(f"/{endpoint}").text == f"{__name__}.Item({endpoint})"


KEYS = {
    "cart:{request.args[item]}": "cart:7",
    "cart:{request.view_args[shop]}": "cart:oslo",
    "cart:{session[user]}": "cart:ann",
    "cart:{g.user}": "cart:ann",
    "cart:{session[nobody]|request.remote_addr}": "cart:|127.0.0.1",
    "{request.method}:{shop}": "GET:oslo",
}


@pytest.mark.parametrize("key", KEYS)
def test_a_key_may_name_the_request_though_the_view_has_no_such_argument(app: Flask, key: str) -> None:
    app.secret_key = "tests"

    @distributed_lockable(key=key)
    def view(shop: str) -> str:
        return held()

    @app.before_request
    def log_in() -> None:
        session["user"] = g.user = "ann"

    app.add_url_rule("/<shop>", view_func=view)
    assert app.test_client().get("/oslo?item=7").text == KEYS[key]


class User(flask_login.UserMixin):
    def __init__(self, pk: str) -> None:
        self.id = pk


@pytest.mark.parametrize(("user", "status", "said"), [("7", 200, "cart:7"), (None, 400, "is needed for this")])
def test_a_key_may_name_the_user_of_flask_login(app: Flask, user: str | None, status: int, said: str) -> None:
    flask_login.LoginManager(app).user_loader(User)
    app.secret_key = "tests"

    @app.get("/")
    @distributed_lockable(key="cart:{current_user.id}")
    def view() -> str:
        return held()

    client = app.test_client()
    if user is not None:
        with client.session_transaction() as before:
            before["_user_id"] = user
    answer = client.get("/")
    assert answer.status_code == status
    assert said in answer.text


def test_an_argument_of_this_name_comes_first() -> None:
    @distributed_lockable(key="{request}")
    def task(request: str) -> str:
        return held()

    assert task("own") == "own"


def test_nothing_sent_by_a_client_takes_its_place(app: Flask) -> None:
    @distributed_lockable(key="{request.method}")
    def view(**values: Any) -> str:
        return held()

    with app.test_request_context(method="PUT"):
        assert view(request="x") == "PUT"


def test_what_is_neither_an_argument_nor_the_requests_is_refused() -> None:
    def view(shop: str) -> None: ...

    with pytest.raises(ConfigurationError, match="'requests', which is not an argument of it"):
        distributed_lockable(key="{requests.args[item]}")(view)
