from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.core.signals import setting_changed
from django.utils.translation import gettext_lazy as _

from ..core import lifetime
from ..core.decorator import coroutine_tests
from .guarded import is_async_view
from .stores import configure_from_settings
from .streaming import carry_response
from .transactions import DjangoTransactions, open_transaction


class DistLockConfig(AppConfig):
    name = "distlock_web.django"
    label = "distlock_web"
    verbose_name = _("Distributed locks")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from . import checks  # noqa: F401 - registers the system checks

        coroutine_tests.append(is_async_view)
        configure_from_settings()
        lifetime.transaction_owners.append(DjangoTransactions())
        lifetime.open_transactions.append(open_transaction)
        lifetime.carriers.append(carry_response)
        setting_changed.connect(_setting_changed, dispatch_uid="distlock_web")


def _setting_changed(*, setting: str, **kwargs: Any) -> None:
    """``override_settings(DISTLOCK=...)`` in a test."""
    if setting == "DISTLOCK":
        configure_from_settings()
