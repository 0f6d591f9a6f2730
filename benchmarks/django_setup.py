"""Django's settings for the view that is measured, and for django-redis, which lives in them."""

from __future__ import annotations

import django
from django.conf import settings


def setup(url: str) -> None:
    """Set Django up, once per process."""
    if settings.configured:
        return
    settings.configure(
        SECRET_KEY="benchmarks",
        ROOT_URLCONF="benchmarks.site",
        INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "distlock_web.django"],
        CACHES={"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": url}},
        BENCHMARK_URL=url,
    )
    django.setup()
