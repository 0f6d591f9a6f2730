"""Celery's beat with its schedule in Django's database: ``django_celery_beat``. As a program it makes the tables.

What the environment says: ``BEAT_REDIS``, where its messages go; ``BEAT_DATABASE``, a file of SQLite's.
"""

from __future__ import annotations

import os

import django
from celery import Celery
from django.conf import settings
from django.core.management import call_command

settings.configure(
    INSTALLED_APPS=["django.contrib.contenttypes", "django_celery_beat"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ["BEAT_DATABASE"]}},
    MIGRATION_MODULES={"contenttypes": None, "django_celery_beat": None},  # thirty of them take their time
    USE_TZ=True,
)
django.setup()

app = Celery("beat_shop", broker=os.environ["BEAT_REDIS"])
app.conf.beat_sync_every = 1  # each run is in the database when the next one begins

if __name__ == "__main__":
    from django_celery_beat.models import IntervalSchedule, PeriodicTask

    call_command("migrate", run_syncdb=True, verbosity=0)
    hourly = IntervalSchedule.objects.create(every=1, period=IntervalSchedule.HOURS)
    PeriodicTask.objects.create(name="report", task="report", queue="reports", interval=hourly)
