"""The orders: which are tried, that each is tried once, that they are the same each time; and how they end."""

from __future__ import annotations

import io
import re
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from itertools import count, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.models import F

from distlock_web import LockBusy, distributed_lockable, lock
from distlock_web.testing.race import Race, RaceRefused, outcomes, run, search, statements, step
from distlock_web.testing.race.scheduler import Order
from tests.support.databases import Database
from tests.support.race_tables import Sale, Stock
from tests.support.waiting import eventually

ON_SQLITE = pytest.mark.parametrize("database", ["sqlite"], indirect=True)
ON_SERVERS = pytest.mark.parametrize("database", ["postgres", "mariadb"], indirect=True)


def stepping(steps: int) -> Callable[[], None]:
    def call() -> None:
        for number in range(steps):
            step(str(number))

    return call


def orders(calls: list[Callable[[], None]], seed: int, limit: int = 10_000) -> list[str]:
    found = search.Search(seed)
    tried: list[str] = []
    while len(tried) < limit and (following := found.next()) is not None:
        order = Order(calls, following[1]).run()
        found.seen(following[1], order.choices)
        tried.append(order.letters)
    return tried


@pytest.mark.parametrize("lengths", [(2, 2), (3, 2), (1, 1, 2)])
def test_every_order_is_tried_once(lengths: tuple[int, ...]) -> None:
    tried = orders([stepping(length) for length in lengths], seed=0)
    assert len(tried) == len(set(tried)) == search.count([length + 1 for length in lengths])  # and where each begins


