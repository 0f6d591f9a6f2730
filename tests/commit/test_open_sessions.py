"""A session that is in a transaction already: what was done in it decides, not what the session itself knows of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from flask import Flask
from flask_login import LoginManager, UserMixin, login_required, login_user
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import Engine, MetaData, Table, create_engine, event, insert, select, text, update
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from distlock_web import ConfigurationError, distributed_lockable, lock, once
from distlock_web.core.errors import OpenTransactionWarning
from distlock_web.flask import DistLock
from distlock_web.sqlalchemy import begun
from distlock_web.sqlalchemy.begun import has_changes, kind_of
from tests.support.databases import Database

View = Callable[[], str]


class Base(DeclarativeBase):
    pass


class User(UserMixin, Base):
    __tablename__ = "users"
    id: Mapped[int] = mapped_column(primary_key=True)
    state: Mapped[str] = mapped_column(default="new")


class Entry(Base):
    __tablename__ = "entries"
    id: Mapped[int] = mapped_column(primary_key=True)


class Log(Base):
    """In a database of its own."""

    __tablename__ = "log"
    __bind_key__ = "logs"
    metadata = MetaData(info={"bind_key": "logs"})
    id: Mapped[int] = mapped_column(primary_key=True)


def as_advised(engine: Engine) -> None:
    """By SQLAlchemy: else Python's SQLite begins nothing for WITH, and knows nothing of savepoints."""
    event.listen(engine, "connect", lambda connection, record: setattr(connection, "isolation_level", None))
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))


@pytest.fixture
def db(make_database: Callable[..., Database]) -> Iterator[Any]:
    """Flask-SQLAlchemy's, of an app whose locks are in memory and whose user 1 is known to Flask-Login."""
    app = Flask("shop")
    app.secret_key = "k"
    app.testing = True
    app.config["SQLALCHEMY_DATABASE_URI"] = make_database("sqlite").sqlalchemy
    app.config["SQLALCHEMY_BINDS"] = {"logs": make_database("sqlite").sqlalchemy}
    app.config["DISTLOCK"] = {"default": {"BACKEND": "memory"}}
    db: Any = SQLAlchemy(app, model_class=Base)
    DistLock(app)
    login = LoginManager(app)
    login.user_loader(lambda key: db.session.get(User, int(key)))  # as in Flask-Login's documentation

    @app.get("/in")
    def sign_in() -> str:
        login_user(db.session.get(User, 1))
        return "in"

    with app.app_context():
        for engine, tables in ((db.engine, Base.metadata), (db.engines["logs"], Log.metadata)):
            as_advised(engine)
            tables.create_all(engine)
        db.session.add(User(id=1))
        db.session.commit()
        db.app = app
        db.connection = None  #: of a test's own
        yield db
        db.session.remove()
        if db.connection is not None:
            db.connection.close()
        for engine in db.engines.values():
            engine.dispose()
    app.extensions["distlock"].registry.close()


# What was done × who asks ---------------------------------------------------------------------------------------------


def flush(db: Any) -> None:
    db.session.add(Entry())
    db.session.flush()


def savepoint(db: Any) -> None:
    with db.session.begin_nested():
        db.session.add(Entry())


def undone_savepoint(db: Any) -> None:
    flush(db)
    db.session.begin_nested().rollback()  # the transaction around it goes on


def table() -> Table:
    return Base.metadata.tables["entries"]


