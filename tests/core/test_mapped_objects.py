"""An object of SQLAlchemy's is its row, as SQLAlchemy knows it; and scripts that have installed nothing of ours."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy import Column, ForeignKey, Integer, Table, create_engine, event
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, registry
from werkzeug.local import LocalProxy

from distlock_web import ConfigurationError, escape_key, lock

pytestmark = pytest.mark.usefixtures("memory_store")


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    __table_args__ = ({"schema": "shop"},)
    id: Mapped[int] = mapped_column(primary_key=True)
    state: Mapped[str] = mapped_column(default="new")

    def __str__(self) -> str:
        return self.state


class Seat(Base):
    __tablename__ = "seats"
    hall: Mapped[str] = mapped_column(primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)


class Person(Base):
    __tablename__ = "people"
    id: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[str]
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "person"}  # noqa: RUF012


class Engineer(Person):
    __tablename__ = "engineers"
    id: Mapped[int] = mapped_column(ForeignKey("people.id"), primary_key=True)
    __mapper_args__ = {"polymorphic_identity": "engineer"}  # noqa: RUF012


@dataclass
class Line:
    id: int


mappings = registry()
mappings.map_imperatively(Line, Table("lines", mappings.metadata, Column("id", Integer, primary_key=True)))


@pytest.fixture
def session() -> Any:
    engine = create_engine("sqlite://", execution_options={"schema_translate_map": {"shop": None}})
    Base.metadata.create_all(engine)
    with Session(engine) as opened:
        yield opened
    engine.dispose()


@pytest.mark.parametrize(
    ("make", "key"),
    [
        (lambda: Order(id=3), "shop.orders:3"),
        (lambda: Seat(hall="a:b", number=1), "seats:a%3Ab,1"),
        (lambda: Engineer(id=7), "people:7"),
        (lambda: Person(id=7, kind="person"), "people:7"),
    ],
)
def test_an_object_is_its_row_before_and_after_it_is_saved(session: Session, make: Any, key: str) -> None:
    row = make()
    assert escape_key(row) == key, "its primary key is there, though it is not saved"
    session.add(row)
    session.commit()
    with lock(row) as lease:
        assert lease.name == f"disLock:{key}"
    assert escape_key(LocalProxy(lambda: row)) == key, "also behind Flask-Login's current_user"


def test_one_that_is_mapped_from_outside() -> None:
    assert escape_key(Line(5)) == "lines:5"


def test_an_expired_or_a_detached_object_is_known_without_a_question(session: Session) -> None:
    row = Order()
    with pytest.raises(ConfigurationError, match=r"a row of shop\.orders that is not saved"):
        lock(row)
    session.add(row)
    session.commit()  # which expires it
    asked: list[str] = []
    event.listen(session.get_bind(), "before_cursor_execute", lambda *told: asked.append(told[2]))
    assert escape_key(row) == "shop.orders:1"
    session.expunge(row)
    assert (escape_key(row), asked) == ("shop.orders:1", [])
    assert row not in session


WITHOUT_US = {
    "django": """
        import django
        from django.conf import settings
        settings.configure(INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes"])
        django.setup()
        from django.contrib.auth.models import Group
        row = Group(pk=3)
        """,
    "sqlalchemy": """
        from sqlalchemy import Column, Integer
        from sqlalchemy.orm import declarative_base
        class Group(declarative_base()):
            __tablename__ = "groups"
            id = Column(Integer, primary_key=True)
        row = Group(id=3)
        """,
}


@pytest.mark.slow
@pytest.mark.parametrize(("library", "key"), [("django", "auth.group:3"), ("sqlalchemy", "groups:3")])
def test_in_a_script_that_has_installed_nothing_of_ours(library: str, key: str) -> None:
    script = textwrap.dedent(WITHOUT_US[library]) + textwrap.dedent(
        """
        from distlock_web import configure, distributed_lockable, lock
        configure({"default": {"BACKEND": "memory"}})
        with lock(row) as lease:
            print(lease.name)
        """
    )
    ran = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, timeout=60)
    assert (ran.stdout, ran.stderr) == (f"disLock:{key}\n", "")


@pytest.mark.slow
def test_without_these_libraries_nothing_of_them_is_loaded() -> None:
    script = """
        import sys
        from distlock_web import ConfigurationError, configure, lock
        configure({"default": {"BACKEND": "memory"}})
        try:
            lock(object())
        except ConfigurationError as error:
            print(error)
        print([name for name in sys.modules if name.partition(".")[0] in ("django", "sqlalchemy")])
        """
    ran = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=60)
    refused, loaded, *rest = ran.stdout.splitlines()
    assert ("no stable text" in refused, loaded, rest, ran.stderr) == (True, "[]", [], "")
