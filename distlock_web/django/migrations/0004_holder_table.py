from importlib import import_module

from django.db import migrations, models

CreateIfMissing = import_module("distlock_web.django.migrations.0002_lock_tables").CreateIfMissing


class Migration(migrations.Migration):
    dependencies = [
        ("distlock_web", "0003_record_table"),
    ]

    operations = [
        CreateIfMissing(
            name="HolderRow",
            fields=[
                ("token", models.CharField(max_length=100, primary_key=True, serialize=False)),
                ("name_key", models.CharField(max_length=64)),
                ("state", models.CharField(max_length=10)),
                ("fence", models.BigIntegerField()),
                ("since", models.BigIntegerField()),
                ("expires_at", models.BigIntegerField()),
                ("holder", models.TextField()),
            ],
            options={
                "db_table": "distlock_holder",
                "base_manager_name": "objects",
                "default_permissions": (),
                "indexes": [
                    models.Index(fields=["name_key"], name="distlock_holder_name_key"),
                    models.Index(fields=["expires_at"], name="distlock_holder_expires_at"),
                ],
            },
        ),
    ]
