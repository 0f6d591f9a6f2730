"""A database of ``settings.DATABASES`` → connections of the locks' own, made as Django makes the project's.

The project's are never used: a lock is no part of its transactions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.db import Error, connections, router
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils.connection import ConnectionDoesNotExist

from ..core.database_address import DatabaseAddress
from ..core.errors import ConfigurationError
from ..core.setting import shown

_KINDS = {"postgresql", "mysql", "sqlite"}


class DjangoDatabase:
    """An alias of ``DATABASES``. What it says is read where it is used: a test run gives the database another name."""

    def __init__(self, alias: str) -> None:
        self._alias = alias
        self.driver = connections[alias].Database  # type: ignore[attr-defined]
        found = address_of(connections[alias])
        self.migrated = found.kind != "sqlite"
        self._file = None if self.migrated else found  #: of an SQLite: where its locks are

    @property
    def address(self) -> DatabaseAddress:
        found = address_of(connections[self._alias])
        if self._file is None:
            return found
        # A test run has its SQLite in memory, which allows no second connection. A store that it is
        # the first to use has its locks in memory, too. One that was used before, such as when the project is loaded,
        # goes on in the file beside that of the project: a holder of a lock there has to find it.
        if not found.in_memory:
            self._file = found
        return self._file

    @property
    def version(self) -> object:
        known = connections.settings[self._alias]
        return known["NAME"], known["HOST"], known["PORT"], known["USER"]

    def connect(
        self, before: Mapping[str, Any], after: Mapping[str, Any], file: str | None, adopt: Callable[[Any], None]
    ) -> None:
        known = connections[self._alias].settings_dict
        options = {**before, **known["OPTIONS"], **after}
        options.pop("pool", None)  # Django's own: its connections are the project's
        place = {**known, "OPTIONS": options, "AUTOCOMMIT": True} | ({} if file is None else {"NAME": file})
        wrapper = type(connections[self._alias])(place, self._alias)
        wrapper.distlock = True  # type: ignore[attr-defined] # for our own listener
        make = wrapper.get_new_connection

        def make_and_adopt(parameters: Any) -> Any:
            connection = make(parameters)
            adopt(connection)
            return connection

        wrapper.get_new_connection = make_and_adopt  # type: ignore[method-assign,assignment]
        try:
            wrapper.connect()
        except Error as error:  # Django's, of the questions that it asks on a fresh connection
            if error.__cause__ is not None:
                raise error.__cause__ from None
            raise self._refused(error) from error  # its own, such as of a server that is too old for it
        except ImproperlyConfigured as error:
            raise self._refused(error) from error
        finally:
            # Nothing but the borrower has the connection: where a signal's exception interrupts him it ends with him.
            del wrapper.get_new_connection
            wrapper.connection = None

    def _refused(self, error: Exception) -> ConfigurationError:
        return ConfigurationError(
            f"Django cannot connect to the database {self._alias!r}: {' '.join(str(error).split())}"
        )


def database(alias: str) -> DjangoDatabase:
    """Where ``DATABASE`` leads. ``ConfigurationError`` if the migrations do not make the locks' tables there."""
    try:
        connection = connections[alias]
    except ConnectionDoesNotExist:
        known = ", ".join(map(repr, connections))
        raise ConfigurationError(
            f"DISTLOCK names the database {shown(alias)}, which is not in DATABASES; it has to be one of {known}."
        ) from None
    except ImproperlyConfigured as error:
        why = " ".join(str(error).split())
        raise ConfigurationError(f"DISTLOCK names the database {alias!r}, which Django cannot use: {why}") from error
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
    return DjangoDatabase(alias)


def address_of(connection: BaseDatabaseWrapper) -> DatabaseAddress:
    """Where a connection of Django's leads."""
    kind, settings = connection.vendor, connection.settings_dict
    name, host = str(settings["NAME"] or ""), settings["HOST"]
    if kind not in ("postgresql", "mysql"):
        return DatabaseAddress(kind, name)
    arguments = dict(settings["OPTIONS"])
    if kind == "mysql" and host.startswith("/"):  # as Django says it
        host, arguments["unix_socket"] = "", host
    return DatabaseAddress(kind, name, host, _port(settings["PORT"]), arguments)


def _port(given: object) -> int | str | None:
    text = ",".join(part.strip() for part in str(given or "").split(","))  # as from a file, with the end of its line
    if not all(part.isdecimal() for part in text.split(",") if text):
        raise ConfigurationError(
            f"DATABASES has the PORT {given!r}; it has to be a number, or one for each of several hosts."
        )
    return int(text) if text.isdecimal() else text or None
