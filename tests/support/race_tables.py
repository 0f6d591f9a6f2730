"""Tables for races of Django's."""

from __future__ import annotations

from typing import TypeAlias

from django.db import models


class Stock(models.Model):
    left: models.IntegerField[int, int] = models.IntegerField()

    class Meta:
        app_label = "race_shop"


ToStock: TypeAlias = "models.ForeignKey[Stock, Stock]"


class Sale(models.Model):
    stock: ToStock = models.ForeignKey(Stock, models.CASCADE)

    class Meta:
        app_label = "race_shop"


class Coupon(models.Model):
    code: models.CharField[str, str] = models.CharField(max_length=20)
    used: models.BooleanField[bool, bool] = models.BooleanField(default=False)

    class Meta:
        app_label = "race_shop"


class Member(models.Model):
    name: models.CharField[str, str] = models.CharField(max_length=20)  # not unique: that is the bug
    email: models.CharField[str | None, str | None] = models.CharField(max_length=40, unique=True, null=True)

    class Meta:
        app_label = "race_shop"


Members: TypeAlias = "models.ManyToManyField[Member, Member]"


class Tag(models.Model):
    name: models.CharField[str, str] = models.CharField(max_length=20)
    members: Members = models.ManyToManyField(Member)

    class Meta:
        app_label = "race_shop"


TABLES = (Stock, Sale, Coupon, Member, Tag)
