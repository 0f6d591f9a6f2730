from __future__ import annotations

from django.db import models
from django.utils.translation import pgettext_lazy

from ..web.texts import CONTEXT


class _NotDumped(models.Manager[models.Model]):
    """Nothing is here for ``dumpdata``: one model has no table, and the rows of the others hold tokens."""

    def get_queryset(self) -> models.QuerySet[models.Model]:
        return super().get_queryset().none()


class HeldLock(models.Model):
    """A lock as the admin page shows it. There is no table: the model carries the permissions and the page's names."""

    name: models.CharField[str, str] = models.CharField(
        pgettext_lazy(CONTEXT, "lock"), primary_key=True, max_length=255
    )

    objects = _NotDumped()

    class Meta:
        managed = False
        base_manager_name = "objects"
        verbose_name = pgettext_lazy(CONTEXT, "held lock")
        verbose_name_plural = pgettext_lazy(CONTEXT, "held locks")
        default_permissions = ("view",)
        permissions = (("release_heldlock", pgettext_lazy(CONTEXT, "Can release held locks by force")),)

    def __str__(self) -> str:
        return self.name


class LeaseRow(models.Model):
    """A lock in the SQL store (``"DATABASE": "default"``): the table that ``backends/sql`` reads and writes by itself.

    It is here for the migrations and for the routers that say in which database it is.
    """

    name_key: models.CharField[str, str] = models.CharField(primary_key=True, max_length=64)
    name: models.TextField[str, str] = models.TextField()
    token: models.CharField[str, str] = models.CharField(max_length=100)
    state: models.CharField[str, str] = models.CharField(max_length=10)
    fence: models.BigIntegerField[int, int] = models.BigIntegerField()
    since: models.BigIntegerField[int, int] = models.BigIntegerField()
    expires_at: models.BigIntegerField[int, int] = models.BigIntegerField()
    holder: models.TextField[str, str] = models.TextField()
    released: models.CharField[str, str] = models.CharField(max_length=100)
    revoked: models.CharField[str, str] = models.CharField(max_length=100)
    queued: models.SmallIntegerField[int, int] = models.SmallIntegerField()

    objects = _NotDumped()

    class Meta:
        db_table = "distlock_lease"
        base_manager_name = "objects"
        default_permissions = ()
        indexes = (models.Index(fields=["expires_at"], name="distlock_lease_expires_at"),)


class HolderRow(models.Model):
    """One of those that hold a lock together (``limit``, ``shared``), in the SQL store."""

    token: models.CharField[str, str] = models.CharField(primary_key=True, max_length=100)
    name_key: models.CharField[str, str] = models.CharField(max_length=64)
    state: models.CharField[str, str] = models.CharField(max_length=10)
    fence: models.BigIntegerField[int, int] = models.BigIntegerField()
    since: models.BigIntegerField[int, int] = models.BigIntegerField()
    expires_at: models.BigIntegerField[int, int] = models.BigIntegerField()
    holder: models.TextField[str, str] = models.TextField()

    objects = _NotDumped()

    class Meta:
        db_table = "distlock_holder"
        base_manager_name = "objects"
        default_permissions = ()
        indexes = (
            models.Index(fields=["name_key"], name="distlock_holder_name_key"),
            models.Index(fields=["expires_at"], name="distlock_holder_expires_at"),
        )


class RecordRow(models.Model):
    """What ``once`` has kept of what is done, in the SQL store."""

    name_key: models.CharField[str, str] = models.CharField(primary_key=True, max_length=64)
    fence: models.BigIntegerField[int, int] = models.BigIntegerField()
    expires_at: models.BigIntegerField[int, int] = models.BigIntegerField()
    record: models.TextField[str, str] = models.TextField()

    objects = _NotDumped()

    class Meta:
        db_table = "distlock_record"
        base_manager_name = "objects"
        default_permissions = ()
        indexes = (models.Index(fields=["expires_at"], name="distlock_record_expires_at"),)


class WaiterRow(models.Model):
    """Somebody who waits for a lock in the SQL store."""

    token: models.CharField[str, str] = models.CharField(primary_key=True, max_length=100)
    name_key: models.CharField[str, str] = models.CharField(max_length=64)
    place: models.BigIntegerField[int, int] = models.BigIntegerField()
    expire: models.BigIntegerField[int, int] = models.BigIntegerField()
    deadline: models.BigIntegerField[int, int] = models.BigIntegerField()
    holder: models.TextField[str, str] = models.TextField()
    wake: models.SmallIntegerField[int, int] = models.SmallIntegerField()

    objects = _NotDumped()

    class Meta:
        db_table = "distlock_waiter"
        base_manager_name = "objects"
        default_permissions = ()
        indexes = (models.Index(fields=["name_key", "place"], name="distlock_waiter_queue"),)
