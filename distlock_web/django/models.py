from __future__ import annotations

from django.db import models
from django.utils.translation import pgettext_lazy

from ..web.texts import CONTEXT
from .managers import NotDumped


class HeldLock(models.Model):
    """A lock as the admin page shows it. There is no table: the model carries the permissions and the page's names."""

    name: models.CharField[str, str] = models.CharField(
        pgettext_lazy(CONTEXT, "lock"), primary_key=True, max_length=255
    )

    objects = NotDumped()

    class Meta:
        managed = False
        base_manager_name = "objects"
        verbose_name = pgettext_lazy(CONTEXT, "held lock")
        verbose_name_plural = pgettext_lazy(CONTEXT, "held locks")
        default_permissions = ("view",)
        permissions = (("release_heldlock", pgettext_lazy(CONTEXT, "Can release held locks by force")),)

    def __str__(self) -> str:
        return self.name
