"""An engine of Flask-SQLAlchemy → where the locks' own connections lead. The app's own are never used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flask import Flask

from ..core.config import DatabaseAddress
from ..core.errors import ConfigurationError

_KINDS = {"postgresql": "postgresql", "mysql": "mysql", "mariadb": "mysql", "sqlite": "sqlite"}


def database_address(app: Flask, name: str) -> DatabaseAddress:
    """Where ``DATABASE`` leads: ``"default"`` is ``SQLALCHEMY_DATABASE_URI``, others are in ``SQLALCHEMY_BINDS``."""
    extension = app.extensions.get("sqlalchemy")
    if extension is None:
        raise ConfigurationError(
            f"DISTLOCK names the database {name!r}, but Flask-SQLAlchemy is not installed in {app.name!r} yet: "
            f"db.init_app(app) comes before DistLock(app)."
        )
    with app.app_context():
        engines: Mapping[str | None, Any] = extension.engines
    bind = None if name == "default" else name
    if bind not in engines:
        known = ", ".join(repr(key or "default") for key in engines)
        raise ConfigurationError(
            f"DISTLOCK names the database {name!r}, which Flask-SQLAlchemy does not know; it knows {known}."
        )
    url = engines[bind].url
    kind = _KINDS.get(url.get_backend_name())
    if kind is None:
        raise ConfigurationError(
            f"DISTLOCK names the database {name!r}, which is a {url.get_backend_name()}: locks need PostgreSQL, MySQL, "
            f"MariaDB or SQLite."
        )
    return DatabaseAddress(
        kind=kind,
        name=url.database or "",
        host=url.host or "",
        port=url.port,
        user=url.username or "",
        password=url.password or "",
        query=url.query,
        connect_args=_connect_args(app.config, bind),
    )


def _connect_args(config: Mapping[str, Any], bind: str | None) -> Mapping[str, Any]:
    """What the app gives its driver beside the URL, such as certificates."""
    of_bind = config.get("SQLALCHEMY_BINDS", {}).get(bind, {}) if bind else config.get("SQLALCHEMY_ENGINE_OPTIONS", {})
    arguments: Mapping[str, Any] = of_bind.get("connect_args", {}) if isinstance(of_bind, Mapping) else {}
    return arguments
