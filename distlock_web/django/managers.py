from __future__ import annotations

from django.db import models


class NotDumped(models.Manager[models.Model]):
    """Nothing is here for ``dumpdata``: ``HeldLock`` has no table, and the rows of the SQL store hold tokens."""

    def get_queryset(self) -> models.QuerySet[models.Model]:
        return super().get_queryset().none()
