"""Two buyers, one item: the race of the view without the lock, in a unit test.

pytest --ds example_project.shop_django.settings example_project/shop_django/tests.py
"""

from __future__ import annotations

import re

import pytest

from distlock_web.testing.race import Race

from .models import Sale, Stock

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("distlock_fake")]
RECEIPT = re.compile("Your receipt: .*")  # another one each time


def one_left() -> None:
    Stock.objects.create(item="tea", delivered=1, remaining=1)


def books() -> dict[str, int]:
    return {"left": Stock.objects.get(item="tea").remaining, "sold": Sale.objects.count()}


def test_without_the_lock_one_item_is_sold_twice(race: Race) -> None:
    outcome = race(
        lambda client: client.post("/buy-without-lock/tea"), callers=2, setup=one_left, observe=books, ignore=RECEIPT
    )
    outcome.assert_race()
    assert outcome.observed == {"left": 0, "sold": 2}
    print(outcome)


def test_with_the_lock_it_is_sold_once(race: Race) -> None:
    outcome = race(lambda client: client.post("/buy/tea"), callers=2, setup=one_left, observe=books, ignore=RECEIPT)
    outcome.assert_as_one_after_the_other()
