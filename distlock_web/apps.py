"""``INSTALLED_APPS += ["distlock_web"]`` is ``distlock_web.django``: who leaves the rest out means that."""

from .django.apps import DistLockConfig as DistLockConfig
