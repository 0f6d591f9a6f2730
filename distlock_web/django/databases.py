"""A database of ``settings.DATABASES`` → where the locks' own connections lead. Django's connection is never used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.apps import apps
from django.db import connections, router
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils.connection import ConnectionDoesNotExist

from ..core.config import DatabaseAddress, shown
from ..core.errors import ConfigurationError

_KINDS = {"postgresql", "mysql", "sqlite"}
#: Of OPTIONS, what Django takes for itself and the driver does not know.
_DJANGO_ONLY = {
    "postgresql": {"assume_role", "cursor_factory", "isolation_level", "pool", "server_side_binding"},
    "mysql": {"isolation_level"},
}
#: The ``ssl_mode`` of mysqlclient, which is Django's driver, in the ``ssl`` of PyMySQL, which is ours.
_TLS: Mapping[str, Mapping[str, bool]] = {
    "REQUIRED": {"check_hostname": False},
    "VERIFY_CA": {"check_hostname": False, "verify_mode": True},
    "VERIFY_IDENTITY": {"check_hostname": True, "verify_mode": True},
}


def database_address(alias: str) -> DatabaseAddress:
    """Where ``DATABASE`` leads. ``ConfigurationError`` if the migrations do not make the locks' tables there."""
    try:
        connection = connections[alias]
    except ConnectionDoesNotExist:
        known = ", ".join(map(repr, connections))
        raise ConfigurationError(
            f"DISTLOCK names the database {shown(alias)}, which is not in DATABASES; it has to be one of {known}."
        ) from None
    if not apps.is_installed("distlock_web.django.sql"):
        raise ConfigurationError(
            f"DISTLOCK names the database {alias!r}, but no app in INSTALLED_APPS has the tables of the locks: add "
            f'"distlock_web.django.sql" to INSTALLED_APPS, and run "manage.py migrate --database {alias}".'
        )
    from .sql.models import LeaseRow  # which only an installed app may import

    if not router.allow_migrate_model(alias, LeaseRow):
        allowed = ", ".join(repr(other) for other in connections if router.allow_migrate_model(other, LeaseRow))
        raise ConfigurationError(
            f"DISTLOCK names the database {alias!r}, but DATABASE_ROUTERS keep the tables of distlock_web_sql out of "
            f"it; they allow {allowed or 'no database'}."
        )
    if connection.vendor not in _KINDS:
        raise ConfigurationError(
            f"DISTLOCK names the database {alias!r}, which is a {connection.vendor}: locks need PostgreSQL, MySQL, "
            f"MariaDB or SQLite."
        )
    return address_of(connection)


def address_of(connection: BaseDatabaseWrapper) -> DatabaseAddress:
    """Where a connection of Django's leads: the store's way there, and whether a transaction is in the same place."""
    kind, settings = connection.vendor, connection.settings_dict
    if kind not in _DJANGO_ONLY:
        return DatabaseAddress(kind, str(settings["NAME"] or ""), migrated=True)
    return server_address(kind, settings)


def server_address(kind: str, settings: Mapping[str, Any]) -> DatabaseAddress:
    host, port = settings["HOST"], settings["PORT"]
    arguments = {name: value for name, value in settings["OPTIONS"].items() if name not in _DJANGO_ONLY[kind]}
    if kind == "mysql" and host.startswith("/"):  # as Django says it
        host, arguments["unix_socket"] = "", host
    mode = str(arguments.pop("ssl_mode", "")).upper() if kind == "mysql" else ""
    if mode == "DISABLED":
        arguments["ssl_disabled"] = True
    elif mode in _TLS:
        arguments["ssl"] = {**(arguments.get("ssl") or {}), **_TLS[mode]}
    return DatabaseAddress(
        kind=kind,
        name=str(settings["NAME"] or ""),
        host=host,
        port=_port(port),
        user=settings["USER"],
        password=settings["PASSWORD"],
        connect_args=arguments,
        migrated=True,
    )


def _port(given: object) -> int | str | None:
    text = ",".join(part.strip() for part in str(given or "").split(","))  # as from a file, with the end of its line
    if not all(part.isdecimal() for part in text.split(",") if text):
        raise ConfigurationError(
            f"DATABASES has the PORT {given!r}; it has to be a number, or one for each of several hosts."
        )
    return int(text) if text.isdecimal() else text or None
