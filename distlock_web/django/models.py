from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _


class HeldLock(models.Model):
    """A lock as the admin page shows it. There is no table: the model carries the permissions and the page's names."""

    name: models.CharField[str, str] = models.CharField(_("lock"), primary_key=True, max_length=255)

    class Meta:
        managed = False
        verbose_name = _("held lock")
        verbose_name_plural = _("held locks")
        default_permissions = ("view",)
        permissions = (("release_heldlock", _("Can release held locks by force")),)

    def __str__(self) -> str:
        return self.name