WRITES: dict[str, Callable[[Any], object]] = {
    "an object": lambda db: db.session.add(Entry()),
    "an object that was changed": lambda db: setattr(db.session.get(User, 1), "state", "paid"),
    "an object that was deleted": lambda db: db.session.delete(db.session.get(User, 1)),
    "a flush": flush,
    "a savepoint": savepoint,
    "a savepoint that was undone, in a transaction that has written": undone_savepoint,
    "objects in bulk": lambda db: db.session.bulk_save_objects([Entry()]),
    "mappings in bulk": lambda db: db.session.bulk_insert_mappings(Entry, [{}]),
    "an insert of the ORM": lambda db: db.session.execute(insert(Entry), [{}]),
    "an update of the ORM": lambda db: db.session.execute(update(User).values(state="paid")),
    "an insert of Core": lambda db: db.session.execute(table().insert().values(id=7)),
    "the session's connection": lambda db: db.session.connection().execute(table().insert().values(id=7)),
    "the driver's own text": lambda db: db.session.connection().exec_driver_sql("DELETE FROM users"),
    "text": lambda db: db.session.execute(text("UPDATE users SET state = 'paid'")),
    "text, a comment in front": lambda db: db.session.execute(text("/* who */ -- why\n DELETE FROM users")),
    "text, WITH in front": lambda db: db.session.execute(
        text("WITH a AS (SELECT 7 AS id) INSERT INTO entries SELECT id FROM a")
    ),
    "another database": lambda db: db.session.execute(insert(Log), [{}]),
}
READS: dict[str, Callable[[Any], object]] = {
    "nothing": lambda db: None,
    "an object": lambda db: db.session.get(User, 1),
    "text": lambda db: db.session.execute(text("SELECT 1")),
    "text, a comment in front": lambda db: db.session.execute(text("/* insert */ -- delete\n SELECT 1")),
    "text, WITH in front": lambda db: db.session.execute(text("WITH a AS (SELECT 1) SELECT * FROM a")),
    "Core": lambda db: db.session.connection().execute(select(table())),
    "a savepoint": lambda db: (db.session.get(User, 1), db.session.begin_nested().commit()),
    "words that are names, or text": lambda db: db.session.execute(
        text("SELECT state AS 'update', 'INTO' AS \"insert\" FROM users /* DELETE */ -- FOR UPDATE")
    ),
    "a plan": lambda db: db.session.execute(text("EXPLAIN QUERY PLAN DELETE FROM users")),
    "another database": lambda db: db.session.scalars(select(Log)).all(),
    "a write that was committed": lambda db: (flush(db), db.session.commit()),
    "a write that was rolled back": lambda db: (flush(db), db.session.rollback()),
    "a write of a session that was closed": lambda db: (flush(db), db.session.close()),
    "a write of a session that was reset": lambda db: (flush(db), db.session().reset()),
}


def warns(db: Any, work: Callable[[Any], object]) -> bool:
    """A plain lock around the work, which warnings make fail in these tests."""
    try:
        with lock("order"):
            work(db)
    except OpenTransactionWarning:
        return True
    return False


def refused_after(db: Any, work: Callable[[Any], object]) -> bool:
    """``once`` over a function that leaves it open."""
    try:
        once(key="order", keep=60)(lambda: work(db) and None)()
    except ConfigurationError:
        return True
    return False


def refused_before(db: Any, work: Callable[[Any], object]) -> bool:
    """``until="commit"`` where it is open before."""
    work(db)
    try:
        distributed_lockable(key="order", until="commit")(lambda: None)()
    except ConfigurationError:
        assert db.session().in_transaction(), "it is its owner's business"
        return True
    return False


ASKS = (warns, refused_after, refused_before)


@pytest.mark.parametrize("ask", ASKS)
@pytest.mark.parametrize("work", WRITES.values(), ids=WRITES)
def test_a_write_is_seen_however_it_was_done(db: Any, ask: Any, work: Callable[[Any], object]) -> None:
    """Of bulk inserts, Core, comments and WITH nothing was seen: what was rolled back later stayed recorded as done."""
    assert ask(db, work)


@pytest.mark.parametrize("ask", ASKS)
@pytest.mark.parametrize("work", READS.values(), ids=READS)
def test_to_have_read_is_harmless(db: Any, ask: Any, work: Callable[[Any], object]) -> None:
    assert not ask(db, work)


