import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="Stock",
            fields=[
                ("item", models.SlugField(primary_key=True, serialize=False)),
                ("delivered", models.PositiveIntegerField()),
                ("remaining", models.IntegerField()),
            ],
            options={
                "verbose_name_plural": "stock",
            },
        ),
        migrations.CreateModel(
            name="Sale",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("shop", models.CharField(max_length=20)),
                ("request_id", models.CharField(max_length=128)),
                (
                    "item",
                    models.ForeignKey(
                        db_column="item",
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="sales",
                        to="shop.stock",
                    ),
                ),
            ],
        ),
    ]