def test_few_preemptions_come_first_and_the_seed_names_the_rest() -> None:
    calls = [stepping(5), stepping(5)]
    tried = orders(calls, seed=1, limit=120)
    assert tried[:2] == ["AAAAAABBBBBB", "BBBBBBAAAAAA"]
    switches = [sum(one != other for one, other in pairwise(each)) for each in tried]
    few = sum(each <= 3 for each in switches)
    assert max(switches[: few // 2]) <= 3 < max(switches)
    assert tried == orders(calls, seed=1, limit=120)
    assert tried != orders(calls, seed=2, limit=120)
    assert len(set(tried)) == 120


def buy() -> bool:
    stock = Stock.objects.get(pk=7)
    if stock.left < 1:
        return False
    stock.left -= 1
    stock.save()
    return True


def one() -> None:
    Stock.objects.create(pk=7, left=1)


def left() -> int:
    return Stock.objects.get(pk=7).left


# The report -----------------------------------------------------------------------------------------------------------


def test_the_report(shop: Database, race: Race) -> None:
    outcome = race(buy, callers=2, setup=one, observe=lambda: Stock.objects.get(pk=7).left)
    read = buy.__code__.co_firstlineno + 1
    words = str(outcome).splitlines()
    assert words[0] == (
        "Not as one after the other: (True, True), left=0. "
        "One after the other: (True, False), left=0 or (False, True), left=0."
    )
    select = f"SELECT … FROM race_shop_stock WHERE id = 7  test_orders.py:{read}  left=1"
    update = f"UPDATE race_shop_stock SET left = 0 WHERE id = 7  test_orders.py:{read + 4}"
    assert [line.split(maxsplit=1)[1] for line in words[2:6]] == [select, select, update, update]
    columns = [line.index("SELECT" if "SELECT" in line else "UPDATE") for line in words[2:6]]
    assert columns[0] == columns[3] < columns[1] == columns[2]
    lock = 'A lock on this view: @distributed_lockable(key="…")'
    cure = f"{lock}." if shop.kind == "sqlite" else f"{lock}, or select_for_update() at test_orders.py:{read}."
    assert words[6] == f'Order 3 of about 6. Again: race(…, order="ABBA").   {cure}'
    assert str(race(buy, callers=2, setup=one, observe=lambda: Stock.objects.get(pk=7).left)) == str(outcome)
    again = race(buy, callers=2, setup=one, observe=lambda: Stock.objects.get(pk=7).left, order="ABBA")
    assert str(again).splitlines()[:6] == words[:6]
    assert not race(buy, callers=2, setup=one, observe=left, order="AABB").is_race
    assert race(buy, callers=2, setup=one, observe=left, order="A1 B2 A").is_race


@ON_SERVERS
def test_who_waits_for_a_row_is_passed_over_and_shown(
    shop: Database, race: Race, monkeypatch: pytest.MonkeyPatch
) -> None:
    def take() -> None:
        with transaction.atomic():
            Stock.objects.select_for_update().get(pk=7)
            Stock.objects.filter(pk=7).update(left=F("left") - 1)

    seen = []

    class Seen(Order):
        def run(self) -> Order:
            seen.append(super().run())
            return self

    monkeypatch.setattr(run, "Order", Seen)
    assert not race(take, callers=2, setup=one, observe=left).is_race
    orders = {order.letters: [step.note for step in order.steps] for order in seen}
    assert orders["ABAABBB"] == ["", "waits", "", "", "", "", ""]  # B's statement, A's rest, then B goes on


@ON_SERVERS
def test_a_deadlock_is_an_outcome(shop: Database, race: Race) -> None:
    def both(first: int, second: int) -> None:
        with transaction.atomic():
            Stock.objects.filter(pk=first).update(left=F("left") + 1)
            Stock.objects.filter(pk=second).update(left=F("left") + 1)

    def setup() -> None:
        Stock.objects.create(pk=1, left=0)
        Stock.objects.create(pk=2, left=0)

    outcome = race(lambda: both(1, 2), lambda: both(2, 1), setup=setup)
    assert "deadlock" in str(outcome).lower()
    assert "waits" in str(outcome)
    assert "OperationalError" in str(outcome)
    assert "in one order" in str(outcome)


@ON_SQLITE
def test_a_deferred_transaction_of_sqlite_that_cannot_write_any_more_is_one(
    shop: Database, race: Race, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(connection.settings_dict, "OPTIONS", {"timeout": 3000})  # which nobody waits

    def take() -> None:
        with transaction.atomic():
            buy()

    @distributed_lockable(key="it", wait=5)
    def locked() -> None:
        take()

    outcome = race(take, callers=2, setup=one, observe=left)
    assert "database is locked" in str(outcome)
    assert not race(locked, callers=2, setup=one, observe=left).is_race


@ON_SERVERS
def test_a_row_and_a_lock_of_ours_in_opposite_orders(shop: Database, race: Race) -> None:
    def row_first() -> str:
        with transaction.atomic():
            Stock.objects.select_for_update().get(pk=7)
            with lock("it", wait=None):
                return "done"

    def lock_first() -> str:
        with lock("it", wait=None), transaction.atomic():
            Stock.objects.select_for_update().get(pk=7)
            return "done"

    outcome = race(row_first, lock_first, setup=one)
    assert outcome.is_race
    assert "wait for each other" in str(outcome)
    race(lambda: buy(), callers=2, setup=one, limit=2)  # nothing is left behind


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("terminal", [True, False])
def test_a_bar_is_drawn_on_a_terminal_after_two_seconds(monkeypatch: pytest.MonkeyPatch, terminal: bool) -> None:
    now = iter([0.0, 1.0, 3.0, 3.1, 4.0])
    monkeypatch.setattr(run, "time", SimpleNamespace(monotonic=lambda: next(now)))
    monkeypatch.setattr("sys.stderr", written := Terminal() if terminal else io.StringIO())
    with run._Progress(nullcontext) as progress:
        for tried in (1, 2, 3, 4):
            progress.show(tried, 8)
    drawn = re.findall(r"(\d) of 8 orders", written.getvalue())
    assert drawn == (["2", "4"] if terminal else [])
    assert written.getvalue().endswith("\033[K") is terminal


# No false alarm -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_what_is_right_is_never_reported(shop: Database, race: Race) -> None:
    """Also in orders with many switches, of a transaction of several statements."""

    def take() -> str:
        with transaction.atomic():
            stock = Stock.objects.select_for_update().get(pk=7)
            if stock.left < 1:
                return "sold out"
            Stock.objects.filter(pk=7).update(left=F("left") - 1)
            Sale.objects.create(stock=stock)
            return "sold"

    calls = [take] * 2 if shop.kind != "sqlite" else [distributed_lockable(key="it", wait=5)(lambda: take())] * 2
    outcome = race(*calls, setup=one, observe=left, limit=60, seconds=30)
    outcome.assert_as_one_after_the_other()


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["F", "for update", "ours"])
def test_what_is_right_is_never_reported_in_2000_orders(shop: Database, race: Race, kind: str) -> None:
    def at_once() -> int:
        return sum(Stock.objects.filter(pk=pk, left__gte=1).update(left=F("left") - 1) for pk in (7, 7, 7, 7, 7))

    def for_update() -> None:
        for _ in range(3):
            with transaction.atomic():
                stock = Stock.objects.select_for_update().get(pk=7)
                stock.left += 1
                stock.save()

    def ours() -> None:
        for _ in range(3):
            with lock("it", wait=60):
                stock = Stock.objects.get(pk=7)
                stock.left += 1
                stock.save()

    def many() -> None:
        at_once()

    call = {"F": many, "for update": for_update, "ours": ours}[kind]
    outcome = race(call, callers=2, setup=one, observe=left, limit=2000, seconds=800)
    outcome.assert_as_one_after_the_other()
    assert outcome.tried == 2000 or outcome.complete


# Callers that poll, or try again -----------------------------------------------------------------------------------


@pytest.mark.slow
@ON_SQLITE
def test_who_polls_for_what_the_other_does_lets_it_go_on(shop: Database, race: Race) -> None:
    def work() -> None:
        with lock("it", wait=0):
            Stock.objects.filter(pk=7).update(left=0)

    def poll() -> None:
        while Stock.objects.get(pk=7).left:
            time.sleep(0.001)

    outcome = race(work, poll, setup=one, observe=left, limit=40, seconds=60)
    assert not outcome.is_race, outcome
    assert outcome.tried > 5


@ON_SQLITE
def test_who_tries_again_some_times_lets_the_other_go_on(shop: Database, race: Race) -> None:
    def take() -> str:
        for _ in range(5):
            if Stock.objects.filter(pk=7, left=1).update(left=0):
                Sale.objects.create(stock_id=7)
                Stock.objects.filter(pk=7).update(left=1)
                return "bought"
        return "gave up"

    outcome = race(take, callers=2, setup=one, observe=left, limit=40)
    assert not outcome.is_race, outcome
    assert outcome.tried > 5


@pytest.mark.slow
@ON_SQLITE
def test_who_polls_for_what_nobody_does_is_ended(shop: Database, race: Race) -> None:
    def poll() -> None:
        while Stock.objects.get(pk=7).left:
            pass

    with pytest.raises(RaceRefused, match=r"A has done the same again and again.* SELECT … FROM race_shop_stock"):
        race(poll, buy_other, setup=one, hang=3.0, seconds=60)
    assert_nothing_is_left(shop)


def buy_other() -> None:
    Stock.objects.filter(pk=8).update(left=0)


def test_a_loop_of_the_same_is_a_serial_order_still() -> None:
    def loop() -> None:
        for _ in range(20):
            step("the same")

    order = Order([loop, loop]).run()
    assert order.letters == "A" * 21 + "B" * 21


@ON_SQLITE
def test_what_a_serial_order_gives_is_no_race_even_if_somebody_was_refused(shop: Database, race: Race) -> None:
    """B finds the first slot busy and takes the second: both work, as one after the other."""

    def work() -> None:
        for slot in ("first", "second"):
            with suppress(LockBusy), lock(slot, wait=0):
                Sale.objects.create(stock_id=7)
                return

    outcome = race(work, callers=2, setup=one, observe=lambda: Sale.objects.count(), limit=40)
    assert not outcome.is_race, outcome
    assert outcome.tried > 5


# The end --------------------------------------------------------------------------------------------------------------


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("race-")]


def connections(shop: Database) -> int:
    """Of callers and of ours, beside the test's own."""
    if shop.kind == "sqlite":
        return 0
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT count(*) FROM pg_stat_activity WHERE datname = '{shop.name}'"
            if shop.kind == "postgres"
            else f"SELECT count(*) FROM information_schema.processlist WHERE db = '{shop.name}'"
        )
        return int(cursor.fetchone()[0]) - 1