@pytest.mark.parametrize(
    ("statement", "kind"),
    [
        ("SELECT 1", "reads"),
        ("  -- UPDATE\n /* DELETE */ (SELECT 1)", "reads"),
        ("SELECT updated, deleted FROM a WHERE b = :insert_1", "reads"),
        ("SAVEPOINT sa_savepoint_1", "reads"),
        ("ROLLBACK TO SAVEPOINT sa_savepoint_1", "reads"),
        ('SELECT permission.update, "insert", `delete`, a.into AS into, (merge) FROM permission', "reads"),
        ("SELECT count(delete), max(update IS NULL), (insert OR delete) FROM permission", "reads"),
        ("SELECT share, a.set FROM a WHERE b = %(update)s AND c = 'it''s (DELETE FROM a) FOR UPDATE'", "reads"),
        ("SELECT $$ INTO $$, $a$ $$ FOR UPDATE $a$ -- FOR UPDATE", "reads"),
        ("SELECT 1; -- DELETE", "reads"),
        ("EXPLAIN DELETE FROM a", "reads"),
        ("EXPLAIN QUERY PLAN SELECT 1", "reads"),
        ("EXPLAIN (ANALYZE, BUFFERS) SELECT 1", "reads"),
        ("DESCRIBE a", "reads"),
        ("DESC a", "reads"),
        ("EXPLAIN ANALYZE SELECT * FROM a FOR KEY SHARE", "keeps"),
        ("SELECT '\\', ' FOR UPDATE ', '\\' FOR UPDATE", "keeps"),
        ("SELECT 'a\\'b' FROM a WHERE c = 'd' FOR UPDATE", "keeps"),
        ("SELECT pg_advisory_lock(7)", "keeps"),
        ("SELECT pg_try_advisory_xact_lock_shared(7)", "keeps"),
        ("SELECT GET_LOCK('x', 1)", "keeps"),
        ("EXPLAIN (ANALYZE) DELETE FROM a", "writes"),
        ("EXPLAIN ANALYZE VERBOSE DELETE FROM a", "writes"),
        ("SELECT 1; DELETE FROM a", "writes"),
        ("WITH a AS (DELETE FROM ONLY b RETURNING id) SELECT * FROM a", "writes"),
        ("WITH a AS (\n  UPDATE b SET c = (SELECT 1) RETURNING id) SELECT * FROM a", "writes"),
        ("WITH a AS (SELECT 1) DELETE b, c.* FROM b, c", "writes"),
        ("WITH a AS (SELECT 1) REPLACE INTO b SELECT 1", "writes"),
        ("WITH a AS (SELECT 1) UPDATE b, (SELECT 1) AS d SET c = 1", "writes"),
        ("SELECT 'x' INTO OUTFILE '/tmp/a'", "writes"),
        ("SELECT 1 /*! INTO @a */", "writes"),
        ("SELECT 'a\\'b' INTO b -- '", "writes"),
        ("WITH a AS (SELECT 1) SELECT * FROM a FOR UPDATE", "keeps"),
        ("SELECT * FROM a FOR NO KEY UPDATE", "keeps"),
        ("SELECT * FROM a FOR SHARE", "keeps"),
        ("SELECT * FROM a LOCK IN SHARE MODE", "keeps"),
        ("SELECT pg_advisory_xact_lock(7)", "keeps"),
        ("SET LOCAL app.tenant = 7", "keeps"),
        ("SELECT set_config('app.tenant', '7', true)", "keeps"),
        ("WITH a AS (INSERT INTO b VALUES (1) RETURNING id) SELECT * FROM a", "writes"),
        ("WITH a AS (SELECT 1) UPDATE b SET c = 1", "writes"),
        ("SELECT * INTO b FROM a", "writes"),
        ("CALL pay(7)", "writes"),
        ("COPY a FROM STDIN", "writes"),
        ("replace into a values (1)", "writes"),
    ],
)
def test_what_a_statement_does(statement: str, kind: str) -> None:
    assert kind_of(statement) == kind


