"""Fenced rows through Django's ORM, on SQLite, PostgreSQL and MariaDB."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
from django.db import connection, connections, transaction
from django.test.utils import CaptureQueriesContext

from distlock_web import ConfigurationError, Lease, LeaseLost, StaleFence, configure, lock
from tests.support.databases import Database, Kind, django_alias
from tests.support.fenced_tables import TABLES, Book, Entry, Shelf, Stock, Warehouse

Elsewhere = Callable[[Callable[[], Any]], Future[Any]]

pytestmark = pytest.mark.usefixtures("tables")


@pytest.fixture
def stock() -> Stock:
    return Stock.objects.create(name="bicycle", count=10)


def fence_of_row(row: Any) -> int:
    return type(row).objects.values_list("fence", flat=True).get(pk=row.pk)


def statements(queries: CaptureQueriesContext) -> list[str]:
    """The first word of each, in order, without those that begin and end transactions."""
    words = [query["sql"].split()[0] for query in queries.captured_queries]
    return [word for word in words if word not in ("BEGIN", "COMMIT", "ROLLBACK", "SAVEPOINT", "RELEASE")]


# Reading -------------------------------------------------------------------------------------------------------------


def test_a_read_stamps_the_row_first(stock: Stock) -> None:
    with CaptureQueriesContext(connection) as queries:
        found = Stock.objects.fenced_get(5, pk=stock.pk)
    assert statements(queries) == ["UPDATE", "SELECT"]
    assert (found.fence, found.count, fence_of_row(stock)) == (5, 10, 5)
    assert Stock.objects.fenced_get(5, pk=stock.pk).fence == 5  # again: it is ours


def test_a_late_holder_cannot_read(stock: Stock) -> None:
    Stock.objects.fenced_get(7, pk=stock.pk)
    with pytest.raises(StaleFence, match=r"fencing.Stock \d+: a newer holder with the fence 7 .* this one has 5"):
        Stock.objects.fenced_get(5, pk=stock.pk)
    assert fence_of_row(stock) == 7


def test_a_read_by_other_fields(stock: Stock) -> None:
    Stock.objects.create(name="car")
    Stock.objects.create(name="car")
    assert Stock.objects.fenced_get(5, name="bicycle").pk == stock.pk
    with pytest.raises(Stock.DoesNotExist):
        Stock.objects.fenced_get(5, name="boat")
    with pytest.raises(Stock.DoesNotExist):
        Stock.objects.fenced_get(5, pk=0)
    with pytest.raises(Stock.MultipleObjectsReturned):
        Stock.objects.fenced_get(5, name="car")
    assert set(Stock.objects.exclude(pk=stock.pk).values_list("fence", flat=True)) == {0}


@pytest.mark.parametrize("of", [Stock.objects.values("name"), Stock.objects.values_list("name")], ids=["dict", "tuple"])
def test_what_is_no_object_is_refused_before_it_is_stamped(stock: Stock, of: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"fencing\.Stock: fenced_get returns an object.*values\(\)"):
        of.fenced_get(5, pk=stock.pk)
    assert fence_of_row(stock) == 0


def test_a_row_that_the_filter_leaves_out_is_not_stamped(stock: Stock) -> None:
    with pytest.raises(Stock.DoesNotExist):
        Stock.objects.filter(name="car").fenced_get(5, pk=stock.pk)
    assert fence_of_row(stock) == 0


@pytest.mark.parametrize("database", ["postgres", "mariadb"], indirect=True)  # SQLite has one writer: nobody waits
@pytest.mark.parametrize(
    "late",
    [
        lambda: Stock.objects.fenced_get(5, warehouse__name="north"),
        lambda: Stock.objects.filter(warehouse__name="north").fenced_update(5, count=0),
    ],
    ids=["get", "update"],
)
def test_a_newer_holder_is_seen_after_waiting_for_its_commit(
    stock: Stock, elsewhere: Elsewhere, late: Callable[[], Any]
) -> None:
    """Over a join, the fence's condition must not be in a subquery, which PostgreSQL evaluates before it waits."""
    stock.warehouse = Warehouse.objects.create(name="north")
    stock.save()
    Stock.objects.fenced_get(5, pk=stock.pk)
    with transaction.atomic():
        Stock.objects.fenced_get(7, pk=stock.pk)
        waiting = elsewhere(late)
        wait_for_a_blocked_statement()
    assert isinstance(waiting.exception(20), StaleFence)
    assert (Stock.objects.get().count, fence_of_row(stock)) == (10, 7)


