from __future__ import annotations

from django.apps import AppConfig


class SQLConfig(AppConfig):
    name = "distlock_web.django.sql"
    # Not distlock_web: a router that puts the locks elsewhere would take the page's permissions away from the users.
    label = "distlock_web_sql"
    verbose_name = "Distributed locks (SQL)"
