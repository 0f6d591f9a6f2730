"""What the settings of an SQL store may say, and what is wrong with others."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from distlock_web import ConfigurationError, configure, lock
from distlock_web.core.config import DatabaseAddress, parse
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
