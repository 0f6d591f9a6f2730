"""A model instance is its row: one key for it, whatever its class, its fields and its text are."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.db import models
from django.utils.functional import SimpleLazyObject
from django.utils.translation import gettext_lazy

from distlock_web import ConfigurationError, current_lease, distributed_lockable, escape_key, lock

pytestmark = pytest.mark.usefixtures("memory")


class Place(models.Model):
    class Meta:
        app_label = "rows"


class Restaurant(Place):
    class Meta:
        app_label = "rows"


class Pizzeria(Restaurant):
    class Meta:
        app_label = "rows"


class Favourite(Restaurant):
    class Meta:
        app_label = "rows"
        proxy = True


class Licence(models.Model):
    place: Any = models.OneToOneField(Place, models.CASCADE, primary_key=True)

    class Meta:
        app_label = "rows"


class Ticket(models.Model):
    id: Any = models.UUIDField(primary_key=True, default=uuid.uuid4)

    class Meta:
        app_label = "rows"


class Seat(models.Model):
    pk = models.CompositePrimaryKey("hall", "number")
    hall: Any = models.CharField(max_length=9)
    number: Any = models.IntegerField()

    class Meta:
        app_label = "rows"


@pytest.mark.parametrize(
    ("row", "key"),
    [
        (Group(pk=3, name="pending"), "auth.group:3"),
        (Group(pk="03"), "auth.group:3"),
        (Place(pk=7), "rows.place:7"),
        (Restaurant(pk=7), "rows.place:7"),
        (Pizzeria(pk=7), "rows.place:7"),
        (Favourite(pk=7), "rows.place:7"),
        (Licence(pk=7), "rows.licence:7"),
        (Licence(place=Place(pk=7)), "rows.licence:7"),
        (Ticket(id=uuid.UUID(int=7)), f"rows.ticket:{uuid.UUID(int=7)}"),
        (Seat(hall="a:b,c", number=1), "rows.seat:a%3Ab%2Cc,1"),
        (SimpleLazyObject(lambda: User(pk=7)), "auth.user:7"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_instance_is_its_row(row: Any, key: str) -> None:
    @distributed_lockable(key="{row}")
    def by_template(row: object) -> str:
        return held()

    @distributed_lockable(key=lambda row: row)
    def by_function(row: object) -> str:
        return held()

    with lock(row) as lease:
        assert lease.name == f"disLock:{key}"
    assert by_template(row) == by_function(row) == escape_key(row) == key


def held() -> str:
    lease = current_lease()
    assert lease is not None
    return lease.name.removeprefix("disLock:")


@pytest.mark.parametrize("row", [Group(), Restaurant(), Licence(), Seat(hall="a")])
def test_a_row_that_is_not_saved_is_refused(row: models.Model) -> None:
    with pytest.raises(ConfigurationError, match="that is not saved: it has no primary key yet"):
        lock(row)


@pytest.mark.parametrize("value", [Group, Group.objects, gettext_lazy("Order")])
def test_what_is_no_row_is_refused(value: object) -> None:
    with pytest.raises(ConfigurationError, match="no stable text"):
        escape_key(value)
