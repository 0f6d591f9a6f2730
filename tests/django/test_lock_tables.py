"""``"DATABASE": "default"``: the address comes from DATABASES, the tables by migration, and routers are respected."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import StringIO
from types import SimpleNamespace
from typing import Any

import pytest
from django.core.checks import run_checks
from django.core.management import call_command
from django.db import connections, transaction

from distlock_web import ConfigurationError, lock
from distlock_web.backends.memory import MemoryBackend
from distlock_web.backends.sql.address import address
from distlock_web.backends.sql.callers import is_at
from distlock_web.core.config import StoreConfig
from distlock_web.core.registry import registry
from distlock_web.django.transactions import _DjangoTransaction
from tests.support.databases import Database, Kind, django_alias
from tests.support.stores.sql import known_at

LOCKS = "locks"
APP = "distlock_web.django.sql"
TABLES = {"distlock_lease", "distlock_waiter", "distlock_holder", "distlock_record"}


class LocksApart:
    """The locks' tables are in the database ``locks`` and nowhere else."""

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool | None:
        return db == LOCKS if app_label == "distlock_web_sql" else None


@contextmanager
def as_alias(database: Database) -> Iterator[Callable[[], set[str]]]:
    """Django knows the database as ``locks``; what tables it has."""
    with django_alias(LOCKS, database):
        yield lambda: set(connections[LOCKS].introspection.table_names())


@pytest.fixture(autouse=True)
def _databases_are_there(django_db_blocker: Any) -> Iterator[None]:
    with django_db_blocker.unblock():
        yield


def migrate(*arguments: str, fake: bool = False) -> None:
    call_command("migrate", "distlock_web_sql", *arguments, database=LOCKS, fake=fake, verbosity=0)


@pytest.fixture(params=["postgres", "mariadb"])
def tables(
    request: pytest.FixtureRequest, make_database: Callable[[Kind], Database]
) -> Iterator[Callable[[], set[str]]]:
    with as_alias(make_database(request.param)) as tables:
        yield tables


@pytest.mark.slow
def test_the_migrations_make_the_tables_that_the_store_uses(tables: Callable[[], set[str]], settings: Any) -> None:
    settings.DISTLOCK = {"default": {"DATABASE": LOCKS}}
    with pytest.raises(ConfigurationError, match=r"manage\.py migrate --database locks"), lock("a"):
        pass
    assert tables() == set(), "none was made behind the migrations' back"
    migrate()
    assert tables() >= TABLES
    with lock("a" * 300, renew=True) as lease:
        lease.extend()
        assert lease.fence is not None
    migrate("zero")
    assert not TABLES & tables()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::distlock_web.core.errors.OpenTransactionWarning")
def test_a_lock_is_no_part_of_its_callers_transaction(tables: Callable[[], set[str]], settings: Any) -> None:
    """Inside a transaction that is undone: the lock is held, and released, all the same."""
    settings.DISTLOCK = {"default": {"DATABASE": LOCKS}}
    migrate()
    with pytest.raises(ZeroDivisionError), transaction.atomic(using=LOCKS), lock("a").acquire() as lease:
        with connections[LOCKS].cursor() as cursor:
            cursor.execute("SELECT fence FROM distlock_lease WHERE token <> ''")
            assert cursor.fetchone() == (lease.fence,)
        raise ZeroDivisionError
    with connections[LOCKS].cursor() as cursor:
        cursor.execute("SELECT count(*) FROM distlock_lease WHERE token <> ''")
        assert cursor.fetchone() == (0,)


def test_a_router_says_in_which_database_they_are(make_database: Callable[[Kind], Database], settings: Any) -> None:
    settings.DATABASE_ROUTERS = [LocksApart()]
    with as_alias(make_database("sqlite")) as tables:
        migrate()
        assert tables() >= TABLES
        settings.DISTLOCK = {"default": {"DATABASE": LOCKS}}
        with lock("a"):
            pass
        settings.DISTLOCK = {"default": {"DATABASE": "default"}}
        with (
            pytest.raises(ConfigurationError, match=r"DATABASE_ROUTERS keep .* out of it; they allow 'locks'"),
            lock("a"),
        ):
            pass


