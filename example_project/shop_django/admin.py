from __future__ import annotations

from django.contrib import admin

from .models import Sale, Stock


@admin.register(Stock)
class StockAdmin(admin.ModelAdmin):
    list_display = ("item", "delivered", "remaining", "sold")

    def sold(self, stock: Stock) -> int:
        return stock.sales.count()


@admin.register(Sale)
class SaleAdmin(admin.ModelAdmin):
    list_display = ("item", "shop", "request_id")
    list_filter = ("shop",)
