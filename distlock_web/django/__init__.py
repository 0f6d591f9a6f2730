"""Distributed locks in a Django project: ``INSTALLED_APPS += ["distlock_web.django"]``."""