def test_tables_that_a_store_has_made_are_kept_by_the_migration(
    make_database: Callable[[Kind], Database], settings: Any
) -> None:
    """Its LOCATION is the project's database, and the first lock came before the migration."""
    database = make_database("sqlite")
    settings.DISTLOCK = {"default": {"LOCATION": database.sqlalchemy}}
    with as_alias(database) as tables, lock("a") as lease:
        assert "distlock_lease" in tables()
        migrate()
        lease.extend()


def test_without_the_app_the_check_and_the_first_lock_say_what_to_add(settings: Any) -> None:
    settings.INSTALLED_APPS = [app for app in settings.INSTALLED_APPS if app != APP]
    settings.DISTLOCK = {"default": {"DATABASE": "default"}}
    says = f"names the database 'default', but no app in INSTALLED_APPS has the tables of the locks: add \"{APP}\""
    [message] = [message for message in run_checks() if message.id == "distlock_web.E001"]
    assert says in message.msg
    with pytest.raises(ConfigurationError, match=re.escape(says)), lock("a"):
        pass


def test_the_projects_sqlite_in_memory_serves_tests(settings: Any) -> None:
    """As Django's test runner has it: nobody else is to be excluded, so that its locks are in memory, too.

    On SQLite an interrupted transaction kept all others out.
    """
    settings.DISTLOCK = {"default": {"DATABASE": "default"}}
    with lock("a", renew=True) as lease:
        lease.extend()
    assert isinstance(registry().store("default").backend, MemoryBackend)


@pytest.mark.parametrize("everything", [False, True], ids=["", "--all"])
def test_a_dump_of_the_project_has_no_locks(
    make_database: Callable[[Kind], Database], settings: Any, everything: bool
) -> None:
    """One model has no table, and the rows of the others hold tokens."""
    settings.DISTLOCK = {"default": {"DATABASE": LOCKS}}
    dumped = StringIO()
    with as_alias(make_database("sqlite")):
        call_command("migrate", database=LOCKS, verbosity=0)
        with lock("a"):
            call_command("dumpdata", database=LOCKS, use_base_manager=everything, stdout=dumped)
    models = {row["model"] for row in json.loads(dumped.getvalue())}
    assert "auth.permission" in models
    assert not any(model.startswith("distlock_web") for model in models)


@pytest.mark.parametrize("vendor", ["postgresql", "mysql"])
@pytest.mark.parametrize("host", ["/run/a.sock", "db.example", ""])
def test_the_projects_transactions_are_where_the_locks_of_its_database_are(vendor: str, host: str) -> None:
    """Through a socket of MySQL's they were not: ``once`` with ``until="commit"`` was silently not exact."""

    from distlock_web.django.databases import address_of

    def connected(host: str) -> Any:
        place = {"NAME": "n", "HOST": host, "PORT": "", "USER": "u", "PASSWORD": "p", "OPTIONS": {}}
        return SimpleNamespace(vendor=vendor, settings_dict=place)

    locks = address(StoreConfig("default", backend="sql", resource=lambda: known_at(address_of(connected(host)))))
    assert is_at(locks, _DjangoTransaction(connected(host)).address)
    assert not is_at(locks, _DjangoTransaction(connected("/run/b.sock")).address) or not host


def test_several_hosts_with_a_port_each_are_those_of_the_locks() -> None:
    """Django and libpq take such a list: the first lock was a bare ValueError, and so was the commit of ``once``."""
    from distlock_web.django.databases import address_of

    def connected(port: object, vendor: str = "postgresql") -> Any:
        place = {"NAME": "n", "HOST": "a,b", "PORT": port, "USER": "u", "PASSWORD": "p", "OPTIONS": {}}
        return SimpleNamespace(vendor=vendor, settings_dict=place)

    locks = address(
        StoreConfig("default", backend="sql", resource=lambda: known_at(address_of(connected("5432,5433"))))
    )
    assert (locks.way.place.host, locks.way.place.port) == ("a,b", "5432,5433")
    assert is_at(locks, _DjangoTransaction(connected("5432,5433")).address)
    assert address_of(connected(" 5432\n")).port == 5432  # from a file or the environment: Django takes it
    for other in ("5432,5434", 5432, "5432", ""):
        assert not is_at(locks, _DjangoTransaction(connected(other)).address)
    with pytest.raises(ConfigurationError, match=r"PORT 'five,5'; it has to be a number"):
        address_of(connected("five,5"))
