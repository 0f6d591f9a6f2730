"""``until="commit"`` over SQLAlchemy sessions: lock, function, flush, extend, COMMIT, release."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import create_engine, event, select, text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, scoped_session, sessionmaker

from distlock_web import ConfigurationError, LeaseLost, LockBusy, current_lease, distributed_lockable, lock, once
from distlock_web.core.registry import registry
from distlock_web.flask import DistLock
from distlock_web.locks.lease import OnLost
from distlock_web.ops.held_locks import list_all
from distlock_web.testing.fault_injector import FaultInjector
from tests.support.databases import Database
from tests.support.revoking import revoke


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    state: Mapped[str] = mapped_column(default="new")


@pytest.fixture
def sessions(memory: None, make_database: Callable[..., Database]) -> Iterator[sessionmaker[Session]]:
    """Sessions over one database. The store of locks is in memory."""
    engine = create_engine(make_database("sqlite").sqlalchemy)
    Base.metadata.create_all(engine)
    yield sessionmaker(engine)
    engine.dispose()


@pytest.fixture
def session(sessions: sessionmaker[Session]) -> Iterator[scoped_session[Session]]:
    scoped = scoped_session(sessions)
    yield scoped
    scoped.remove()


@pytest.fixture
def history(session: scoped_session[Session], sessions: sessionmaker[Session], injector: FaultInjector) -> list[str]:
    history: list[str] = []
    injector.calls = history
    engine = sessions.kw["bind"]
    for name, word in {"begin": "BEGIN", "commit": "COMMIT", "rollback": "ROLLBACK"}.items():
        event.listen(engine, name, lambda connection, word=word: history.append(word))
    event.listen(engine, "before_cursor_execute", lambda *args: history.append(args[2].split()[0]))
    return history


@pytest.fixture
def count(sessions: sessionmaker[Session]) -> Callable[[], int]:
    """How many orders there are, as somebody else sees it."""

    def count() -> int:
        with sessions() as another:
            return len(another.scalars(select(Order)).all())

    return count


def test_what_is_committed_is_given_back_without_the_garbage_collector(sessions: sessionmaker[Session]) -> None:
    found: list[weakref.ref[Session]] = []

    def pay() -> None:
        session = sessions()
        found.append(weakref.ref(session))
        distributed_lockable(key="order", until="commit", database=session)(lambda: session.add(Order()))()
        session.close()

    gc.disable()
    try:
        pay()
        assert found[0]() is None
    finally:
        gc.enable()


def test_the_order(session: scoped_session[Session], history: list[str]) -> None:
    @distributed_lockable(key="order", until="commit", database=session)
    def pay() -> str:
        session.add(Order())
        return "done"

    assert pay() == "done"
    assert history == ["acquire", "BEGIN", "INSERT", "extend", "COMMIT", "release"]


def test_an_exception_rolls_back(
    session: scoped_session[Session], history: list[str], count: Callable[[], int]
) -> None:
    @distributed_lockable(key="order", until="commit", database=session)
    def pay() -> None:
        session.add(Order())
        session.flush()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        pay()
    assert history == ["acquire", "BEGIN", "INSERT", "ROLLBACK", "release"]
    assert count() == 0


@pytest.mark.parametrize("on_lost", ["raise", "warn", lambda lease: None])
def test_a_lost_lease_writes_nothing(
    session: scoped_session[Session], count: Callable[[], int], on_lost: OnLost
) -> None:
    @distributed_lockable(key="order", until="commit", database=session, on_lost=on_lost)
    def pay() -> None:
        session.add(Order())
        lease = current_lease()
        assert lease is not None
        assert revoke(lease.name, lease.fence)

    with pytest.raises(LeaseLost):
        pay()
    assert count() == 0
    assert not session().in_transaction()


def test_a_view_that_commits_itself_has_a_full_lease_for_each(
    session: scoped_session[Session], history: list[str], count: Callable[[], int]
) -> None:
    @distributed_lockable(key="order", until="commit", database=session)
    def pay() -> None:
        session.add(Order())
        session.commit()
        session.add(Order())

    pay()
    assert history == ["acquire", *["BEGIN", "INSERT", "extend", "COMMIT"] * 2, "release"]
    assert count() == 2


def test_a_savepoint_rolls_back_alone(
    session: scoped_session[Session], history: list[str], count: Callable[[], int]
) -> None:
    @distributed_lockable(key="order", until="commit", database=session)
    def pay() -> None:
        session.add(Order())
        with pytest.raises(ZeroDivisionError), session.begin_nested():
            session.add(Order())
            raise ZeroDivisionError
        with session.begin_nested():
            session.add(Order())

    pay()
    assert history.count("extend") == 1
    assert count() == 2


def test_what_was_added_is_in_the_database_when_success_is_asked(
    session: scoped_session[Session], history: list[str]
) -> None:
    """Its id was None, so it counted as no success, and the lock was free at once."""
    asked: list[list[str]] = []

    def has_id(order: Order) -> bool:
        asked.append(history.copy())
        return order.id is not None and session.get(Order, order.id) is order

    @distributed_lockable(key="order", until="commit", database=session, hold_at_least=60, success=has_id)
    def pay() -> Order:
        order = Order()
        session.add(order)
        return order

    pay()
    assert asked == [["acquire", "BEGIN", "INSERT"]]
    assert history == ["acquire", "BEGIN", "INSERT", "extend", "COMMIT", "release"]
    with pytest.raises(LockBusy):
        pay()


def test_of_once_nothing_is_flushed_that_is_rolled_back(session: scoped_session[Session], history: list[str]) -> None:
    """What it had added may be wrong: an error of the database's would come in place of its answer."""

    @once(key="order", keep=60, until="commit", database=session, success=lambda answer: answer != "declined")
    def pay() -> str:
        session.add(Order(state=None))
        return "declined"

    assert [pay(), pay()] == ["declined", "declined"]
    assert "INSERT" not in history