def assert_nothing_is_left(shop: Database) -> None:
    assert threads() == []
    assert not Stock.objects.exists()
    eventually(lambda: connections(shop) == 0, "no connection is left")


@pytest.mark.slow
@ON_SERVERS
def test_no_connection_and_no_thread_stays(shop: Database, race: Race) -> None:
    def failing() -> None:
        buy()
        raise LookupError

    assert race(failing, buy, setup=one, observe=left).tried >= 2
    assert_nothing_is_left(shop)


def test_ctrl_c_leaves_nothing(shop: Database, race: Race) -> None:
    def interrupted() -> bool:
        with transaction.atomic():
            buy()
            if len(tries) == 3:
                raise KeyboardInterrupt  # in a caller: an answer as others
        return True

    tries: list[int] = []
    race(interrupted, callers=2, setup=lambda: (tries.append(1), one()), observe=left, limit=4)
    assert_nothing_is_left(shop)

    stopped = count()

    class Interrupted(Order):
        def _until_it_stops(self, caller: Any) -> None:
            if next(stopped) == 6:  # in the test's thread, in the middle of an order
                raise KeyboardInterrupt
            super()._until_it_stops(caller)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(run, "Order", Interrupted)
        race(interrupted, callers=2, setup=one, observe=left)
    assert_nothing_is_left(shop)


@pytest.mark.slow
@ON_SQLITE
def test_a_caller_that_hangs_is_ended_with_its_stack(shop: Database, race: Race) -> None:
    def hangs() -> None:
        buy()
        while True:
            time.sleep(0.001)

    with pytest.raises(RaceRefused, match="one after the other, A has not come back for 6 s") as refused:  # alone, too
        race(hangs, buy, setup=one, hang=6)
    assert "time.sleep(0.001)" in str(refused.value)
    assert_nothing_is_left(shop)


