from __future__ import annotations

from django.contrib import admin
from django.urls import path

from ..environment import KEEPS_RECORDS
from . import views

urlpatterns = [
    path("", views.page),
    path("buy-without-lock/<slug:item>", views.buy_without_lock),
    path("buy/<slug:item>", views.buy),
    path("stocktaking", views.stocktaking, name="stocktaking"),
    path("admin/", admin.site.urls),
]

if KEEPS_RECORDS:
    from .orders import order

    urlpatterns += [path("order/<slug:item>", order)]
