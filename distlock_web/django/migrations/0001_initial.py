from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True
    dependencies = []

    operations = [
        migrations.CreateModel(
            name="HeldLock",
            fields=[("name", models.CharField(max_length=255, primary_key=True, serialize=False, verbose_name="lock"))],
            options={
                "verbose_name": "held lock",
                "verbose_name_plural": "held locks",
                "permissions": (("release_heldlock", "Can release held locks by force"),),
                "managed": False,
                "base_manager_name": "objects",
                "default_permissions": ("view",),
            },
        ),
    ]
