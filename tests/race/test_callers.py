"""What may race: views of each kind, commands, tasks, clients that are logged in; and what is refused."""

from __future__ import annotations

import itertools
import re
import threading
import unittest
from collections import deque
from typing import Any

import pytest
from celery import Celery
from django.contrib.auth.models import User
from django.core.management import call_command
from django.core.management.base import BaseCommand
from django.db import connection, transaction
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.test import Client, TestCase, TransactionTestCase
from django.urls import path
from django.views import View
from rest_framework.decorators import api_view
from rest_framework.request import Request
from rest_framework.response import Response

from distlock_web import distributed_lockable, lock
from distlock_web.testing import hold_lock
from distlock_web.testing import race as race_module
from distlock_web.testing.race import Race, RaceRefused
from distlock_web.testing.race.at_django import _not_of_tests
from distlock_web.testing.race.databases import RacedTable
from distlock_web.testing.race.stops import Watch
from tests.support.databases import Database
from tests.support.race_tables import Member, Sale, Stock, Tag

pytestmark = [pytest.mark.urls(__name__)]
ON_SQLITE = pytest.mark.parametrize("database", ["sqlite"], indirect=True)


def buy() -> bool:
    stock = Stock.objects.get(pk=7)
    if stock.left < 1:
        return False
    stock.left -= 1
    stock.save()
    return True


def function_view(request: HttpRequest) -> HttpResponse:
    return HttpResponse("sold", status=201) if buy() else HttpResponse("sold out", status=409)


class ClassView(View):
    def post(self, request: HttpRequest) -> HttpResponse:
        return function_view(request)


@api_view(["POST"])
def rest_view(request: Request) -> Response:
    return Response({"sold": buy()}, status=201)


