"""The page "Held locks" in Django's admin, beside what tests/web/test_pages.py says of all frameworks."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.admin import AdminSite
from django.contrib.admin.models import DELETION, LogEntry
from django.contrib.auth.models import Permission, User
from django.core.management import call_command
from django.db import connection
from django.http import HttpRequest
from django.test import Client
from django.urls import path

from distlock_web.core.backend import Claim, Granted
from distlock_web.core.registry import registry
from distlock_web.core.runtime import drive, new_token
from distlock_web.django.admin import HeldLock, HeldLockAdmin
from distlock_web.ops.held_locks import list_all

pytestmark = pytest.mark.django_db

LIST = "/admin/distlock_web/heldlock/"
RELEASE = LIST + "release/"


@pytest.fixture
def releaser(memory: None) -> Client:
    return client_of(staff=True)


def client_of(*, staff: bool) -> Client:
    user = User.objects.create_user("somebody", password="x", is_staff=staff)
    user.user_permissions.set(Permission.objects.filter(codename__in=["view_heldlock", "release_heldlock"]))
    client = Client()
    client.force_login(user)
    return client


def target(*leases: Any) -> dict[str, Any]:
    """What the form sends that asks for the release."""
    return {
        "lock": [json.dumps(["default", lease.name, str(lease.fence), False]) for lease in leases],
        "confirmed": "1",
    }


def messages(response: Any) -> list[str]:
    return [str(message) for message in response.context["messages"]]


def files_of(page: str) -> list[str]:
    """The addresses of our style sheets and of our script."""
    return re.findall(r'(?:href|src)="([^"]*/(?:held_locks|admin)\.[^"]*)"', page)


def test_its_files_are_collected_and_have_the_names_of_the_storage(
    releaser: Client, settings: Any, tmp_path: Path
) -> None:
    settings.STATIC_URL = "https://cdn.example/s/"
    manifest = "django.contrib.staticfiles.storage.ManifestStaticFilesStorage"
    settings.STATIC_ROOT = str(tmp_path)
    settings.STORAGES = {**settings.STORAGES, "staticfiles": {"BACKEND": manifest}}
    call_command("collectstatic", interactive=False, verbosity=0)
    files = files_of(releaser.get(LIST).content.decode())
    assert len(files) == 3
    for address in files:
        assert re.fullmatch(r"https://cdn.example/s/distlock_web/\w+\.[0-9a-f]{12}\.(css|js)", address)
        assert (tmp_path / address.removeprefix("https://cdn.example/s/")).is_file()


def test_its_files_come_from_the_page_itself_in_a_project_without_staticfiles(releaser: Client, settings: Any) -> None:
    settings.INSTALLED_APPS = [app for app in settings.INSTALLED_APPS if app != "django.contrib.staticfiles"]
    for address in files_of(releaser.get(LIST).content.decode()):
        assert "immutable" in releaser.get(address)["Cache-Control"]


def test_who_is_no_staff_is_sent_to_the_login(memory: None, elsewhere: Any) -> None:
    client, lease = client_of(staff=False), elsewhere("order:7")
    for response in (client.get(LIST), client.get(LIST + "lock/"), client.post(RELEASE, target(lease))):
        assert response.status_code == 302
        assert "/login/" in response["Location"]
    lease.extend()


def test_a_release_is_recorded(releaser: Client, elsewhere: Any) -> None:
    lease = elsewhere("order:7")
    response = releaser.post(RELEASE, {**target(lease), "back": "?q=order"})
    assert (response.status_code, response["Location"]) == (302, f"{LIST}?q=order")
    entry = LogEntry.objects.get()
    assert (entry.user.get_username(), entry.object_id, entry.action_flag) == ("somebody", "disLock:order:7", DELETION)
    assert str(lease.fence) in entry.change_message
    assert "disLock:order:7" in releaser.get("/admin/").content.decode()  # recent actions
    releaser.post(RELEASE, target(lease))
    assert LogEntry.objects.count() == 1  # nothing was released


def test_the_entry_of_a_name_that_no_database_takes(memory: None) -> None:
    """PostgreSQL refuses a NUL, after the lock was released."""
    claim = Claim("disLock:a\x00b", new_token(), 30.0)
    granted = drive(registry().store("default").backend.sync_port().acquire(claim, None))
    assert isinstance(granted, Granted)
    form = {"lock": json.dumps(["default", claim.name, str(granted.fence), False]), "confirmed": "1"}
    client_of(staff=True).post(RELEASE, form)
    assert LogEntry.objects.get().object_id == "disLock:a\N{REPLACEMENT CHARACTER}b"


def test_a_store_that_stops_answering_is_asked_once(settings: Any, elsewhere: Any, injector: Any) -> None:
    client = client_of(staff=True)
    leases = [elsewhere(f"order:{number}") for number in range(3)]
    injector.lose("revoke", *["request"] * 10)
    response = client.post(RELEASE, target(*leases), follow=True)
    assert len(messages(response)) == 1
    assert "cannot be reached at the moment" in messages(response)[0]
    assert injector.calls.count("revoke") == 2  # law 3: the first and its second copy
    (entry,) = LogEntry.objects.all()
    assert entry.change_message.startswith("Perhaps released by force: store default, fence ")


def test_an_entry_that_the_log_does_not_take_hides_nothing(
    releaser: Client, elsewhere: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """It was a 500 in the middle: nobody knew what was released, and the rest was not."""
    chosen = [elsewhere(f"order:{number}") for number in range(3)]
    with connection.cursor() as cursor:  # inside of the test's own transaction, which an error must not break
        cursor.execute(
            "CREATE TRIGGER full BEFORE INSERT ON django_admin_log WHEN NEW.object_id = 'disLock:order:1' "
            "BEGIN SELECT RAISE(ABORT, 'the disk is full'); END"
        )
    response = releaser.post(RELEASE, target(*chosen), follow=True)
    assert list_all(registry()).rows == []
    released, warning = messages(response)
    assert released.startswith("Released: “disLock:order:0”, “disLock:order:1”, “disLock:order:2”.")
    assert warning == (
        "Not recorded in the history: “disLock:order:1”. The application's log says who released it, "
        "and why it was not recorded."
    )
    assert set(LogEntry.objects.values_list("object_id", flat=True)) == {"disLock:order:0", "disLock:order:2"}
    assert "disLock:order:1 released by force by somebody" in caplog.text
    assert "the disk is full" in caplog.text


def test_the_migration_makes_the_permissions_and_no_table(db: None) -> None:
    names = set(Permission.objects.filter(content_type__app_label="distlock_web").values_list("codename", flat=True))
    assert names == {"view_heldlock", "release_heldlock"}
    assert not any("heldlock" in table for table in connection.introspection.table_names())
    call_command("makemigrations", "distlock_web", "distlock_web_sql", check=True, dry_run=True, verbosity=0)


class OnlyBosses(HeldLockAdmin):
    def has_release_permission(self, request: HttpRequest) -> bool:
        return request.user.get_username() == "boss"


@pytest.fixture(params=["admin", "another"])
def registered_again(request: pytest.FixtureRequest, settings: Any) -> Iterator[str]:
    """A class of the project's own, in Django's admin in place of ours, or in an admin of the project's own."""
    another = AdminSite("another")
    if request.param == "admin":
        admin.site.unregister(HeldLock)
        admin.site.register(HeldLock, OnlyBosses)
    else:
        another.register(HeldLock, OnlyBosses)
    urls = ModuleType("urls")
    urls.urlpatterns = [path("admin/", admin.site.urls), path("another/", another.urls)]  # type: ignore[attr-defined]
    settings.ROOT_URLCONF = urls
    yield f"/{request.param}/distlock_web/heldlock/"
    if request.param == "admin":
        admin.site.unregister(HeldLock)
        admin.site.register(HeldLock, HeldLockAdmin)


def test_it_can_be_registered_again(registered_again: str, releaser: Client, elsewhere: Any) -> None:
    lease = elsewhere("order:7")
    page = releaser.get(registered_again).content.decode()
    assert lease.name.removeprefix("disLock:") in page
    assert "Release" not in page
    assert f'data-fragment="{registered_again}' in page
    assert releaser.post(registered_again + "release/", target(lease)).status_code == 403
    boss = User.objects.get(username="somebody")
    boss.username = "boss"
    boss.save()
    boss.user_permissions.clear()
    assert releaser.post(registered_again + "release/", target(lease)).status_code == 403, "who may not look"
    assert list_all(registry()).rows
    boss.user_permissions.add(Permission.objects.get(codename="view_heldlock"))
    assert "Release" in releaser.get(registered_again).content.decode()
    assert releaser.post(registered_again + "release/", target(lease)).status_code == 302
    assert list_all(registry()).rows == []


def test_the_index_lists_the_page_like_a_model(releaser: Client) -> None:
    page = releaser.get("/admin/").content.decode()
    assert f'href="{LIST}"' in page
    assert "Distributed locks" in page
    assert "heldlock/add" not in page
    assert releaser.get("/admin/distlock_web/").status_code == 200
