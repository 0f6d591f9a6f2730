from importlib import import_module

from django.db import migrations, models

CreateIfMissing = import_module("distlock_web.django.migrations.0002_lock_tables").CreateIfMissing


class Migration(migrations.Migration):
    dependencies = [
        ("distlock_web", "0002_lock_tables"),
    ]

    operations = [
        CreateIfMissing(
            name="RecordRow",
            fields=[
                ("name_key", models.CharField(max_length=64, primary_key=True, serialize=False)),
                ("fence", models.BigIntegerField()),
                ("expires_at", models.BigIntegerField()),
                ("record", models.TextField()),
            ],
            options={
                "db_table": "distlock_record",
                "base_manager_name": "objects",
                "default_permissions": (),
                "indexes": [models.Index(fields=["expires_at"], name="distlock_record_expires_at")],
            },
        ),
    ]