@pytest.mark.slow
def test_a_caller_that_sleeps_and_cannot_be_ended_keeps_no_row(
    shop: Database, race: Race, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("distlock_web.testing.race.scheduler.END", 0.5)
    awake = threading.Event()

    def sleeps() -> None:
        with transaction.atomic():
            buy()
            awake.wait()  # in C: no exception reaches it

    try:
        with pytest.raises(RaceRefused, match="A could not be ended") as refused:
            race(sleeps, buy, setup=one, hang=6)
        assert "awake.wait()" in str(refused.value)
        assert not Stock.objects.exists()
    finally:
        awake.set()
        eventually(lambda: threads() == [], "the thread ends when it can")
    assert_nothing_is_left(shop)


@pytest.mark.slow
@ON_SERVERS
def test_a_row_that_somebody_else_holds_ends_the_search(shop: Database, race: Race, monkeypatch: Any) -> None:
    monkeypatch.setattr("distlock_web.testing.race.scheduler.DEADLOCK", 0.5)
    Stock.objects.create(pk=8, left=1)
    other = connection.copy()
    other.set_autocommit(False)
    with other.cursor() as cursor:
        cursor.execute("SELECT * FROM race_shop_stock WHERE id = 8 FOR UPDATE")
    try:
        with pytest.raises(RaceRefused, match="cannot be put back"):
            race(lambda: Stock.objects.filter(pk=8).update(left=0), callers=2)
    finally:
        other.rollback()
        other.close()
    assert threads() == []
    assert Stock.objects.get(pk=8).left == 1


# The statements -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sql", "noticed", "table", "writes"),
    [
        ('SELECT "a"."b" FROM "a" WHERE 1', True, "a", False),
        ("SELECT 1", False, "", False),
        ("SELECT VERSION(), @@sql_mode", False, "", False),
        ("SELECT nextval('a_id_seq')", True, "", False),
        ("SELECT book(7)", True, "", False),
        ("(SELECT a.id FROM a) UNION (SELECT b.id FROM b)", True, "a", False),
        ("DELETE `a` FROM `a` INNER JOIN `b` ON (a.id = b.id)", True, "a", True),
        ("TRUNCATE TABLE a", True, "a", True),
        ('TRUNCATE "a", "b"', True, "a", True),
        ("INSERT a VALUES (1)", True, "a", True),
        ("INSERT IGNORE INTO a VALUES (1)", True, "a", True),
        ("INSERT INTO a VALUES (1) ON DUPLICATE KEY UPDATE b = 2", True, "a", True),
        ("WITH n AS (SELECT 1 FROM b FOR UPDATE SKIP LOCKED) UPDATE a SET c = 1", True, "a", True),
        ("WITH n AS (SELECT 1 FROM b FOR NO KEY UPDATE NOWAIT) UPDATE a SET c = 1", True, "a", True),
        ("SELECT pg_advisory_xact_lock(7)", True, "", False),
        ("/* route */ UPDATE `a` SET b = 1", True, "a", True),
        ('INSERT INTO "s"."a" (b) VALUES (1)', True, "s.a", True),
        ("INSERT OR IGNORE INTO a VALUES (1)", True, "a", True),
        ("REPLACE INTO a VALUES (1)", True, "a", True),
        ("DELETE FROM a", True, "a", True),
        ("WITH x AS (SELECT 1 FROM b) UPDATE a SET c = 1", True, "a", True),
        ("SELECT a.id FROM a FOR UPDATE", True, "a", False),
        ("SAVEPOINT x", False, "", False),
        ("ROLLBACK TO SAVEPOINT x", True, "", False),
        ("BEGIN", False, "", False),
        ("BEGIN IMMEDIATE", True, "", False),
        ("SET x = 1", False, "", False),
        ("COMMIT", True, "", False),
    ],
)
def test_what_others_can_notice(sql: str, noticed: bool, table: str, writes: bool) -> None:
    assert statements.is_noticed(sql) is noticed
    assert statements.table_of(sql) == table
    assert (statements.written(sql) is not None) is writes


@pytest.mark.parametrize("installed", [(), ("views",)])
def test_the_line_is_the_projects(tmp_path: Path, installed: tuple[str, ...]) -> None:
    """And not that of a package that wraps what sends the statement; also of a project that is installed."""

    def function(name: str, called: Callable[[], object]) -> Callable[[], object]:
        packages = "site-packages" if name in ("sentry_sdk", "tracer", *installed) else "shop"
        names: dict[str, Any] = {"called": called}
        exec(compile("call = lambda: called()", str(tmp_path / packages / name / f"{name}.py"), "exec"), names)
        call: Callable[[], object] = names["call"]
        return call

    inner = function("sentry_sdk", statements.users_line)
    view = function("views", inner if installed else function("tracer", inner))
    tries: Any = SimpleNamespace(_django=None, _frozen=outcomes.Frozen(()))
    assert run._Tries._call(tries, lambda: view(), (), None) == "views.py:1"
