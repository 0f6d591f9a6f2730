"""A shop in Django's admin, on a database in a file: two requests have a connection each, as on a server."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from django.apps import AppConfig
from django.contrib import admin, messages
from django.contrib.admin.models import LogEntry
from django.contrib.auth.admin import UserAdmin
from django.contrib.auth.models import Group, Permission, User
from django.contrib.contenttypes.models import ContentType
from django.contrib.sessions.models import Session
from django.db import connections, models
from django.http import HttpRequest, HttpResponse
from django.urls import path

from distlock_web.django.admin import SaveOnceMixin
from tests.support.databases import Database, django_alias
from tests.support.waiting import SOON


class ShopConfig(AppConfig):
    name, label, path = __name__, "shop", str(Path(__file__).parent)


class Order(models.Model):
    name: models.CharField[str, str] = models.CharField(max_length=20)
    sent: models.IntegerField[int, int] = models.IntegerField(default=0, editable=False)

    class Meta:
        app_label = "shop"

    def __str__(self) -> str:
        return f"<{self.name}>"


class Line(models.Model):
    order: Any = models.ForeignKey(Order, models.CASCADE)
    item: models.CharField[str, str] = models.CharField(max_length=20)

    class Meta:
        app_label = "shop"


class Clicks:
    """How many forms have come. The first one's work goes on when the second has come, if ``together`` is set."""

    def __init__(self) -> None:
        self.begin()

    def begin(self, *, together: bool = False, fails: int = 0) -> None:
        """``fails``: so often, from now on."""
        self.together, self.fails = together, fails
        self._second = threading.Event()
        self.count = 0
        self._lock = threading.Lock()

    def come(self) -> None:
        with self._lock:
            self.count += 1
            if self.count == 2:
                self._second.set()

    def work(self) -> None:
        if self.together and not self._second.wait(SOON):
            raise AssertionError("nobody has clicked twice")
        if self.fails:
            self.fails -= 1
            raise ValueError("the payment was declined")


clicks = Clicks()


class Counts:
    """A middleware: the outermost, which sees a form before anybody waits."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if request.method == "POST":
            clicks.come()
        return self.get_response(request)


class Lines(admin.TabularInline):  # type: ignore[type-arg]  # not generic when it runs
    model = Line
    extra = 1


class PlainAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    inlines = (Lines,)
    actions = ("send", "export")

    def save_model(self, request: Any, obj: Any, form: Any, change: Any) -> None:
        super().save_model(request, obj, form, change)
        clicks.work()

    def send(self, request: HttpRequest, orders: Any) -> None:
        clicks.work()
        orders.update(sent=models.F("sent") + 1)
        messages.success(request, "Orders were sent")

    def export(self, request: HttpRequest, orders: Any) -> HttpResponse:
        orders.update(sent=models.F("sent") + 1)
        clicks.work()
        return HttpResponse("a,b\n", content_type="text/csv")


class OrderAdmin(SaveOnceMixin, PlainAdmin):
    pass


class OnceUserAdmin(SaveOnceMixin, UserAdmin):  # type: ignore[type-arg]
    def log_change(self, *args: Any, **kwargs: Any) -> Any:
        clicks.work()
        return super().log_change(*args, **kwargs)


plain, site = admin.AdminSite("plain"), admin.AdminSite("admin")
plain.register(Order, PlainAdmin)
site.register(Order, OrderAdmin)
site.register(User, OnceUserAdmin)
urlpatterns = [path("plain/", plain.urls), path("admin/", site.urls)]


@contextmanager
def shop_admin(database: Database, settings: Any, *, atomic_requests: bool) -> Iterator[Clicks]:
    """The site's urls and tables, with the user ``admin``; on the stores of ``settings``."""
    tables = (ContentType, Permission, Group, User, Session, LogEntry, Order, Line)
    settings.ROOT_URLCONF = __name__
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, f"{__name__}.ShopConfig"]
    settings.MIDDLEWARE = [f"{__name__}.Counts", *settings.MIDDLEWARE]
    with django_alias("default", database, *tables):
        connections.settings["default"]["ATOMIC_REQUESTS"] = atomic_requests
        connections["default"].settings_dict["ATOMIC_REQUESTS"] = atomic_requests
        User.objects.create_superuser("admin", password="admin")
        clicks.begin()
        ContentType.objects.clear_cache()  # it has those of other tests' databases
        yield clicks
    ContentType.objects.clear_cache()
