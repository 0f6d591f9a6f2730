"""Bugs as small views: each is found within 100 orders, and gone with its cure. On each database that can have it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.models import F

from distlock_web import distributed_lockable
from distlock_web.testing.race import Race
from tests.support.databases import Database
from tests.support.race_tables import Coupon, Member, Stock

pytestmark = pytest.mark.slow

Call = Callable[[], object]


def locked(call: Callable[..., object], **options: Any) -> Call:
    """Each call that is raced, under one lock."""
    return distributed_lockable(key="it", wait=5, **options)(call)


class Bug:
    """The calls that race, and the same with each cure."""

    #: Where it can happen: on SQLite transactions that write run one after the other.
    kinds: tuple[str, ...] = ("sqlite", "postgres", "mariadb")

    def setup(self) -> None:
        Stock.objects.create(pk=7, left=1)

    def broken(self) -> list[Call]:
        raise NotImplementedError

    def cures(self) -> dict[str, list[Call]]:
        raise NotImplementedError

    def observe(self) -> object:
        return list(Stock.objects.order_by("pk").values_list("left", flat=True))


class LostUpdate(Bug):
    def buy(self) -> str:
        stock = Stock.objects.get(pk=7)
        if stock.left < 1:
            return "sold out"
        stock.left -= 1
        stock.save()
        return "sold"

    def buy_for_update(self) -> str:
        with transaction.atomic():
            stock = Stock.objects.select_for_update().get(pk=7)
            return "sold out" if stock.left < 1 else self._take(stock)

    def _take(self, stock: Stock) -> str:
        stock.left -= 1
        stock.save()
        return "sold"

    def buy_at_once(self) -> str:
        return "sold" if Stock.objects.filter(pk=7, left__gte=1).update(left=F("left") - 1) else "sold out"

    def broken(self) -> list[Call]:
        return [self.buy] * 2

    def cures(self) -> dict[str, list[Call]]:
        return {
            "distributed_lockable": [locked(self.buy)] * 2,
            "busy": [distributed_lockable(key="it")(self.buy_or_busy)] * 2,
            'until="commit"': [locked(self.buy, until="commit")] * 2,
            "select_for_update": [self.buy_for_update] * 2,  # SQLite: BEGIN IMMEDIATE
            "F": [self.buy_at_once] * 2,
        }

    def buy_or_busy(self) -> str:
        return self.buy()


class InsertedTwice(Bug):
    """Check, then insert, without a unique column."""

    def setup(self) -> None:
        pass

    def join(self) -> str:
        if Member.objects.filter(name="ann").exists():
            return "known"
        Member.objects.create(name="ann")
        return "new"

    def broken(self) -> list[Call]:
        return [self.join] * 2

    def cures(self) -> dict[str, list[Call]]:
        return {"distributed_lockable": [locked(self.join)] * 2}

    def observe(self) -> object:
        return Member.objects.count()


class CouponUsedTwice(Bug):
    def setup(self) -> None:
        Coupon.objects.create(code="ten")

    def use(self) -> str:
        coupon = Coupon.objects.get(code="ten")
        if coupon.used:
            return "used"
        coupon.used = True
        coupon.save()
        return "ten less"

    def use_at_once(self) -> str:
        return "ten less" if Coupon.objects.filter(code="ten", used=False).update(used=True) else "used"

    def broken(self) -> list[Call]:
        return [self.use] * 2

    def cures(self) -> dict[str, list[Call]]:
        return {"distributed_lockable": [locked(self.use)] * 2, "one UPDATE": [self.use_at_once] * 2}

    def observe(self) -> object:
        return Coupon.objects.get(code="ten").used


class WriteSkew(Bug):
    """Two doctors on call; each may leave if another one stays. At REPEATABLE READ."""

    kinds = ("postgres", "mariadb")

    def setup(self) -> None:
        Stock.objects.create(pk=1, left=1)
        Stock.objects.create(pk=2, left=1)

    def leave(self, doctor: int) -> str:
        with transaction.atomic():
            if Stock.objects.filter(left=1).count() < 2:
                return "stays"
            Stock.objects.filter(pk=doctor).update(left=0)
            return "has left"

    def broken(self) -> list[Call]:
        return [partial(self.leave, 1), partial(self.leave, 2)]

    def cures(self) -> dict[str, list[Call]]:
        leave = distributed_lockable(key="doctors", wait=5)(self._leave)
        return {"distributed_lockable": [partial(leave, 1), partial(leave, 2)]}

    def _leave(self, doctor: int) -> str:
        return self.leave(doctor)


class Balance(Bug):
    """A transfer reads two rows and writes both: one of two that share a row is lost."""

    def setup(self) -> None:
        for pk in (1, 2, 3):
            Stock.objects.create(pk=pk, left=10)

    def transfer(self, source: int, target: int) -> None:
        rows = {pk: Stock.objects.get(pk=pk) for pk in sorted((source, target))}
        rows[source].left -= 1
        rows[target].left += 1
        for row in rows.values():
            row.save()

    def transfer_for_update(self, source: int, target: int) -> None:
        with transaction.atomic():
            list(Stock.objects.select_for_update().filter(pk__in=(source, target)).order_by("pk"))
            self.transfer(source, target)

    def broken(self) -> list[Call]:
        return [partial(self.transfer, 1, 2), partial(self.transfer, 2, 3)]

    def cures(self) -> dict[str, list[Call]]:
        both = ["account:{source}", "account:{target}"]
        transfer = distributed_lockable(key=both, wait=5)(self._transfer)
        return {
            "distributed_lockable": [partial(transfer, 1, 2), partial(transfer, 2, 3)],
            "select_for_update": [partial(self.transfer_for_update, 1, 2), partial(self.transfer_for_update, 2, 3)],
        }

    def _transfer(self, source: int, target: int) -> None:
        self.transfer(source, target)


class Deadlock(Bug):
    """A transfer locks the row that it takes from, and then the other one: two in opposite directions."""

    kinds = ("postgres", "mariadb")

    def setup(self) -> None:
        Stock.objects.create(pk=1, left=10)
        Stock.objects.create(pk=2, left=10)

    def transfer(self, source: int, target: int) -> None:
        with transaction.atomic():
            for pk in (source, target):
                stock = Stock.objects.select_for_update().get(pk=pk)
                stock.left += -1 if pk == source else 2
                stock.save()

    def in_order(self, source: int, target: int) -> None:
        with transaction.atomic():
            for pk in sorted((source, target)):
                stock = Stock.objects.select_for_update().get(pk=pk)
                stock.left += -1 if pk == source else 2
                stock.save()

    def broken(self) -> list[Call]:
        return [partial(self.transfer, 1, 2), partial(self.transfer, 2, 1)]

    def cures(self) -> dict[str, list[Call]]:
        transfer = distributed_lockable(key="accounts", wait=5)(self._transfer)
        return {
            "in one order": [partial(self.in_order, 1, 2), partial(self.in_order, 2, 1)],
            "distributed_lockable": [partial(transfer, 1, 2), partial(transfer, 2, 1)],
        }

    def _transfer(self, source: int, target: int) -> None:
        self.transfer(source, target)


class CreatedTwice(Bug):
    """``get_or_create`` without a unique column."""

    def setup(self) -> None:
        pass

    def join(self) -> None:
        Member.objects.get_or_create(name="ann")

    def join_unique(self) -> None:
        Member.objects.get_or_create(email="ann@example.org")

    def broken(self) -> list[Call]:
        return [self.join] * 2

    def cures(self) -> dict[str, list[Call]]:
        return {"distributed_lockable": [locked(self.join)] * 2, "unique": [self.join_unique] * 2}

    def observe(self) -> object:
        return Member.objects.count()


class ReadAfterCommit(Bug):
    """What ``on_commit`` tells is what the other one has made of it."""

    def setup(self) -> None:
        Stock.objects.create(pk=7, left=2)

    def buy(self) -> None:
        with transaction.atomic():
            Stock.objects.filter(pk=7).update(left=F("left") - 1)
            transaction.on_commit(lambda: self.tell(Stock.objects.get(pk=7).left))

    def buy_and_read(self) -> None:
        with transaction.atomic():
            Stock.objects.filter(pk=7).update(left=F("left") - 1)
            transaction.on_commit(partial(self.tell, Stock.objects.get(pk=7).left))

    def tell(self, left: int) -> None:
        Member.objects.create(name=f"{left} left")

    def broken(self) -> list[Call]:
        return [self.buy] * 2

    def cures(self) -> dict[str, list[Call]]:
        return {
            'until="commit"': [locked(self.in_its_transaction, until="commit")] * 2,
            "read before the commit": [self.buy_and_read] * 2,
        }

    def in_its_transaction(self) -> None:
        self.buy()

    def observe(self) -> object:
        return sorted(Member.objects.values_list("name", flat=True))


BUGS = [
    LostUpdate(), InsertedTwice(), CouponUsedTwice(), WriteSkew(), Balance(), Deadlock(), CreatedTwice(),
    ReadAfterCommit(),
]  # fmt: skip


@pytest.fixture
def bug(request: pytest.FixtureRequest, database: Database, shop: Database, monkeypatch: pytest.MonkeyPatch) -> Bug:
    bug: Bug = request.param
    if isinstance(bug, WriteSkew) and database.kind == "postgres":
        options = {"isolation_level": 2}  # psycopg's REPEATABLE READ; MariaDB's is the default
        monkeypatch.setitem(connection.settings_dict, "OPTIONS", options)
    return bug


@pytest.mark.parametrize(
    ("database", "bug"),
    [pytest.param(kind, bug, id=f"{kind}-{type(bug).__name__}") for bug in BUGS for kind in bug.kinds],
    indirect=True,
)
def test_the_bug_is_found_and_its_cure_mends_it(bug: Bug, race: Race) -> None:
    found = race(*bug.broken(), setup=bug.setup, observe=bug.observe, limit=100)
    found.assert_race()
    for name, calls in bug.cures().items():
        mended = race(*calls, setup=bug.setup, observe=bug.observe, limit=25)
        assert not mended.is_race, f"{name}: {mended}"
        assert mended.tried >= 2
    assert not any(table.objects.exists() for table in (Stock, Member, Coupon))
    again = race(*bug.broken(), setup=bug.setup, observe=bug.observe, order=found.order)
    assert again.is_race
    assert again.order == found.order or isinstance(bug, Deadlock)  # PostgreSQL chooses whom it ends
