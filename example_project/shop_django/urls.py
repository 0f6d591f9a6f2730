from __future__ import annotations

from django.contrib import admin
from django.urls import path

from . import views

urlpatterns = [
    path("", views.page),
    path("buy-unguarded/<slug:item>", views.buy_unguarded),
    path("buy/<slug:item>", views.buy),
    path("drill/without-lock", views.drill, {"guarded": False}, name="drill-without-lock"),
    path("drill/with-lock", views.drill, {"guarded": True}, name="drill-with-lock"),
    path("stocktaking", views.stocktaking, name="stocktaking"),
    path("locks.json", views.locks),
    path("admin/", admin.site.urls),
]
