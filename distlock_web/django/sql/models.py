"""The tables of the SQL store, for the migrations and for the routers that say in which database they are.

``backends/sql`` reads and writes them by itself.
"""

from __future__ import annotations

from django.db import models

from ..managers import NotDumped


class LeaseRow(models.Model):
    """A name that is locked, or was not long ago."""

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

    objects = NotDumped()

    class Meta:
        db_table = "distlock_lease"
        base_manager_name = "objects"
        default_permissions = ()
        indexes = (models.Index(fields=["expires_at"], name="distlock_lease_expires_at"),)


class HolderRow(models.Model):
    """One of those that hold a lock together (``limit``, ``shared``)."""

    token: models.CharField[str, str] = models.CharField(primary_key=True, max_length=100)
    name_key: models.CharField[str, str] = models.CharField(max_length=64)
    state: models.CharField[str, str] = models.CharField(max_length=10)
    fence: models.BigIntegerField[int, int] = models.BigIntegerField()
    since: models.BigIntegerField[int, int] = models.BigIntegerField()
    expires_at: models.BigIntegerField[int, int] = models.BigIntegerField()
    holder: models.TextField[str, str] = models.TextField()

    objects = NotDumped()

    class Meta:
        db_table = "distlock_holder"
        base_manager_name = "objects"
        default_permissions = ()
        indexes = (
            models.Index(fields=["name_key"], name="distlock_holder_name_key"),
            models.Index(fields=["expires_at"], name="distlock_holder_expires_at"),
        )


class RecordRow(models.Model):
    """What ``once`` has kept of what is done."""

    name_key: models.CharField[str, str] = models.CharField(primary_key=True, max_length=64)
    fence: models.BigIntegerField[int, int] = models.BigIntegerField()
    expires_at: models.BigIntegerField[int, int] = models.BigIntegerField()
    record: models.TextField[str, str] = models.TextField()

    objects = NotDumped()

    class Meta:
        db_table = "distlock_record"
        base_manager_name = "objects"
        default_permissions = ()
        indexes = (models.Index(fields=["expires_at"], name="distlock_record_expires_at"),)


class WaiterRow(models.Model):
    """A caller that waits for a lock."""

    token: models.CharField[str, str] = models.CharField(primary_key=True, max_length=100)
    name_key: models.CharField[str, str] = models.CharField(max_length=64)
    place: models.BigIntegerField[int, int] = models.BigIntegerField()
    expire: models.BigIntegerField[int, int] = models.BigIntegerField()
    deadline: models.BigIntegerField[int, int] = models.BigIntegerField()
    holder: models.TextField[str, str] = models.TextField()
    wake: models.SmallIntegerField[int, int] = models.SmallIntegerField()

    objects = NotDumped()

    class Meta:
        db_table = "distlock_waiter"
        base_manager_name = "objects"
        default_permissions = ()
        indexes = (models.Index(fields=["name_key", "place"], name="distlock_waiter_queue"),)