def wait_for_a_blocked_statement() -> None:
    """Somebody waits in the database for a row of ours."""
    if connection.vendor == "postgresql":
        fresh = "SELECT pg_stat_clear_snapshot()"
        query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    else:
        fresh = "SELECT sleep(0.15)"  # InnoDB shows the same as before to who looks again within a tenth of a second
        query = "SELECT count(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'"
    with connection.cursor() as cursor:
        waiting = 0
        while not waiting:
            cursor.execute(fresh)
            cursor.execute(query)
            [waiting] = cursor.fetchone()


@pytest.mark.parametrize("database", ["postgres", "mariadb"], indirect=True)
def test_a_read_is_as_new_as_its_stamp(stock: Stock, elsewhere: Elsewhere) -> None:
    """Under a fence that was handed on the stamp changes nothing; InnoDB would then read from an older snapshot."""

    def change() -> None:
        found = Stock.objects.fenced_get(5, pk=stock.pk)
        found.count = 3
        found.fenced_save(5)

    Stock.objects.fenced_get(5, pk=stock.pk)
    if connection.vendor == "mysql":
        with connection.cursor() as cursor:
            cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    with transaction.atomic():
        assert Stock.objects.count() == 1  # here the snapshot is taken
        elsewhere(change).result(20)
        assert Stock.objects.fenced_get(5, pk=stock.pk).count == 3


# Saving --------------------------------------------------------------------------------------------------------------


def test_a_save_is_one_update(stock: Stock) -> None:
    found = Stock.objects.fenced_get(5, pk=stock.pk)
    found.count = 9
    with CaptureQueriesContext(connection) as queries:
        found.fenced_save(5)
    assert statements(queries) == ["UPDATE"]
    assert '"fence" = 5' in queries.captured_queries[-1]["sql"].partition("WHERE")[2].replace("`", '"')
    assert Stock.objects.get().count == 9


def test_the_hard_interleaving(stock: Stock) -> None:
    """A reads and pauses, B reads, A writes, B writes: A is refused, nothing of B's is lost."""
    a = Stock.objects.fenced_get(5, pk=stock.pk)
    b = Stock.objects.fenced_get(7, pk=stock.pk)
    a.count -= 1
    with pytest.raises(StaleFence, match="a newer holder with the fence 7"):
        a.fenced_save(5)
    assert Stock.objects.get().count == 10
    b.count -= 2
    b.fenced_save(7)
    assert (Stock.objects.get().count, fence_of_row(stock)) == (8, 7)


def test_a_refused_save_rolls_its_transaction_back(stock: Stock) -> None:
    other = Stock.objects.create(name="car")
    with pytest.raises(StaleFence), transaction.atomic():
        ours, late = Stock.objects.fenced_get(5, pk=other.pk), Stock.objects.fenced_get(5, pk=stock.pk)
        ours.fenced_save(5)
        Stock.objects.filter(pk=stock.pk).update(fence=7)
        try:
            late.fenced_save(5)
        finally:
            assert transaction.get_rollback()
    assert fence_of_row(other) == 0


def test_what_was_not_read_under_the_lock_is_not_written(stock: Stock) -> None:
    with pytest.raises(StaleFence, match="has the fence 0, not 5: it was not read with fenced_get"):
        stock.fenced_save(5)
    assert "fence" not in {name for name in vars(stock) if name.startswith("_required")}
    with pytest.raises(ConfigurationError, match="for rows that fenced_get has read"):
        Stock(name="new").fenced_save(5)


