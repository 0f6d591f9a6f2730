from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.core.signals import setting_changed
from django.utils import translation
from django.utils.translation import pgettext_lazy

from ..locks import hooks
from ..web import texts
from ..web.settings import PROJECT_POLICIES
from .integration import DjangoIntegration
from .middleware import header_and_keys, user_of_request
from .stores import configure_from_settings

# Now, not in ready(): other apps' models are imported before any app is ready, and with them functions that are locked.
hooks.install(DjangoIntegration())
texts.add_catalogue(lambda: translation, last=True)  # Django always knows a language


class DistLockConfig(AppConfig):
    name = "distlock_web.django"
    label = "distlock_web"
    verbose_name = pgettext_lazy(texts.CONTEXT, "Distributed locks")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from . import checks  # noqa: F401 - registers the system checks

        configure_from_settings()
        setting_changed.connect(_setting_changed, dispatch_uid="distlock_web")


def _setting_changed(*, setting: str, **kwargs: Any) -> None:
    """``override_settings(DISTLOCK=...)`` in a test."""
    if setting == "DISTLOCK" or setting in PROJECT_POLICIES:
        configure_from_settings()
    elif setting == "DISTLOCK_REQUEST_ID_HEADER":
        header_and_keys.cache_clear()
    elif setting == "DISTLOCK_USER":
        user_of_request.cache_clear()
