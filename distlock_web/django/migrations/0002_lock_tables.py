from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("distlock_web", "0001_initial"),
    ]

    operations = [
        migrations.CreateModel(
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
                "default_permissions": (),
                "indexes": [models.Index(fields=["expires_at"], name="distlock_lease_expires_at")],
            },
        ),
        migrations.CreateModel(
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
                "default_permissions": (),
                "indexes": [models.Index(fields=["name_key", "place"], name="distlock_waiter_queue")],
            },
        ),
    ]
