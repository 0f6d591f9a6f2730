"""Whether a transaction is in the database of the locks: by all that its driver is told, also behind the ? of a URL."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.engine import make_url

from distlock_web.backends.sql.address import address
from distlock_web.backends.sql.callers import is_at
from distlock_web.core.config import StoreConfig
from distlock_web.core.database_address import DatabaseAddress
from distlock_web.django.databases import address_of
from distlock_web.sqlalchemy.transactions import _SessionTransaction

SAME, OTHER = True, False
#: LOCATION; what the project's own connection is told.
POSTGRESQL = [
    ("postgresql://u@db/shop", "postgresql://v@db:5432/shop", SAME),
    ("postgresql://u@db/shop", "postgresql://u@db:5433/shop", OTHER),
    ("postgresql://u@db/shop", "postgresql://u@db/other", OTHER),
    ("postgresql://u@db/shop", "postgresql://u@elsewhere/shop", OTHER),
    ("postgresql://localhost/shop", "postgresql:///shop", SAME),
    ("postgresql:///shop?host=/cloudsql/a", "postgresql:///shop?host=/cloudsql/a", SAME),
    ("postgresql:///shop?host=/cloudsql/a", "postgresql:///shop?host=/cloudsql/a&port=5432", SAME),
    ("postgresql:///shop?host=/cloudsql/a", "postgresql:///shop?host=/cloudsql/b", OTHER),
    ("postgresql:///shop?host=/cloudsql/a", "postgresql:///shop", OTHER),
    ("postgresql:///shop?host=/cloudsql/a", "postgresql://localhost/shop", OTHER),
    ("postgresql:///shop?host=/run/postgresql", "postgresql:///shop", SAME),
    ("postgresql:///shop?host=/tmp&port=5433", "postgresql:///shop", OTHER),
    ("postgresql://front/shop?host=behind", "postgresql://behind/shop", SAME),
    ("postgresql://front/shop?host=behind", "postgresql://front/shop", OTHER),
    ("postgresql:///shop?host=a:1&host=b:2", "postgresql:///shop?host=a:1&host=b:2", SAME),
    ("postgresql:///shop?host=a:1&host=b:2", "postgresql:///shop?host=a:1&host=c:2", OTHER),
    ("postgresql:///?service=shop", "postgresql:///?service=shop", SAME),
    ("postgresql:///?service=shop", "postgresql:///?service=locks", OTHER),
    ("postgresql:///?service=shop", "postgresql://", OTHER),
    ("postgresql://db/shop?options=-csearch_path=a", "postgresql://db/shop?options=-c%20search_path%3Da", SAME),
    ("postgresql://db/shop?options=-csearch_path=a", "postgresql://db/shop?options=-c%20search_path%3Db", OTHER),
    ("postgresql://db/shop?options=-csearch_path=a", "postgresql://db/shop", OTHER),
    ("postgresql://db/shop?options=-cgeqo=off", "postgresql://db/shop", SAME),
    ("postgresql://db/shop?hostaddr=10.0.0.7", "postgresql://10.0.0.7/shop", SAME),
    ("postgresql://db/shop?hostaddr=10.0.0.7", "postgresql://db/shop?hostaddr=10.0.0.8", OTHER),
]
MYSQL = [
    ("mysql://u@db/shop", "mariadb://v@db:3306/shop", SAME),
    ("mysql://u@db/shop", "mysql://u@db:3307/shop", OTHER),
    ("mysql:///shop?unix_socket=/run/a.sock", "mysql:///shop?unix_socket=/run/a.sock", SAME),
    ("mysql:///shop?unix_socket=/run/a.sock", "mysql:///shop?unix_socket=/run/b.sock", OTHER),
    ("mysql:///shop?unix_socket=/run/a.sock", "mysql://localhost/shop", SAME),
    ("mysql:///shop?unix_socket=/run/a.sock", "mysql://db/shop", OTHER),
    ("mysql://u@db/shop", "postgresql://u@db/shop", OTHER),
    ("mysql:///?read_default_file=/etc/a.cnf", "mysql:///?read_default_file=/etc/a.cnf", SAME),
    ("mysql:///?read_default_file=/etc/a.cnf", "mysql:///?read_default_file=/etc/b.cnf", OTHER),
    ("mysql:///?read_default_file=/etc/a.cnf", "mysql://", OTHER),
    (
        "mysql:///?read_default_file=/etc/a.cnf&read_default_group=shop",
        "mysql:///?read_default_file=/etc/a.cnf&read_default_group=locks",
        OTHER,
    ),
]
#: Of what a driver is told, what ``DATABASES`` has in places of their own; the rest is in OPTIONS.
PLACES = {"host", "port", "dbname", "database", "db", "user", "password", "passwd", "unix_socket"}
DRIVERS = {"postgresql": "postgresql+psycopg", "mysql": "mysql+pymysql", "mariadb": "mariadb+pymysql"}


def of_sqlalchemy(place: str) -> DatabaseAddress:
    url = make_url(place)
    engine = create_engine(url.set(drivername=DRIVERS[url.drivername]))
    return _SessionTransaction(engine, engine.connect).address


def of_django(place: str) -> DatabaseAddress:
    """As it is written in ``DATABASES``: the folder of a socket is the ``HOST`` there."""
    url = make_url(place)
    _, said = url.set(drivername=DRIVERS[url.drivername]).get_dialect()().create_connect_args(url)
    host = said.get("unix_socket") or said.get("host") or ""
    settings = {"NAME": url.database, "HOST": host, "PORT": said.get("port", ""), "USER": "", "PASSWORD": ""}
    settings["OPTIONS"] = {name: value for name, value in said.items() if name not in PLACES}
    connection: Any = SimpleNamespace(vendor=url.drivername.replace("mariadb", "mysql"), settings_dict=settings)
    return address_of(connection)


@pytest.mark.parametrize("ours", ["as LOCATION", "swapped"])
@pytest.mark.parametrize("told", [of_sqlalchemy, of_django])
@pytest.mark.parametrize(("location", "project", "same"), [*POSTGRESQL, *MYSQL])
def test_it_is_the_same_where_the_driver_is_told_the_same(
    location: str, project: str, same: bool, told: Any, ours: str
) -> None:
    """Not seen, an exact ``once`` was done twice. Another one taken for it, each call failed: it has no such tables."""
    if ours == "swapped":
        location, project = project, location
    locks = address(StoreConfig("default", backend="sql", location=location))
    assert is_at(locks, told(project)) is same


def test_a_socket_by_a_link_is_the_same(tmp_path: Any) -> None:
    os.symlink(tmp_path, tmp_path / "link")
    locks = address(StoreConfig("default", backend="sql", location=f"postgresql:///shop?host={tmp_path}"))
    assert is_at(locks, of_django(f"postgresql:///shop?host={tmp_path}/link"))
