"""Rows that a late holder cannot overwrite: each carries the fence of the last holder that worked on it.

A lock can be lost while its holder is paused. The fence, a number that grows with every acquisition, lets the database
refuse what comes too late: ``fenced_get`` stamps the row before it reads it, and a fenced write asks for exactly that
stamp, in one UPDATE. So a holder that paused after its read cannot overwrite its successor, and one that is late cannot
read. (Kleppmann 2016, *How to do distributed locking*.)
"""

from __future__ import annotations

from typing import Any, TypeVar

from django.db import connections, models, router, transaction

from ..core.errors import ConfigurationError
from ..locks.fencing import fence_of, fence_of_read, late, unstamped
from ..locks.lease import Lease

M = TypeVar("M", bound="FencedModel")


class FencedQuerySet(models.QuerySet[M]):
    """Queries that take part in fencing. ``lease`` is the lease, or the number of a fence from elsewhere.

    A model with a manager of its own: ``objects = MyManager.from_queryset(FencedQuerySet)()``.
    """

    def fenced_get(self, lease: Lease | int, *, key: object = None, **lookup: Any) -> M:
        """Write the fence into the one matching row, then read it, in one transaction. Returns the object.

        For a lease over several locks ``key`` names the row's lock: ``key="wallet:1"``.

        Raises ``StaleFence`` if a newer holder has stamped it, ``DoesNotExist`` and ``MultipleObjectsReturned`` as
        ``get`` does.
        """
        if key is not None and any(field.name == "key" for field in self.model._meta.get_fields()):
            raise ConfigurationError(
                f"{self.model._meta.label} has a field named key: to filter by it use key__exact=, and to name a lock "
                f"pass lease.fence_for(key) in place of the lease."
            )
        fence = fence_of(lease, key)
        if self._fields is not None:  # type: ignore[attr-defined]
            raise ConfigurationError(
                f"{self.model._meta.label}: fenced_get returns an object, which can be changed and saved: leave out "
                f"values() and values_list()."
            )
        rows = _for_writing(self.filter(**lookup))
        # Found first, by its key: a filter over a join would make the fence's condition part of a subquery, which
        # PostgreSQL does not look at again after it has waited for a newer holder's commit.
        pk = lookup["pk"] if "pk" in lookup else rows.values_list("pk", flat=True).get()
        with transaction.atomic(using=rows.db):
            _fenced_table(self.model, rows.db).filter(pk=pk, fence__lte=fence).update(fence=fence)
            if connections[rows.db].vendor == "mysql":
                # An UPDATE to the same fence leaves InnoDB's row as it is; a plain read may then be an older snapshot.
                rows = rows.select_for_update()
            found: M = rows.get(pk=pk)
            if found.fence != fence:
                raise late(f"{self.model._meta.label} {pk}", fence, found.fence)
        found._read_under = fence
        return found

    def fenced_update(self, lease: Lease | int, **values: Any) -> int:
        """Update the rows that have exactly this fence, in one UPDATE. Returns their number.

        Raises ``StaleFence`` if there is none: a newer holder has stamped them, or ``fenced_get`` was left out.
        """
        fence = fence_of(lease)
        owner = _fence_owner(self.model)
        if owner is not self.model:
            raise ConfigurationError(
                f"{self.model._meta.label}: the fence is in the table of {owner._meta.label}, so one UPDATE cannot "
                f"check it. Change objects that fenced_get returns, and save them with fenced_save."
            )
        rows: models.QuerySet[Any] = _for_writing(self.filter(fence=fence))
        if rows.query.count_active_tables() > 1:
            # As above: only a condition on the row itself is looked at again.
            keys = list(rows.values_list("pk", flat=True))
            rows = _fenced_table(self.model, rows.db).filter(pk__in=keys, fence=fence)
        updated = rows.update(**values)
        if not updated:
            raise unstamped(self.model._meta.label, fence)
        return updated


