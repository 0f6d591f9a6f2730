"""``"DATABASE": "default"`` in a Flask app: the address is the one that Flask-SQLAlchemy has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import inspect

from distlock_web import ConfigurationError, distributed_lockable
from distlock_web.flask import DistLock
from distlock_web.flask.databases import database_address
from tests.support.databases import Database, Kind


def app_on(database: Database, **config: Any) -> Flask:
    app = Flask("shop")
    app.config.update({"SQLALCHEMY_DATABASE_URI": "sqlite://", "SQLALCHEMY_BINDS": {"locks": database.sqlalchemy}})
    app.config.update({"DISTLOCK": {"default": {"DATABASE": "locks"}}, **config})
    SQLAlchemy(app)
    return app


@pytest.mark.slow
def test_the_store_is_in_the_database_of_the_bind(make_database: Callable[[Kind], Database]) -> None:
    app = app_on(make_database("postgres"))
    DistLock(app)

    @app.get("/")
    @distributed_lockable(key="a")
    def view() -> str:
        return "locked"

    assert app.test_client().get("/").text == "locked"
    with app.app_context():
        tables = inspect(app.extensions["sqlalchemy"].engines["locks"]).get_table_names()
        app.extensions["sqlalchemy"].engines["locks"].dispose()
    assert {"distlock_lease", "distlock_waiter", "distlock_holder", "distlock_record"} <= set(tables)
    app.extensions["distlock"].registry.close()


def test_default_is_the_database_uri_and_its_arguments_are_the_apps() -> None:
    app = Flask("shop")
    app.config["SQLALCHEMY_DATABASE_URI"] = "mysql+pymysql://user:secret@host:3307/shop?charset=utf8mb4"
    app.config["SQLALCHEMY_ENGINE_OPTIONS"] = {"connect_args": {"ssl_ca": "ca.pem"}}
    SQLAlchemy(app)
    address = database_address(app, "default")
    assert (address.kind, address.name, address.host, address.port) == ("mysql", "shop", "host", 3307)
    assert (address.user, address.password) == ("user", "secret")
    assert address.query == {"charset": "utf8mb4"}
    assert address.connect_args == {"ssl_ca": "ca.pem"}
    assert "secret" not in repr(address)


def test_a_bind_that_does_not_exist_is_said_at_the_start(make_database: Callable[[Kind], Database]) -> None:
    with pytest.raises(
        ConfigurationError, match="'other', which Flask-SQLAlchemy does not know; it knows 'locks', 'default'"
    ):
        DistLock(app_on(make_database("sqlite"), DISTLOCK={"default": {"DATABASE": "other"}}))


def test_flask_sqlalchemy_comes_first() -> None:
    app = Flask("shop")
    app.config["DISTLOCK"] = {"default": {"DATABASE": "default"}}
    with pytest.raises(ConfigurationError, match=r"init_app.* comes before"):
        DistLock(app)
