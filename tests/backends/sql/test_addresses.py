"""What the settings of an SQL store may say, and what is wrong with others."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from distlock_web import ConfigurationError, configure, lock
from distlock_web.backends.sql.address import address
from distlock_web.backends.sql.callers import is_at
from distlock_web.core.config import StoreConfig, parse
from distlock_web.core.database_address import DatabaseAddress
from distlock_web.core.registry import Registry
from distlock_web.django.stores import RESOURCES
from tests.support.databases import Database, django_alias
from tests.support.stores.sql import known_at


def made(**settings: Any) -> None:
    _ = Registry({"default": settings}).store("default").backend


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"LOCATION": ""}, "no LOCATION"),
        ({"LOCATION": "the database"}, "no URL"),
        ({"LOCATION": "oracle://scott:tiger@host/x"}, "oracle://"),
        ({"LOCATION": "mysql+mysqldb://host/x"}, r"mysql\+mysqldb://"),
        ({"LOCATION": "sqlite://"}, "no other process sees"),
        ({"LOCATION": "sqlite:///:memory:"}, "memory"),
        ({"LOCATION": "mysql://h/x", "OPTIONS": {"max_conections": 3}}, "Did you mean 'max_connections'"),
        ({"LOCATION": "mysql://h/x", "OPTIONS": {"max_connections": 0}}, "1 or more"),
        ({"LOCATION": "mysql://h/x", "OPTIONS": {"timeout": 0}}, "greater than 0"),
        ({"LOCATION": "mysql://h/x", "OPTIONS": {"timeout": "2"}}, "timeout"),
        ({"LOCATION": "mysql://h/x", "OPTIONS": {"timeout": 1}}, r"less than 1\.5 seconds"),
        ({"LOCATION": "mysql://h/x", "OPTIONS": {"pool_timeout": -1}}, "pool_timeout"),
        ({"LOCATION": "mysql://h/x", "OPTIONS": {"create": "no"}}, "True or False"),
        ({"LOCATION": "mysql://h/x", "OPTIONS": {"schema": ""}}, "schema"),
        ({"LOCATION": "mysql://h/x", "OPTIONS": {"connect_args": "ssl"}}, "mapping"),
    ],
)
def test_what_is_wrong_is_named_when_the_store_is_made(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        made(BACKEND="sql", **settings)


@pytest.mark.parametrize(
    "url",
    [
        "mysql://u:pa@S3cret@127.0.0.1:1/x",
        "postgresql://u:pa@S3cret@127.0.0.1/x",
        "postgresql://u:pa@rt/S3cret@127.0.0.1:1/x",  # its host would be rt, and the rest the database
        "mysql//root:S3cret@host/x",  # no URL
    ],
)
def test_a_password_is_not_repeated(url: str) -> None:
    """What stood behind its @ was taken for a part of the host, and shown with every error."""
    with pytest.raises(ConfigurationError, match=r"has to be %40|is no URL") as caught:
        made(BACKEND="sql", LOCATION=url)
    assert not re.search("S3cret|rt", str(caught.value))


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("postgresql://user@server:pw@h/x", "h"),  # Azure's user
        ("postgresql://user@server@h:1/x", "h:1"),
        ("mysql://me:y%3Fpass%3Dz%40@h/x", "h"),
        ("mysql://me:y@h:1/x?init_command=SET @@sql_mode=ANSI", "h:1"),
        ("mysql://root@localhost/x?init_command=SET @@sql_mode=ANSI", "localhost"),
        ("postgresql://h/x?password=y@z", "h"),
        ("postgresql://me@h/x?sslrootcert=/y@z", "h"),
    ],
)
def test_an_at_that_ends_no_password_is_taken(url: str, host: str) -> None:
    assert address(StoreConfig("default", backend="sql", location=url)).name.endswith(f" database x at {host}")


@pytest.mark.parametrize(
    "url",
    ["mysql://h/x", "mysql+pymysql://h/x", "mariadb://h/x", "postgres://h/x", "postgresql://h/x", "sqlite:////tmp/x"],
)
def test_the_scheme_alone_says_that_it_is_a_database(url: str) -> None:
    assert parse({"default": {"LOCATION": url}})["default"].backend == "sql"
    made(LOCATION=url)


def test_a_driver_that_is_not_installed_is_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pymysql", None)
    with pytest.raises(ConfigurationError, match=r'pip install "distlock_web\[mysql\]"'):
        made(LOCATION="mysql://h/x")


@pytest.mark.parametrize("both", [{"LOCATION": "mysql://h/x"}, {"CACHE": "default"}])
def test_the_locks_live_in_one_place(both: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="in one place"):
        parse({"default": {"DATABASE": "default", **both}})


def test_a_database_that_no_framework_knows_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"this is no Django project .* use LOCATION"):
        configure({"default": {"DATABASE": "default"}})


@pytest.mark.parametrize("way", ["symlink", "folder", "dots", "relative", "descriptor", "uri"])
def test_a_file_has_one_file_of_locks_whatever_leads_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, django_db_blocker: Any, way: str
) -> None:
    """``releases/1/db.sqlite3`` and ``releases/2/db.sqlite3`` led to one database, and had locks of their own."""
    shared, release = tmp_path / "shared", tmp_path / "releases" / "2"
    shared.mkdir()
    release.mkdir(parents=True)
    (shared / "db.sqlite3").touch()
    (release / "db.sqlite3").symlink_to("../../shared/db.sqlite3")
    (tmp_path / "current").symlink_to("shared")
    monkeypatch.chdir(tmp_path)
    with open(shared / "db.sqlite3", "rb") as file:
        name = {
            "symlink": str(release / "db.sqlite3"),
            "folder": str(tmp_path / "current" / "db.sqlite3"),
            "dots": str(release / ".." / ".." / "shared" / "db.sqlite3"),
            "relative": "shared/db.sqlite3",
            "descriptor": f"/dev/fd/{file.fileno()}",
            "uri": f"file:{release}/db%2Esqlite3?mode=rwc",
        }[way]
        with django_db_blocker.unblock(), django_alias("locks", Database("sqlite", name)):
            registry = configure({"default": {"DATABASE": "locks"}}, resources=RESOURCES)
            with lock("a"):
                pass
            registry.close()
    assert sorted(file.name for file in tmp_path.rglob("*.locks")) == ["db.sqlite3.locks"]
    assert (shared / "db.sqlite3.locks").exists()


class _SeveralHosts(Database):
    @property
    def django(self) -> dict[str, Any]:
        return {**super().django, "HOST": "127.0.0.1,127.0.0.1", "PORT": f"{self.port},{self.port}"}


@pytest.mark.usefixtures("postgres_settings")  # an empty one: another test's lock may live
def test_a_framework_may_name_several_hosts(postgres_locks: Database, django_db_blocker: Any) -> None:
    several = _SeveralHosts(postgres_locks.kind, postgres_locks.name, postgres_locks.port)
    with django_db_blocker.unblock(), django_alias("locks", several):
        configure({"default": {"DATABASE": "locks", "OPTIONS": {"create": True}}}, resources=RESOURCES)
        with lock("a") as lease:
            assert lease.fence


def test_a_schema_beside_tables_that_a_framework_migrates_is_refused() -> None:
    """The locks looked in the schema, the migrations had made the tables elsewhere, and the error said: migrate."""
    known = known_at(DatabaseAddress("postgresql", "shop"))
    settings = {"DATABASE": "default", "OPTIONS": {"schema": "locks"}}
    registry = configure({"default": settings}, resources={"DATABASE": lambda name: known})
    with pytest.raises(ConfigurationError, match=r'"schema" beside DATABASE.*search_path'):
        _ = registry.store("default").backend


@pytest.mark.parametrize(
    ("kind", "connect_args", "same"),
    [
        ("postgresql", {}, True),
        ("postgresql", {"sslmode": "require"}, True),
        ("postgresql", {"options": "-c geqo=off"}, True),
        ("postgresql", {"options": "-c search_path=locks"}, False),
        ("postgresql", {"host": "elsewhere"}, False),
        ("postgresql", {"hostaddr": "10.0.0.7"}, False),
        ("postgresql", {"service": "locks"}, False),
        ("postgresql", {"dbname": "locks"}, False),
        ("mysql", {}, True),
        ("mysql", {"charset": "utf8mb4"}, True),
        ("mysql", {"host": "elsewhere"}, False),
        ("mysql", {"database": "locks"}, False),
        ("mysql", {"db": "locks"}, False),
        ("mysql", {"read_default_file": "/etc/locks.cnf"}, False),
    ],
)
def test_what_the_locks_alone_are_told_may_lead_elsewhere(kind: str, connect_args: dict[str, str], same: bool) -> None:
    """``once`` took it for the project's own place: its record was written by the project's transaction, over there."""
    project = DatabaseAddress(kind, "shop", connect_args={"connect_timeout": 3})
    config = StoreConfig(
        "default", backend="sql", resource=lambda: known_at(project), options={"connect_args": connect_args}
    )
    assert is_at(address(config), project) is same


@pytest.mark.parametrize(
    ("kind", "driver", "works"),
    [("mysql", "mysql.connector", "mysqlclient or PyMySQL"), ("postgresql", "pg8000.dbapi", "psycopg or psycopg2")],
)
def test_a_driver_of_a_framework_that_locks_cannot_use_is_refused(kind: str, driver: str, works: str) -> None:
    """Whatever calls itself a MySQL was taken: the first lock was an AttributeError of the driver's."""
    known = known_at(DatabaseAddress(kind, "shop"))
    known.driver.__name__ = driver
    registry = configure({"default": {"DATABASE": "default"}}, resources={"DATABASE": lambda name: known})
    with pytest.raises(ConfigurationError, match=f"its driver is {driver}: they need a plain connection of {works}"):
        _ = registry.store("default").backend


class Lent:
    """A connection of a pool, as SQLAlchemy has it: it shows all that the driver's own has."""

    closed = False
    pgconn = _read_timeout = _sock = None

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("kind", ["postgresql", "mysql"])
def test_a_connection_of_a_frameworks_pool_is_refused_and_given_back(kind: str) -> None:
    known, lent = known_at(DatabaseAddress(kind, "shop")), Lent()
    known.connect = lambda before, after, file, adopt: adopt(lent)
    configure({"default": {"DATABASE": "default"}}, resources={"DATABASE": lambda name: known})
    with pytest.raises(
        ConfigurationError, match=r"its connections are tests\..*\.Lent: they need a plain connection of"
    ):
        lock("a").acquire()
    assert lent.closed
