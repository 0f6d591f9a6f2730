"""Rows that a late holder cannot overwrite: each carries the fence of the last holder that worked on it.

A lock can be lost while its holder is paused. The fence, a number that grows with every acquisition, lets the database
refuse what comes too late: ``guarded_get`` stamps the row before it reads it, and a guarded write asks for exactly that
stamp, in one UPDATE. So a holder that paused after its read cannot overwrite its successor, and one that is late cannot
read. (Kleppmann 2016, *How to do distributed locking*.)
"""

from __future__ import annotations

from typing import Any, TypeVar

from django.db import DatabaseError, models, router, transaction

from ..core.errors import ConfigurationError, StaleFence
from ..core.fencing import fence_of
from ..core.lease import Lease

M = TypeVar("M", bound="FencedModel")


class FencedQuerySet(models.QuerySet[M]):
    """Queries that take part in fencing. ``lease`` is the lease, or the number of a fence from elsewhere."""

    def guarded_get(self, lease: Lease | int, **lookup: Any) -> M:
        """The one object that matches, stamped with the fence and then read, in one transaction.

        Raises ``StaleFence`` if a newer holder has stamped it, ``DoesNotExist`` and ``MultipleObjectsReturned`` as
        ``get`` does.
        """
        fence = fence_of(lease)
        rows = self.filter(**lookup)
        with transaction.atomic(using=router.db_for_write(self.model)):
            rows = rows.using(router.db_for_write(self.model))
            if not rows.filter(fence__lte=fence).update(fence=fence):
                found = rows.get()  # DoesNotExist: there is no such row at all
                raise stale(found, fence)
            found = rows.get()
            if found.fence != fence:
                raise stale(found, fence)
        return found

    def guarded_update(self, lease: Lease | int, **values: Any) -> int:
        """Update the rows that bear exactly this fence, in one statement; how many that were.

        Raises ``StaleFence`` if that is none, for then a newer holder has them (or ``guarded_get`` was left out).
        """
        fence = fence_of(lease)
        updated = self.filter(fence=fence).update(**values)
        if not updated:
            raise StaleFence(f"No row of {self.model._meta.label} bears the fence {fence}: a newer holder has written.")
        return updated


class FencedModel(models.Model):
    """Mixin: adds the column ``fence`` and guarded reads and writes. ``class Stock(FencedModel): ...``"""

    fence: models.BigIntegerField[int, int] = models.BigIntegerField(default=0, editable=False)

    objects: Any = FencedQuerySet.as_manager()

    class Meta:
        abstract = True

    def guarded_save(self, lease: Lease | int, **kwargs: Any) -> None:
        """``save()``, in one UPDATE that only the holder with this fence can succeed with.

        Read the object with ``guarded_get`` first. Raises ``StaleFence`` if a newer holder has stamped the row since.
        Signals, ``auto_now`` and ``update_fields`` work as ever.
        """
        if self._state.adding:
            raise ConfigurationError(f"{self._meta.label}: guarded_save is for rows that guarded_get has read.")
        self._required_fence = self.fence = fence_of(lease)
        try:
            with transaction.atomic(using=kwargs.get("using") or self._state.db, savepoint=True):
                self.save(force_update=True, **kwargs)
        except DatabaseError as error:
            if self._has_fence(lease):
                raise
            raise stale(self, fence_of(lease)) from error
        finally:
            del self._required_fence

    def _has_fence(self, lease: Lease | int) -> bool:
        rows = type(self)._base_manager.using(self._state.db).filter(pk=self.pk, fence=fence_of(lease))
        return rows.exists()

    def _do_update(self, base_qs: Any, *args: Any, **kwargs: Any) -> Any:
        # Where save() makes its UPDATE: one more condition. (Positional arguments after this differ between releases.)
        required = getattr(self, "_required_fence", None)
        if required is not None and base_qs.model is self._meta.get_field("fence").model:
            base_qs = base_qs.filter(fence=required)
        return super()._do_update(base_qs, *args, **kwargs)


def stale(row: models.Model, fence: int) -> StaleFence:
    return StaleFence(f"{row._meta.label} {row.pk}: a newer holder than the one with the fence {fence} works on it.")
