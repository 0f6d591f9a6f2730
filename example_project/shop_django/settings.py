from __future__ import annotations

import os

from example_project.environment import DATABASE, LOCKS_URL

# The four lines that distlock_web needs: this mapping, the app, the middleware, and the decorator on a view.
DISTLOCK = {"default": {"LOCATION": LOCKS_URL}}

INSTALLED_APPS = [
    "example_project.shop_django.apps.ShopConfig",
    "distlock_web.django",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
]

MIDDLEWARE = [
    "distlock_web.django.middleware.RequestIDMiddleware",
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": DATABASE,
        # WAL: readers do not wait for the writer. IMMEDIATE: a transaction that will write queues when it begins,
        # where SQLite waits for its turn; later it would be refused at once.
        "OPTIONS": {"timeout": 20, "init_command": "PRAGMA journal_mode=WAL;", "transaction_mode": "IMMEDIATE"},
        "TEST": {"NAME": f"{DATABASE}.tests"},  # a file: two connections to a database in memory have no locks
    }
}

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "filters": {"request_id": {"()": "distlock_web.RequestIDFilter"}},
    "formatters": {"line": {"format": "%(levelname)s [%(request_id)s] %(name)s: %(message)s"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "filters": ["request_id"], "formatter": "line"}},
    "root": {"handlers": ["stderr"], "level": "WARNING"},
    "loggers": {"django": {"handlers": [], "level": "ERROR", "propagate": True}},
}

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]

ROOT_URLCONF = "example_project.shop_django.urls"
WSGI_APPLICATION = "example_project.shop_django.wsgi.application"
STATIC_URL = "static/"
USE_TZ = True
TIME_ZONE = "UTC"
ALLOWED_HOSTS = ["127.0.0.1", "localhost"]
# Good for a demo on the loopback and for nothing else: every reader of this file knows it.
SECRET_KEY = os.environ.get("SHOP_SECRET_KEY", "a-demo-on-the-loopback-that-keeps-no-secrets-at-all-0123456789")