class FencedModel(models.Model):
    """Mixin: adds the column ``fence`` and fenced reads and writes. ``class Stock(FencedModel): ...``"""

    fence: models.BigIntegerField[int, int] = models.BigIntegerField(default=0, editable=False)

    objects: Any = FencedQuerySet.as_manager()

    _read_under: int | None = None  #: the fence under which fenced_get has read it: refresh_from_db does not change it

    class Meta:
        abstract = True

    def fenced_save(self, lease: Lease | int, *, update_fields: Any = None, **kwargs: Any) -> None:
        """``save()``, with the condition that the row still has this fence.

        Read the object with ``fenced_get`` first. With several locks, the lock that the object was read under counts.
        Raises ``StaleFence`` if a newer holder has stamped the row since. Then a transaction around it can only be
        rolled back. Signals, ``auto_now`` and ``update_fields`` work as usual.
        """
        if self._state.adding:
            raise ConfigurationError(f"{self._meta.label}: fenced_save is for rows that fenced_get has read.")
        if update_fields is not None:
            update_fields = {*update_fields, "fence"}  # else the fence's own table might have nothing to update
        self._required_fence = self.fence = fence_of_read(lease, self._read_under, f"{self._meta.label} {self.pk}")
        try:
            self.save(force_update=update_fields is None, update_fields=update_fields, **kwargs)
        finally:
            del self._required_fence

    def delete(self, using: Any = None, keep_parents: bool = False) -> tuple[int, dict[str, int]]:
        """As usual. For an object that ``fenced_get`` has read, it checks the fence: ``StaleFence`` if it is late."""
        if self._read_under is None:
            return super().delete(using, keep_parents)
        alias = using or router.db_for_write(type(self), instance=self)
        with transaction.atomic(using=alias):
            row = _fenced_table(type(self), alias).filter(pk=self.pk)
            if not _locked_rows(row.filter(fence=self._read_under), self._read_under):
                found = row.values_list("fence", flat=True).first()
                raise late(f"{self._meta.label} {self.pk}", self._read_under, found)
            return super().delete(using, keep_parents)

    def _do_update(self, base_qs: Any, using: Any, pk_val: Any, values: Any, *args: Any, **kwargs: Any) -> Any:
        # Where save() makes its UPDATE of one table. (What comes in args differs between releases of Django.)
        if base_qs.model is not _fence_owner(type(self)):
            return super()._do_update(base_qs, using, pk_val, values, *args, **kwargs)
        required: int | None = getattr(self, "_required_fence", None)
        if required is None:
            # A plain save() must not write the fence back that it has read: it would let an older holder in again.
            values = [value for value in values if value[0].name != "fence"]
            return super()._do_update(base_qs, using, pk_val, values, *args, **kwargs)
        updated = super()._do_update(base_qs.filter(fence=required), using, pk_val, values, *args, **kwargs)
        if not updated:
            row = base_qs.filter(pk=pk_val).values_list("fence", flat=True).first()
            raise late(f"{self._meta.label} {pk_val}", required, row)
        return updated


def _fence_owner(model: type[models.Model]) -> type[models.Model]:
    """The model whose table has the fence: a parent's, under multi-table inheritance."""
    return model._meta.get_field("fence").model


def _locked_rows(rows: models.QuerySet[Any], fence: int) -> list[Any]:
    """The keys of these rows, which all bear the fence: until the transaction ends no newer holder can stamp them."""
    if not connections[rows.db].features.has_select_for_update:
        rows.update(fence=fence)  # SQLite has one writer, which we are from now on
    return list(rows.select_for_update().values_list("pk", flat=True))


def _for_writing(rows: FencedQuerySet[M]) -> FencedQuerySet[M]:
    """On the database that is written to: a replica may not have the newest fence."""
    rows._for_write = True  # type: ignore[attr-defined]
    return rows


def _fenced_table(model: type[models.Model], alias: str) -> models.QuerySet[Any]:
    return _fence_owner(model)._base_manager.using(alias)
