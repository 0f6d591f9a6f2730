from typing import Any

from django.db import migrations, models


class CreateIfMissing(migrations.CreateModel):
    """The tables may be there: a store whose LOCATION is the same database has made them at its first lock."""

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        there = () if schema_editor.collect_sql else schema_editor.connection.introspection.table_names()
        if self.options["db_table"] not in there:
            super().database_forwards(app_label, schema_editor, from_state, to_state)


class Migration(migrations.Migration):
    initial = True
    dependencies = []

    operations = [
        CreateIfMissing(
            name="LeaseRow",
            fields=[
                ("name_key", models.CharField(max_length=64, primary_key=True, serialize=False)),
                ("name", models.TextField()),
                ("token", models.CharField(max_length=100)),
                ("state", models.CharField(max_length=10)),
                ("fence", models.BigIntegerField()),
                ("since", models.BigIntegerField()),
                ("expires_at", models.BigIntegerField()),
                ("holder", models.TextField()),
                ("released", models.CharField(max_length=100)),
                ("revoked", models.CharField(max_length=100)),
                ("queued", models.SmallIntegerField()),
            ],
            options={
                "db_table": "distlock_lease",
                "base_manager_name": "objects",
                "default_permissions": (),
                "indexes": [models.Index(fields=["expires_at"], name="distlock_lease_expires_at")],
            },
        ),
        CreateIfMissing(
            name="WaiterRow",
            fields=[
                ("token", models.CharField(max_length=100, primary_key=True, serialize=False)),
                ("name_key", models.CharField(max_length=64)),
                ("place", models.BigIntegerField()),
                ("expire", models.BigIntegerField()),
                ("deadline", models.BigIntegerField()),
                ("holder", models.TextField()),
                ("wake", models.SmallIntegerField()),
            ],
            options={
                "db_table": "distlock_waiter",
                "base_manager_name": "objects",
                "default_permissions": (),
                "indexes": [models.Index(fields=["name_key", "place"], name="distlock_waiter_queue")],
            },
        ),
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
