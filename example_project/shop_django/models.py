from __future__ import annotations

import secrets
from collections.abc import Sequence

from django.db import models

from ..drill import Answer, Outcome


class Stock(models.Model):
    """What is for sale, and how much of it the shop believes to have left."""

    item = models.SlugField(primary_key=True)
    delivered = models.PositiveIntegerField()
    remaining = models.IntegerField()

    class Meta:
        verbose_name_plural = "stock"

    def __str__(self) -> str:
        return self.item

    def outcome(self, answers: Sequence[Answer]) -> Outcome:
        """What the books say now, beside what the buyers were told."""
        self.refresh_from_db()
        return Outcome(self.delivered, self.sales.count(), self.remaining, answers)

    @classmethod
    def deliver(cls, quantity: int) -> Stock:
        """Something new to sell. Every drill sells an item of its own, so drills do not disturb each other."""
        return cls.objects.create(item=f"item-{secrets.token_hex(3)}", delivered=quantity, remaining=quantity)


class Sale(models.Model):
    """One item sold to one buyer. More sales than were delivered: some buyers will get nothing for their money."""

    item = models.ForeignKey(Stock, models.CASCADE, related_name="sales", db_column="item")
    shop = models.CharField(max_length=20)
    request_id = models.CharField(max_length=128)

    def __str__(self) -> str:
        return f"{self.item_id}, sold by {self.shop}"