def test_what_asks_the_database_nothing_opens_nothing(session: scoped_session[Session], history: list[str]) -> None:
    @distributed_lockable(key="order", until="commit", database=session)
    def pay() -> None:
        pass

    pay()
    assert history == ["acquire", "extend", "release"]


@pytest.mark.parametrize("looks_first", [True, False])
def test_one_inside_another_is_refused_for_its_commit_is_not_the_outer_ones(
    session: scoped_session[Session], looks_first: bool
) -> None:
    @distributed_lockable(key="item", until="commit", database=session)
    def inner() -> None:
        raise AssertionError

    @distributed_lockable(key="order", until="commit", database=session)
    def outer() -> None:
        if looks_first:
            session.execute(text("SELECT 1"))
        inner()

    for _ in range(2):
        with pytest.raises(ConfigurationError, match=r"inner: .* inside of .*outer, .* in one of the two alone"):
            outer()


def test_the_session_is_left_as_it_was(session: scoped_session[Session], history: list[str]) -> None:
    @distributed_lockable(key="order", until="commit", database=session)
    def pay() -> None:
        session.add(Order())

    pay()
    del history[:]
    session.add(Order())
    session.commit()
    assert "extend" not in history


def remove(session: scoped_session[Session]) -> None:
    session.remove()


def another_scope(session: scoped_session[Session]) -> None:
    """As another app context of Flask is one, pushed and not popped."""
    session.registry.set(session.session_factory())


LEAVES: dict[str, Callable[[scoped_session[Session]], None]] = {
    "it is removed": remove,
    "it is committed, and removed": lambda session: (session.commit(), session.remove()),  # type: ignore[dict-item]
    "another takes its place": another_scope,
}
WORK: dict[str, Callable[[scoped_session[Session]], object]] = {
    "an object": lambda session: session.add(Order()),
    "a flush": lambda session: (session.add(Order()), session.flush()),
    "text": lambda session: session.execute(text("INSERT INTO orders (state) VALUES ('new')")),
}
NO_WORK: dict[str, Callable[[scoped_session[Session]], object]] = {
    "nothing": lambda session: None,
    "a look": lambda session: session.get(Order, 1),
    "work that is committed": lambda session: (session.add(Order()), session.commit()),
    "work that is rolled back": lambda session: (session.add(Order()), session.rollback()),
}
Decorator = Callable[..., Any]


@pytest.mark.parametrize("decorator", [distributed_lockable, partial(once, keep=60)], ids=["lock", "once"])
@pytest.mark.parametrize("work", WORK.values(), ids=WORK)
@pytest.mark.parametrize("leave", LEAVES.values(), ids=LEAVES)
def test_work_on_another_session_is_not_lost_in_silence(
    session: scoped_session[Session],
    count: Callable[[], int],
    leave: Callable[[scoped_session[Session]], None],
    work: Callable[[scoped_session[Session]], object],
    decorator: Decorator,
) -> None:
    """The old one was committed, and was empty: who called had his result, and once its record."""
    ran: list[int] = []

    @decorator(key="order", until="commit", database=session)
    def pay() -> str:
        ran.append(1)
        if decorator is distributed_lockable or leave is not LEAVES["it is committed, and removed"]:
            leave(session)
        else:
            session.remove()  # under once nothing may be committed
        work(session)
        return "paid"

    for _ in range(2):
        with pytest.raises(ConfigurationError, match=r"pay: .* with another one.*Leave out session\.remove\(\)"):
            pay()
        assert not session().in_transaction()
    assert (len(ran), count()) == (2, 0)


@pytest.mark.parametrize("work", NO_WORK.values(), ids=NO_WORK)
@pytest.mark.parametrize("leave", LEAVES.values(), ids=LEAVES)
def test_another_session_without_open_work_is_harmless(
    session: scoped_session[Session],
    leave: Callable[[scoped_session[Session]], None],
    work: Callable[[scoped_session[Session]], object],
) -> None:
    @distributed_lockable(key="order", until="commit", database=session)
    def pay() -> str:
        leave(session)
        work(session)
        return "paid"

    assert pay() == "paid"


