"""Which row an object of Django's ORM stands for. Loaded with the first such object that a key is made of."""

from __future__ import annotations

from typing import Any

from django.db.models import Model

from ..core.integrations import Row
from ..locks.hooks import Integration, install


class DjangoRows(Integration):
    """Apart from ``integration.py``, for a script may use the ORM and not have the app installed."""

    def row_of(self, value: object) -> Row | None:
        if not isinstance(value, Model):
            return None
        model: Any = value._meta.concrete_model
        # A child of multi-table inheritance has its row in the parent's table, too, under the same key.
        while (link := model._meta.pk.remote_field) is not None and getattr(link, "parent_link", False):
            model = link.model._meta.concrete_model
        key = model._meta.pk.to_python(value.pk)
        return model._meta.label_lower, key if isinstance(key, tuple) else (key,)


install(DjangoRows())
