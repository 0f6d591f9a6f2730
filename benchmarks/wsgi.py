"""The site of :mod:`benchmarks.site` for a web server: ``gunicorn benchmarks.wsgi``."""

from __future__ import annotations

import logging
import os

from django.core.handlers.wsgi import WSGIHandler

import distlock_web

from .django_setup import setup

# What it says of a store that is stopped on purpose is not for the one who measures.
logging.getLogger("distlock_web").addHandler(logging.NullHandler())
setup(os.environ["BENCHMARK_URL"])
distlock_web.configure({"default": {"LOCATION": os.environ["BENCHMARK_URL"]}})

from django.conf import settings  # noqa: E402 - set up above

settings.MIDDLEWARE = ["distlock_web.django.middleware.RequestIDMiddleware"]
application = WSGIHandler()