# A session that begins nothing by itself -----------------------------------------------------------------------------


def begins_and_commits(session: Session) -> None:
    with session.begin():
        session.add(Order())


def begins(session: Session) -> None:
    session.begin()
    session.add(Order())


@pytest.mark.parametrize(
    ("work", "orders", "extended"),
    [
        (begins_and_commits, 1, 1),  # its work was committed, and its caller had an error
        (begins, 1, 1),
        (lambda session: (begins_and_commits(session), begins_and_commits(session)), 2, 2),
        (lambda session: (begins_and_commits(session), begins(session)), 2, 2),
        (lambda session: None, 0, 0),
    ],
    ids=["a block", "begun", "two blocks", "a block, then begun", "nothing"],
)
def test_a_session_without_autobegin(
    sessions: sessionmaker[Session],
    session: scoped_session[Session],
    history: list[str],
    count: Callable[[], int],
    work: Callable[[Session], object],
    orders: int,
    extended: int,
) -> None:
    with sessions(autobegin=False) as explicit:
        assert distributed_lockable(key="order", until="commit", database=explicit)(lambda: work(explicit) or "paid")()
        assert not explicit.in_transaction()
    assert history == ["acquire", *["BEGIN", "INSERT", "extend", "COMMIT"] * extended, "release"]
    assert count() == orders


@pytest.mark.parametrize(("work", "orders"), [(begins, 1), (lambda session: None, 0)], ids=["begun", "nothing"])
def test_once_over_a_session_without_autobegin(
    sessions: sessionmaker[Session], count: Callable[[], int], work: Callable[[Session], object], orders: int
) -> None:
    ran: list[int] = []

    with sessions(autobegin=False) as explicit:

        @once(key="order", keep=60, until="commit", database=explicit)
        def pay() -> str:
            ran.append(1)
            work(explicit)
            return "paid"

        assert [pay(), pay()] == ["paid", None]
    assert (len(ran), count()) == (1, orders)


# Flask-SQLAlchemy ----------------------------------------------------------------------------------------------------


@pytest.fixture
def app(make_database: Callable[..., Database]) -> Iterator[Flask]:
    app = Flask("shop")
    app.config["SQLALCHEMY_DATABASE_URI"] = make_database("sqlite").sqlalchemy
    app.config["DISTLOCK"] = {"default": {"BACKEND": "memory"}}
    app.config["USER"] = lambda request: ""
    app.config["DISTLOCK_USER"] = lambda request: app.config["USER"](request)
    SQLAlchemy(app, model_class=Base)
    DistLock(app)
    with app.app_context():
        Base.metadata.create_all(database(app).engine)
    yield app
    with app.app_context():
        database(app).engine.dispose()
    app.extensions["distlock"].registry.close()


def database(app: Flask) -> Any:
    return app.extensions["sqlalchemy"]


def orders(app: Flask) -> int:
    with app.app_context():
        return len(database(app).session.scalars(select(Order)).all())


def test_in_flask_the_apps_session_is_meant(app: Flask) -> None:
    seen: list[Any] = []

    @app.post("/pay")
    @distributed_lockable(key="order", until="commit")
    def pay() -> str:
        session = database(app).session
        session.add(Order())
        event.listen(session(), "after_commit", lambda _: seen.append(len(list_all(registry()).rows)))
        return "paid"

    @app.post("/fail")
    @distributed_lockable(key="order", until="commit")
    def fail() -> str:
        database(app).session.add(Order())
        raise ZeroDivisionError

    client = app.test_client()
    assert client.post("/pay").text == "paid"
    assert (seen, orders(app)) == ([1], 1)
    assert client.post("/fail").status_code == 500
    assert orders(app) == 1


def test_in_flask_a_user_hook_may_read_the_database(app: Flask) -> None:
    """It did so while the lock was taken, and its transaction was taken for one from before the view: a 500, always."""
    asked: list[str] = []

    def name_of_user(request: Any) -> str:
        asked.append(request.path)
        return str(database(app).session.get_one(Order, 1).state)

    @app.post("/pay")
    @distributed_lockable(key="order", until="commit")
    def pay() -> str:
        session = database(app).session
        assert not session().in_transaction()  # what it reads is no older than the lock
        with lock("inner"):
            [user] = {row.holder.user for row in list_all(registry()).rows}
        session.add(Order())
        return user

    app.config["USER"] = name_of_user
    with app.app_context():
        database(app).session.add(Order(id=1, state="ann"))
        database(app).session.commit()
    assert [app.test_client().post("/pay").text for _ in range(2)] == ["ann", "ann"]
    assert asked == ["/pay", "/pay"]  # once for each request, whatever it locks
    assert orders(app) == 3


def test_without_a_framework_it_is_said_what_to_import() -> None:
    program = """
from distlock_web import ConfigurationError, distributed_lockable
try:
    distributed_lockable(until="commit")(print)
except ConfigurationError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True)
    assert "import distlock_web.sqlalchemy and give database=session" in done.stdout, done.stderr
