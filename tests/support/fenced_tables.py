"""Fenced tables of every kind."""

from __future__ import annotations

from datetime import datetime
from typing import Any, TypeAlias

from django.db import models

from distlock_web.django.fencing import FencedModel, FencedQuerySet


class Warehouse(models.Model):
    name: models.CharField[str, str] = models.CharField(max_length=20)

    class Meta:
        app_label = "fencing"


ToWarehouse: TypeAlias = "models.ForeignKey[Warehouse | None, Warehouse | None]"


class Stock(FencedModel):
    name: models.CharField[str, str] = models.CharField(max_length=20, default="")
    count: models.IntegerField[int, int] = models.IntegerField(default=0)
    changed: models.DateTimeField[datetime, datetime] = models.DateTimeField(auto_now=True)
    warehouse: ToWarehouse = models.ForeignKey(Warehouse, models.CASCADE, null=True)

    class Meta:
        app_label = "fencing"


class Book(Stock):
    """Multi-table inheritance: its fence is in the table of Stock."""

    pages: models.IntegerField[int, int] = models.IntegerField(default=0)

    class Meta:
        app_label = "fencing"


class Manager(models.Manager[Any]):
    def get_queryset(self) -> Any:
        return super().get_queryset().select_related("warehouse").exclude(name="hidden")


class Shelf(FencedModel):
    """With a manager of its own."""

    name: models.CharField[str, str] = models.CharField(max_length=20, default="")
    warehouse: ToWarehouse = models.ForeignKey(Warehouse, models.CASCADE, null=True)

    objects: Any = Manager.from_queryset(FencedQuerySet)()

    class Meta:
        app_label = "fencing"


class Entry(FencedModel):
    key: models.CharField[str, str] = models.CharField(max_length=20)

    class Meta:
        app_label = "fencing"


TABLES = (Warehouse, Stock, Book, Shelf)
