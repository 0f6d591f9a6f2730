"""Django's settings for the view that is measured, and for django-redis, which lives in them."""

from __future__ import annotations

import django
from django.apps import apps
from django.conf import settings

APPS = ["django.contrib.contenttypes", "django.contrib.auth"]


def setup(url: str) -> None:
    """Set Django up, once per process; without our app, whose hooks each of our locks would ask from now on."""
    if settings.configured:
        return
    settings.configure(
        SECRET_KEY="benchmarks",
        ROOT_URLCONF="benchmarks.site",
        INSTALLED_APPS=APPS,
        CACHES={"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": url}},
        BENCHMARK_URL=url,
    )
    django.setup()


def install_app() -> None:
    """Add ours."""
    apps.set_installed_apps([*APPS, "distlock_web.django"])