def test_a_row_that_is_gone(stock: Stock) -> None:
    found = Stock.objects.fenced_get(5, pk=stock.pk)
    Stock.objects.all().delete()
    with pytest.raises(StaleFence, match="is gone"):
        found.fenced_save(5)
    assert not Stock.objects.exists()


def test_the_same_values_again_are_not_late(stock: Stock) -> None:
    """MySQL counts changed rows unless it is asked to count those that match."""
    found = Stock.objects.fenced_get(5, pk=stock.pk)
    found.fenced_save(5, update_fields=["count"])
    found.fenced_save(5, update_fields=["count"])
    assert Stock.objects.filter(pk=stock.pk).fenced_update(5, count=10) == 1
    assert Stock.objects.filter(pk=stock.pk).fenced_update(5, count=10) == 1


def test_a_plain_save_leaves_the_fence_as_it_is(stock: Stock) -> None:
    """It would let a holder in again that is older than the last one."""
    old = Stock.objects.fenced_get(5, pk=stock.pk)
    Stock.objects.fenced_get(7, pk=stock.pk)
    old.name = "plain"
    old.save()
    assert (Stock.objects.get().name, fence_of_row(stock)) == ("plain", 7)
    old.save(update_fields=["fence"])
    assert fence_of_row(stock) == 7


# Updating ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fence", [4, 6])
def test_an_update_asks_for_exactly_its_fence(stock: Stock, fence: int) -> None:
    Stock.objects.fenced_get(5, pk=stock.pk)
    with pytest.raises(StaleFence, match=f"No matching row of fencing.Stock has the fence {fence}"):
        Stock.objects.fenced_update(fence, count=0)
    assert Stock.objects.get().count == 10


