from __future__ import annotations

from django.apps import AppConfig


class ShopConfig(AppConfig):
    name = "example_project.shop_django"
    label = "shop"
    verbose_name = "Flash sale"
    default_auto_field = "django.db.models.BigAutoField"