async def async_view(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


def failing(request: HttpRequest) -> HttpResponse:
    if not buy():
        raise LookupError("sold out")
    return HttpResponse(status=201)


def with_an_id(request: HttpRequest) -> JsonResponse:
    with transaction.atomic():
        if Sale.objects.count() == 0:
            sale = Sale.objects.create(stock_id=7)
            return JsonResponse({"id": sale.pk, "thread": threading.get_ident()}, status=201)
    return JsonResponse({"id": None, "thread": 0}, status=409)


def asks_who(request: HttpRequest) -> HttpResponse:
    return HttpResponse(f"{request.user} {buy()}")


def fails_first(request: HttpRequest) -> HttpResponse:
    for _ in range(2):
        Stock.objects.filter(pk=8).exists()
    raise LookupError("always")


urlpatterns = [
    path("fails_first", fails_first),
    path("function", function_view),
    path("class", ClassView.as_view()),
    path("rest", rest_view),
    path("async", async_view),
    path("failing", failing),
    path("with_an_id", with_an_id),
    path("who", asks_who),
]


def one() -> None:
    Stock.objects.create(pk=7, left=1)


def two() -> None:
    Stock.objects.create(pk=7, left=2)


def left() -> int:
    return Stock.objects.get(pk=7).left


@ON_SQLITE
@pytest.mark.parametrize("url", ["/function", "/class", "/rest"])
def test_views_of_each_kind(shop: Database, race: Race, url: str) -> None:
    outcome = race(lambda client: client.post(url), callers=2, setup=one, observe=lambda: Stock.objects.get(pk=7).left)
    assert outcome.is_race
    assert outcome.observed == 0
    assert [answer.status for answer in outcome.answers] == [201, 201]  # type: ignore[attr-defined]
    with pytest.raises(AssertionError, match=r"left=0"):
        outcome.assert_as_one_after_the_other()


@ON_SQLITE
def test_callers_may_differ_and_be_three(shop: Database, race: Race) -> None:
    def deliver() -> None:
        stock = Stock.objects.get(pk=7)
        stock.left += 5
        stock.save()

    assert race(buy, deliver, setup=one, observe=left).is_race
    found = race(buy, deliver, buy, setup=one, observe=left)
    assert found.is_race
    assert set(found.order or "") == set("ABC")


@ON_SQLITE
def test_a_command_and_a_task(shop: Database, race: Race) -> None:
    class Buy(BaseCommand):
        def handle(self, *args: Any, **options: Any) -> None:
            buy()

    app = Celery(broker="memory://", set_as_current=False)
    app.conf.task_always_eager = True
    task = app.task(buy, name="buy")
    found = race(lambda: call_command(Buy()), lambda: task.delay().get(), setup=two, observe=left)
    assert found.is_race


@ON_SQLITE
def test_an_error_is_an_answer_and_each_client_raises_its_own(shop: Database, race: Race) -> None:
    outcome = race(lambda client: client.post("/failing"), callers=2, setup=one)
    assert "(201, 201)" in str(outcome)
    assert "(201, LookupError)" in str(outcome)


@ON_SQLITE
def test_a_unique_column_that_one_of_them_violates(shop: Database, race: Race) -> None:
    def join() -> None:
        if not Member.objects.filter(email="ann@example.org").exists():
            Member.objects.create(email="ann@example.org", name="ann")

    report = str(race(join, callers=2, observe=lambda: Member.objects.count()))
    assert report.startswith("Not as one after the other: (IntegrityError, None), count=1.")
    assert "UNIQUE constraint failed" in report
    assert "catch the IntegrityError" in report
    assert "no row" in report


@ON_SQLITE
def test_three_columns_are_narrow(shop: Database, race: Race) -> None:
    def rename() -> None:
        member = Member.objects.get(pk=1)
        member.name += "!"
        member.save()

    outcome = race(rename, callers=3, setup=lambda: Member.objects.create(pk=1, name="a", email="ann@example.org"))
    assert not outcome.is_race  # nobody looks
    report = str(
        race(
            rename,
            callers=3,
            setup=lambda: Member.objects.create(pk=1, name="a", email="ann@example.org"),
            observe=lambda: Member.objects.get(pk=1).name,
        )
    )
    assert re.search(r"UPDATE race_shop_member S.*… WHERE id = 1 ", report), report


@ON_SQLITE
def test_what_differs_by_itself_has_to_be_ignored(shop: Database, race: Race) -> None:
    def call(client: Client) -> Any:
        return client.post("/with_an_id")

    numbers = itertools.count()
    with pytest.raises(RaceRefused, match="ignore="):
        race(lambda client: JsonResponse({"at": next(numbers), "sold": buy()}), callers=2, setup=one)
    outcome = race(call, callers=2, setup=one, ignore=["thread"])
    assert not outcome.is_race  # and the ids begin anew each time


@ON_SQLITE
def test_the_rows_of_before_are_put_back(shop: Database, race: Race) -> None:
    before = Stock.objects.create(pk=1, left=3)
    member = Member.objects.create(name="ann")
    tag = Tag.objects.create(name="red")
    members = Tag.members.through.objects
    members.create(tag=tag, member=member)

    def change() -> None:
        Stock.objects.filter(pk=1).update(left=9)
        Sale.objects.create(stock=before)
        other = Tag.objects.create(name="blue")
        members.create(tag=other, member=member)
        members.filter(tag=tag).delete()
        Member.objects.filter(name="ann").update(name="eve")

    race(change, buy, setup=one, limit=6)
    assert list(Stock.objects.values_list("pk", "left")) == [(1, 3)]
    assert list(Member.objects.values_list("name", flat=True)) == ["ann"]
    assert list(members.values_list("tag_id", "member_id")) == [(tag.pk, member.pk)]
    assert not Sale.objects.exists()


def test_the_rows_of_before_are_put_back_on_each_database(shop: Database, race: Race) -> None:
    before = Stock.objects.create(pk=1, left=3)
    kept = Sale.objects.create(stock=before)
    sales = []

    def change() -> None:
        Stock.objects.filter(pk=1).update(left=9)
        sales.append(Sale.objects.create(stock=before).pk)
        Sale.objects.filter(pk=kept.pk).delete()

    race(change, change, limit=2)
    assert list(Stock.objects.values_list("pk", "left")) == [(1, 3)]
    assert list(Sale.objects.values_list("pk", flat=True)) == [kept.pk]
    assert len(set(sales)) == 2  # ids that begin anew: what was answered with one can be compared


def test_rows_that_have_swapped_a_unique_value_are_put_back(shop: Database, race: Race) -> None:
    Member.objects.create(pk=1, name="ann", email="a@example.org")
    Member.objects.create(pk=2, name="bob", email="b@example.org")

    def swap() -> None:
        with transaction.atomic():
            for pk, email in ((1, None), (2, "a@example.org"), (1, "b@example.org")):
                Member.objects.filter(pk=pk).update(email=email)

    race(swap, swap, limit=2)
    assert list(Member.objects.order_by("pk").values_list("pk", "email")) == [
        (1, "a@example.org"),
        (2, "b@example.org"),
    ]


@ON_SQLITE
def test_rows_are_put_back_once_more_after_ctrl_c(shop: Database, race: Race, monkeypatch: pytest.MonkeyPatch) -> None:
    pressed: list[int] = []

    def restoring(table: RacedTable) -> list[str]:
        if not pressed:
            pressed.append(1)
            raise KeyboardInterrupt
        return before(table)

    before = RacedTable.restoring
    monkeypatch.setattr(RacedTable, "restoring", restoring)
    with pytest.raises(KeyboardInterrupt):
        race(buy, callers=2, setup=one)
    assert not Stock.objects.exists()


def test_each_database_is_put_back_whatever_another_one_says() -> None:
    restored = []

    class Fails:
        def restore(self) -> None:
            restored.append(self)
            raise RaceRefused("race: the rows cannot be put back.")

    watch = Watch()
    watch.databases = {("a",): Fails(), ("b",): Fails()}  # type: ignore[dict-item]
    with pytest.raises(RaceRefused):
        watch.restore()
    assert len(restored) == 2


@ON_SQLITE
def test_tables_in_other_letters_are_the_same(shop: Database, race: Race) -> None:
    Stock.objects.create(pk=7, left=1)

    def change() -> None:
        with connection.cursor() as cursor:
            cursor.execute("UPDATE race_shop_stock SET left = 5 WHERE id = 7".replace("left", '"left"'))
            cursor.execute("UPDATE RACE_SHOP_STOCK SET LEFT = 6 WHERE id = 7".replace("LEFT", '"left"'))

    race(change, callers=2, limit=2)
    assert left() == 1


@pytest.mark.parametrize("database", ["mariadb"], indirect=True)
def test_what_a_delete_with_a_join_takes_comes_back(shop: Database, race: Race) -> None:
    sale = Sale.objects.create(stock=Stock.objects.create(pk=1, left=3))
    race(lambda: Sale.objects.filter(stock__left=3).delete(), callers=2, limit=2)
    assert Sale.objects.get().pk == sale.pk


@pytest.mark.parametrize("how", ["for", "fetchall"])
@ON_SQLITE
def test_rows_are_counted_for_each_statement_of_a_cursor(shop: Database, race: Race, how: str) -> None:
    def read_twice() -> None:
        with connection.cursor() as cursor:
            for _ in range(2):
                cursor.execute('SELECT "left" FROM race_shop_stock WHERE id = 7')
                rows = list(iter(cursor)) if how == "for" else cursor.fetchall()
            cursor.execute('UPDATE race_shop_stock SET "left" = %s WHERE id = 7', [rows[0][0] - 1])

    report = str(race(read_twice, callers=2, setup=two, observe=left))
    assert report.count("left=2") >= 4, report
    assert "rows" not in report
    assert "no row" not in report


@ON_SQLITE
def test_two_callers_may_share_a_client(shop: Database, race: Race, client: Client) -> None:
    for callers in (2, 3):
        outcome = race(lambda: client.post("/fails_first"), callers=callers, setup=one, limit=10)
        assert not outcome.is_race, outcome


@ON_SQLITE
def test_what_was_answered_is_kept_as_it_was(shop: Database, race: Race) -> None:
    """A value that each order changes further is another one in each."""
    seen: deque[bool] = deque(maxlen=2)
    outcome = race(lambda: seen.append(buy()), callers=2, setup=one, observe=lambda: seen)
    assert outcome.is_race


# What is refused ------------------------------------------------------------------------------------------------------


@ON_SQLITE
def test_a_database_that_no_test_runner_has_made_is_refused(
    shop: Database, race: Race, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is written: what others write meanwhile would be put back with it."""
    settings = connection.settings_dict
    for name, test, taken in (
        ("/srv/shop.sqlite3", None, False),
        ("/srv/shop", "/srv/shop.tests", False),
        ("/srv/shop.tests", "/srv/shop.tests", True),
        ("/srv/shop_1.tests", "/srv/shop.tests", True),
        ("/srv/test_shop_gw0", None, True),
        (":memory:", None, True),
    ):
        monkeypatch.setitem(settings, "NAME", name)
        monkeypatch.setitem(settings, "TEST", {"NAME": test})
        assert (not _not_of_tests(connection)) is taken, name
    monkeypatch.setitem(settings, "NAME", "/srv/shop.sqlite3")
    with pytest.raises(RaceRefused, match="without what others write meanwhile"):
        race(buy, callers=2, setup=one)
    assert not Stock.objects.exists()


@ON_SQLITE
def test_async_views_and_functions_are_refused(shop: Database, race: Race) -> None:
    async def coroutine() -> None:
        pass

    for call in (coroutine, lambda: coroutine(), lambda client: client.post("/async")):
        with pytest.raises(RaceRefused, match="async code is not supported"):
            race(call, callers=2, setup=one)


@pytest.mark.django_db
def test_a_transaction_around_the_test_is_refused(race: Race) -> None:
    with pytest.raises(RaceRefused, match=r"django_db\(transaction=True\)"):
        race(buy, callers=2)


@pytest.mark.django_db(transaction=True)
def test_an_sqlite_in_memory_is_refused(race: Race) -> None:
    with pytest.raises(RaceRefused, match="SQLite in memory"):
        race(lambda: User.objects.count(), callers=2)


@ON_SQLITE
def test_calls_that_cannot_be_raced_are_refused(shop: Database, race: Race) -> None:
    for calls, options in (
        ([buy], {}),
        ([buy, buy], {"callers": 3}),
        ([buy] * 6, {}),
        ([buy, buy], {"order": "ABC"}),
        ([buy, buy], {"order": ""}),
        ([buy, buy], {"order": "A B-1"}),
        ([lambda: None, lambda: None], {}),
        ([lambda a, b: None, buy], {}),
    ):
        with pytest.raises(RaceRefused, match=r"^race: "):
            race(*calls, setup=one, **options)


# Steps, and locks of ours ---------------------------------------------------------------------------------------------


@ON_SQLITE
def test_what_no_statement_shows_is_seen_with_a_step(shop: Database, race: Race) -> None:
    cache = {"left": 1}

    def take() -> bool:
        seen = cache["left"]
        race_module.step("read the cache")
        if seen:
            cache["left"] = seen - 1
        race.step("wrote it")
        return bool(seen)

    outcome = race(take, callers=2, setup=lambda: cache.update(left=1), observe=lambda: cache["left"])
    assert outcome.is_race
    assert "read the cache" in str(outcome)
    race_module.step("outside of a race: nothing")


@ON_SQLITE
def test_locks_in_opposite_orders_wait_for_each_other(shop: Database, race: Race) -> None:
    def both(first: str, second: str) -> str:
        with lock(first, wait=30), lock(second, wait=30):
            return "done"

    outcome = race(lambda: both("a", "b"), lambda: both("b", "a"))
    # One of them gives up at once instead of after 30 s. It was told so: as if it had not called.
    assert not outcome.is_race
    forever = race(lambda: both("a", "b"), lambda: lock_without_end("b", "a"))
    assert not forever.is_race


def lock_without_end(first: str, second: str) -> str:
    with lock(first, wait=None), lock(second, wait=None):
        return "done"


@ON_SQLITE
def test_locks_that_are_waited_for_without_end_are_a_race_that_ends(shop: Database, race: Race) -> None:
    outcome = race(lambda: lock_without_end("a", "b"), lambda: lock_without_end("b", "a"))
    assert outcome.is_race
    assert "wait for each other" in str(outcome)
    with lock("a"), lock("b"):
        pass  # nothing is held still


@ON_SQLITE
def test_a_lock_that_somebody_else_holds(shop: Database, race: Race) -> None:
    @distributed_lockable(key="it")
    def locked() -> None:
        buy()

    with hold_lock("it"):
        outcome = race(locked, callers=2, setup=one, observe=left)
    assert not outcome.is_race
    assert outcome.observed == 1


# unittest -------------------------------------------------------------------------------------------------------------


@ON_SQLITE
def test_unittest_has_it_too(shop: Database) -> None:
    class Transactional(TransactionTestCase):
        def _fixture_teardown(self) -> None:  # the tables are the fixture's
            pass

        def runTest(self) -> None:
            outcome = Race()(buy, callers=2, setup=one, observe=left)
            with pytest.raises(AssertionError):
                outcome.assert_as_one_after_the_other()

    class InTransaction(TestCase):
        def runTest(self) -> None:
            Race()(buy, callers=2, setup=one, observe=left)

    result = unittest.TestResult()
    unittest.TestSuite([Transactional()]).run(result)
    assert result.wasSuccessful(), result
    unittest.TestSuite([InTransaction()]).run(result)
    [(_, trace)] = result.errors
    assert "TransactionTestCase in place of TestCase" in trace