def test_a_statement_is_read_only_where_nothing_else_says_what_it_does(
    memory: None, users: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each statement of the process was searched for words, as long as it was."""
    monkeypatch.setattr(begun, "kind_of", lambda statement: pytest.fail(statement))
    with Session(users) as session:
        session.execute(insert(User).values(id=1))  # SQLAlchemy has made it
        session.execute(text("SELECT 1"))  # no more can be found
        assert has_changes(session)


def begins(session: Session) -> None:
    session.begin()


def begins_a_savepoint(session: Session) -> None:
    session.begin_nested()


def sets(session: Session) -> None:
    driver: Any = session.connection().connection.driver_connection
    driver.create_function("set_config", 3, lambda *args: 1)
    session.execute(text("SELECT set_config('app.tenant', '7', true)"))


def isolates(session: Session) -> None:
    session.connection(execution_options={"isolation_level": "SERIALIZABLE"})


def maps_schemas(session: Session) -> None:
    session.connection(execution_options={"schema_translate_map": {"a": None}})


@pytest.mark.parametrize("begin", [begins, begins_a_savepoint, sets, isolates, maps_schemas])
def test_a_transaction_that_somebody_misses_is_refused(
    memory: None, make_database: Callable[..., Database], begin: Callable[[Session], None]
) -> None:
    """It has written nothing, but its block goes on after the call, or what was said for it would be gone."""
    engine = create_engine(make_database("sqlite").sqlalchemy)
    with Session(engine) as session:
        begin(session)
        with pytest.raises(ConfigurationError, match=r"a block began it .*session.commit\(\) or session.rollback\(\)"):
            distributed_lockable(key="order", until="commit", database=session)(lambda: None)()
        assert session.in_transaction()
    engine.dispose()


@pytest.fixture
def users(make_database: Callable[..., Database]) -> Iterator[Engine]:
    """A database with an empty table of users."""
    engine = create_engine(make_database("sqlite").sqlalchemy)
    as_advised(engine)
    Base.metadata.create_all(engine)
    yield engine
    engine.dispose()


@pytest.mark.parametrize(
    ("mode", "refused"),
    [("conditional_savepoint", True), ("rollback_only", True), ("control_fully", True), ("create_savepoint", False)],
)
def test_a_transaction_that_the_session_has_joined_is_not_ended(
    memory: None, users: Engine, mode: Any, refused: bool
) -> None:
    """The rollback of what the session had read undid what had been done before on its connection."""
    with users.begin() as connection:
        connection.execute(insert(User).values(id=1))
        with Session(connection, join_transaction_mode=mode) as session:
            assert session.get(User, 1)
            pay = distributed_lockable(key="order", until="commit", database=session)(lambda: "paid")
            if refused:
                with pytest.raises(ConfigurationError, match="its connection was in it before"):
                    pay()
            else:
                assert pay() == "paid"
            assert connection.scalars(select(User.id)).all() == [1]
            if refused:
                session.commit()


def test_of_two_sessions_on_one_connection_each_sees_what_a_rollback_undoes(memory: None, users: Engine) -> None:
    """It was counted for the one that had come last, also when that was over."""
    with users.begin() as connection:
        options: Any = {"bind": connection, "join_transaction_mode": "create_savepoint"}
        with Session(**options) as first:
            first.execute(select(User)).all()
            with Session(**options) as second:
                second.execute(select(User)).all()
            assert not has_changes(first)
            first.execute(insert(User).values(id=1))
            assert has_changes(first)
            with Session(**options) as second:
                second.execute(select(User)).all()
                assert not has_changes(second)


def test_what_was_read_before_the_lock_is_read_anew_inside_of_it(
    memory: None, make_database: Callable[..., Database]
) -> None:
    """Also by the key. Else the function decides by a state that the holder before it has changed."""
    engine = create_engine(make_database("sqlite").sqlalchemy)
    Base.metadata.create_all(engine)
    sessions = sessionmaker(engine)
    with sessions.begin() as session:
        session.add(User(id=1))
    with sessions() as session:
        user = session.get_one(User, 1)

        def key() -> str:
            state = user.state
            with engine.begin() as others:  # as the holder before us
                others.execute(text("UPDATE users SET state = 'paid'"))
            return f"user:{state}"

        @distributed_lockable(key=key, until="commit", database=session)
        def pay() -> str:
            return user.state

        assert pay() == "paid"
    engine.dispose()


# Who has begun it × the order of the decorators × what decorates ------------------------------------------------------


def loads_the_user(db: Any) -> None:
    """Flask-Login does, and nobody else."""


def reads_first(db: Any) -> None:
    @db.app.before_request
    def read() -> None:
        db.session.scalars(select(Entry)).all()


def writes_first(db: Any) -> None:
    @db.app.before_request
    def write() -> None:
        flush(db)


def commits_first(db: Any) -> None:
    @db.app.before_request
    def write() -> None:
        flush(db)
        db.session.commit()


def shares_a_session(db: Any) -> None:
    """A test's fixture: the session is on a connection whose transaction the fixture rolls back."""
    connection = db.connection = db.engine.connect()
    connection.begin()
    db.session.remove()
    db.session.configure(bind=connection, binds={}, join_transaction_mode="create_savepoint")
    flush(db)
    db.session.commit()


lockable = distributed_lockable(key="order", until="commit")
done_once = once(key="order", until="commit", keep=60)
ORDERS: dict[str, Callable[[View], View]] = {
    "lock below": lambda view: login_required(lockable(view)),
    "lock above": lambda view: lockable(login_required(view)),
    "once below": lambda view: login_required(done_once(view)),
    "once above": lambda view: done_once(login_required(view)),
    "a lock above once": lambda view: login_required(distributed_lockable(key="stock")(done_once(view))),
}


@pytest.mark.parametrize("decorate", ORDERS.values(), ids=ORDERS)
@pytest.mark.parametrize("begin", [loads_the_user, reads_first, commits_first, writes_first, shares_a_session])
def test_a_view_for_those_who_are_logged_in(db: Any, begin: Any, decorate: Callable[[View], View]) -> None:
    """Flask-Login reads the user from the database in front of it: each call was a 500, whatever one did about it."""
    runs: list[int] = []

    def pay() -> str:
        runs.append(1)
        db.session.add(Entry(id=-len(runs)))
        return "paid"

    db.app.add_url_rule("/pay", "pay", decorate(pay), methods=["POST"])
    begin(db)
    client = db.app.test_client()
    client.get("/in")
    if begin is writes_first:  # nobody ends that for them: it would be undone, or done before the lock
        with pytest.raises((ConfigurationError, OpenTransactionWarning)):
            client.post("/pay")
        assert not runs
        return
    answers = [client.post("/pay") for _ in range(2)]
    assert [answer.text for answer in answers] == ["paid", "paid"]
    replayed = [answer.headers.get("Idempotency-Replayed") for answer in answers]
    is_once = decorate not in (ORDERS["lock below"], ORDERS["lock above"])
    assert replayed == [None, "true" if is_once else None]
    known = db.session.scalars(select(Entry.id).where(Entry.id < 0).order_by(-Entry.id)).all()
    assert known == ([-1] if is_once else [-1, -2])