def test_an_update_over_a_join(stock: Stock) -> None:
    stock.warehouse = Warehouse.objects.create(name="north")
    stock.save()
    Stock.objects.fenced_get(5, pk=stock.pk)
    north = Stock.objects.filter(warehouse__name="north")
    assert north.fenced_update(5, count=1) == 1
    with pytest.raises(StaleFence):
        north.fenced_update(6, count=2)

    def stamp_in_between(execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        if sql.startswith("UPDATE"):
            execute(f"UPDATE {Stock._meta.db_table} SET fence = 7", None, False, context)
        return execute(sql, params, many, context)

    with pytest.raises(StaleFence), connection.execute_wrapper(stamp_in_between):
        north.fenced_update(5, count=2)
    assert Stock.objects.get().count == 1


# Deleting ------------------------------------------------------------------------------------------------------------


def test_a_late_holder_deletes_nothing(stock: Stock) -> None:
    ours = Stock.objects.fenced_get(5, pk=stock.pk)
    Stock.objects.fenced_get(7, pk=stock.pk)
    with pytest.raises(StaleFence):
        ours.delete()
    ours.refresh_from_db()
    with pytest.raises(StaleFence, match="a newer holder with the fence 7"):
        ours.delete()
    assert fence_of_row(stock) == 7


def test_who_is_not_late_deletes(stock: Stock) -> None:
    other = Stock.objects.create(name="bicycle")
    assert Stock.objects.fenced_get(5, pk=stock.pk).delete() == (1, {"fencing.Stock": 1})
    assert Stock.objects.get() == other


def test_a_delete_under_multi_table_inheritance() -> None:
    book = Book.objects.create(name="Emma", pages=474)
    ours = Book.objects.fenced_get(5, pk=book.pk)
    Book.objects.fenced_get(7, pk=book.pk)
    with pytest.raises(StaleFence):
        ours.delete()
    assert Book.objects.exists()
    Book.objects.filter(pk=book.pk).update(fence=5)
    ours.delete()
    assert not Stock.objects.exists()


@pytest.mark.parametrize("database", ["postgres", "mariadb"], indirect=True)
def test_a_delete_waits_for_a_newer_holders_commit(stock: Stock, elsewhere: Elsewhere) -> None:
    ours = Stock.objects.fenced_get(5, pk=stock.pk)
    with transaction.atomic():
        Stock.objects.fenced_get(7, pk=stock.pk)
        waiting = elsewhere(ours.delete)
        wait_for_a_blocked_statement()
    assert isinstance(waiting.exception(20), StaleFence)
    assert fence_of_row(stock) == 7


# Other models --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("update_fields", [None, ["pages"], ["count"], ["pages", "count"]])
def test_multi_table_inheritance(update_fields: list[str] | None) -> None:
    book = Book.objects.create(name="Emma", pages=474)
    found = Book.objects.fenced_get(5, pk=book.pk)
    found.pages, found.count = 475, 1
    found.fenced_save(5, update_fields=update_fields)
    Book.objects.fenced_get(7, pk=book.pk)
    found.pages, found.count = 0, 0
    with pytest.raises(StaleFence):
        found.fenced_save(5, update_fields=update_fields)
    row = Book.objects.get()
    assert row.pages == (475 if "pages" in (update_fields or ["pages"]) else 474)
    assert row.count == (1 if "count" in (update_fields or ["count"]) else 0)
    assert row.fence == 7
    found.save()
    assert Book.objects.get().fence == 7


def test_an_update_that_cannot_check_the_fence_is_refused() -> None:
    Book.objects.create(fence=5)
    with pytest.raises(ConfigurationError, match=r"the fence is in the table of fencing\.Stock"):
        Book.objects.fenced_update(5, pages=1)


def test_a_manager_of_its_own() -> None:
    shelf = Shelf.objects.create(name="top", warehouse=Warehouse.objects.create(name="north"))
    hidden = Shelf.objects.create(name="hidden")
    bare = Shelf.objects.create(name="bare")
    assert Shelf.objects.fenced_get(5, pk=shelf.pk).warehouse.name == "north"
    assert Shelf.objects.fenced_get(5, pk=bare.pk).warehouse is None  # an outer join: not to be locked with the row
    with pytest.raises(Shelf.DoesNotExist):
        Shelf.objects.fenced_get(5, pk=hidden.pk)


def test_several_databases(stock: Stock, make_database: Callable[[Kind], Database]) -> None:
    with django_alias("other", make_database("sqlite"), *TABLES):
        there = Stock.objects.using("other").create(pk=stock.pk, name="there")
        found = Stock.objects.using("other").fenced_get(5, pk=there.pk)
        assert found.name == "there"
        assert fence_of_row(stock) == 0
        found.count = 3
        found.fenced_save(5)
        assert Stock.objects.using("other").fenced_update(5, name="still there") == 1
        row = Stock.objects.using("other").get()
        assert (row.name, row.count) == ("still there", 3)
        assert Stock.objects.get().name == "bicycle"
        with pytest.raises(StaleFence):
            found.fenced_save(5, using="default")
        assert connections["other"].in_atomic_block is False


class ReadFromReplica:
    def db_for_read(self, model: object, **hints: object) -> str:
        return "replica"


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_replica_is_not_asked(stock: Stock, make_database: Callable[[Kind], Database], settings: Any) -> None:
    """It may not have the newest fence yet."""
    with django_alias("replica", make_database("sqlite"), *TABLES):
        settings.DATABASE_ROUTERS = [ReadFromReplica()]
        assert Stock.objects.fenced_get(5, name="bicycle").pk == stock.pk
        settings.DATABASE_ROUTERS = []


# Leases --------------------------------------------------------------------------------------------------------------


def test_a_lease_gives_its_fence(stock: Stock) -> None:
    configure({"default": {"BACKEND": "memory"}})
    with lock("stock") as lease:
        found = Stock.objects.fenced_get(lease, pk=stock.pk)
        found.count = 1
        found.fenced_save(lease)
    with pytest.raises(LeaseLost):
        found.fenced_save(lease)
    with lock("stock") as newer:
        assert lease.fence is not None
        assert newer.fence is not None
        assert Stock.objects.fenced_get(newer, pk=stock.pk).fence == newer.fence > lease.fence


@pytest.mark.parametrize("nonsense", [None, "5", 5.0, True])
def test_what_is_no_fence_is_refused(nonsense: Any, stock: Stock) -> None:
    with pytest.raises(ConfigurationError, match="A fence comes from a lease or is a number"):
        Stock.objects.fenced_get(nonsense, pk=stock.pk)


# Several locks -------------------------------------------------------------------------------------------------------


@pytest.fixture
def wallets(stock: Stock) -> list[Stock]:
    configure({"default": {"BACKEND": "memory"}})
    return [stock, Stock.objects.create(name="car", count=10)]


def transfer(lease: Lease, wallets: list[Stock], amount: int) -> None:
    """As the page on fencing has it."""
    with transaction.atomic():
        read = [Stock.objects.fenced_get(lease, key=f"wallet:{each.pk}", pk=each.pk) for each in wallets]
        for found, change in zip(read, (-amount, amount), strict=True):
            found.count += change
            found.fenced_save(lease)


def test_a_transfer_between_two_rows(wallets: list[Stock]) -> None:
    names = [f"wallet:{wallet.pk}" for wallet in wallets]
    with lock(names[1]):
        pass  # so that the two have different fences
    with lock(names) as lease:
        transfer(lease, wallets, 3)
        assert [fence_of_row(wallet) for wallet in wallets] == [lease.fence_for(name) for name in names]
    assert list(Stock.objects.order_by("pk").values_list("count", flat=True)) == [7, 13]


@pytest.mark.parametrize("late", [0, 1])
def test_a_transfer_that_is_late_at_one_of_its_rows_changes_neither(wallets: list[Stock], late: int) -> None:
    names = [f"wallet:{wallet.pk}" for wallet in wallets]
    with lock(names) as lease:
        newer = (lease.fence_for(names[late]) or 0) + 1
        Stock.objects.fenced_get(newer, pk=wallets[late].pk)
        with pytest.raises(StaleFence, match="a newer holder"):
            transfer(lease, wallets, 3)
    assert list(Stock.objects.order_by("pk").values_list("count", flat=True)) == [10, 10]


def test_what_a_newer_holder_has_stamped_since_is_not_saved(wallets: list[Stock]) -> None:
    names = [f"wallet:{wallet.pk}" for wallet in wallets]
    with lock(names) as lease:
        first, second = (Stock.objects.fenced_get(lease, key=names[i], pk=wallets[i].pk) for i in range(2))
        Stock.objects.fenced_get((lease.fence_for(names[1]) or 0) + 1, pk=second.pk)
        first.fenced_save(lease)
        for late in (lambda: second.fenced_save(lease), second.delete):
            with pytest.raises(StaleFence, match="a newer holder"):
                late()
        first.delete()
    assert Stock.objects.filter(pk=second.pk).exists()


def test_a_row_that_none_of_the_locks_has_read(wallets: list[Stock]) -> None:
    names = [f"wallet:{wallet.pk}" for wallet in wallets]
    with lock(names[0]) as before:
        older = Stock.objects.fenced_get(before, key=names[0], pk=wallets[0].pk)
    with lock(names) as lease:
        for row in (wallets[0], older):
            with pytest.raises(StaleFence, match=r"was not read with fenced_get under one of the locks"):
                row.fenced_save(lease)


def test_a_model_with_a_field_of_that_name_is_asked_which_is_meant(stock: Stock) -> None:
    with pytest.raises(ConfigurationError, match=r"fencing.Entry has a field named key: .*key__exact=.*fence_for"):
        Entry.objects.fenced_get(5, key="wallet:1")
