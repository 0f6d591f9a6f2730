"""The page "Held locks" on the server's side: who may do what, what is escaped, what is released."""

from __future__ import annotations

import html
import json
import logging
import re
from typing import Any
from urllib.parse import urlencode

import pytest
from asgiref.sync import async_to_sync
from django.contrib.admin.models import DELETION, LogEntry
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import AsyncClient, Client
from django.urls import reverse

from distlock_web import ConfigurationError, LeaseLost, lock
from distlock_web.core.backend import Claim, Granted
from distlock_web.core.registry import registry
from distlock_web.core.runtime import drive, new_token
from distlock_web.web import release_pages
from distlock_web.web.held_locks import force_release, list_all
from distlock_web.web.page_assets import VERSION
from distlock_web.web.release_pages import Chosen
from tests.support.origins import begin_request

pytestmark = pytest.mark.django_db

LIST = "/admin/distlock_web/heldlock/"
LOCK = LIST + "lock/"
RELEASE = LIST + "release/"
HOSTILE = ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "' onmouseover='alert(1)", "</textarea><b>"]


def client_of(*permissions: str, csrf: bool = False, staff: bool = True) -> Client:
    user = User.objects.create_user("somebody", password="x", is_staff=staff)
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    assert user.user_permissions.count() == len(permissions)
    client = Client(enforce_csrf_checks=csrf)
    client.force_login(user)
    return client


@pytest.fixture
def viewer(memory: None) -> Client:
    return client_of("view_heldlock")


@pytest.fixture
def releaser(store: str) -> Client:
    return client_of("view_heldlock", "release_heldlock")


def key(lease: Any, store: str = "default", fence: object = None) -> str:
    return json.dumps([store, lease.name, str(fence or lease.fence)])


def target(lease: Any, **changed: Any) -> dict[str, Any]:
    """What the form sends that asks for the release."""
    return {"lock": key(lease, **changed), "confirmed": "1"}


def names(page: str) -> list[str]:
    """Those of the locks in a list, without their prefix, in order."""
    return [html.unescape(name) for name in re.findall(r'<span class="dl-prefix">disLock:</span>(.*?)</a>', page)]


def messages(response: Any) -> list[str]:
    return [str(message) for message in response.context["messages"]]


# Who may ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("permissions", "staff", "may_view", "may_release"),
    [
        ((), True, False, False),
        (("view_heldlock",), True, True, False),
        (("release_heldlock",), True, False, False),
        (("view_heldlock", "release_heldlock"), True, True, True),
        (("view_heldlock", "release_heldlock"), False, False, False),
    ],
)
def test_permissions(
    memory: None, elsewhere: Any, permissions: Any, staff: bool, may_view: bool, may_release: bool
) -> None:
    client = client_of(*permissions, staff=staff)
    lease = elsewhere("order:7")
    refused = 403 if staff else 302  # to the login page
    assert client.get(LIST).status_code == (200 if may_view else refused)
    assert client.get(LIST + "?fragment=1").status_code == (200 if may_view else refused)
    assert client.get(LOCK, {"store": "default", "name": lease.name}).status_code == (200 if may_view else refused)
    for page in (LIST, LIST + "?fragment=1", f"{LOCK}?store=default&name={lease.name}"):
        content = client.get(page).content
        assert (b"Release" in content) == may_release
    assert client.get(RELEASE, target(lease)).status_code == (200 if may_release else refused)
    assert client.post(RELEASE, target(lease)).status_code == (302 if may_release else refused)
    assert (list_all(registry()).rows == []) == may_release
    assert LogEntry.objects.count() == may_release


def test_the_index_lists_the_page_like_a_model(viewer: Client) -> None:
    page = viewer.get("/admin/").content.decode()
    assert f'href="{LIST}"' in page
    assert "Distributed locks" in page
    assert "heldlock/add" not in page
    assert viewer.get("/admin/distlock_web/").status_code == 200


def test_csrf_is_enforced(memory: None, elsewhere: Any) -> None:
    client = client_of("view_heldlock", "release_heldlock", csrf=True)
    lease = elsewhere("order:7")
    assert client.post(RELEASE, target(lease)).status_code == 403
    assert lease.state == "held"
    assert len(list_all(registry()).rows) == 1
    tokens = [
        re.findall(r'name="csrfmiddlewaretoken" value="(\w+)"', page.content.decode())[0]
        for page in (client.get(LIST), client.get(RELEASE, target(lease)))
    ]
    assert client.post(RELEASE, {**target(lease), "csrfmiddlewaretoken": tokens[0]}).status_code == 302
    assert list_all(registry()).rows == []


@pytest.mark.parametrize("method", ["get", "head", "put", "patch", "delete", "options"])
def test_only_a_post_releases(releaser: Client, elsewhere: Any, method: str) -> None:
    lease = elsewhere("order:7")
    response = getattr(releaser, method)(RELEASE, QUERY_STRING=urlencode(target(lease)))
    assert response.status_code == (200 if method in ("get", "head") else 405)
    assert len(list_all(registry()).rows) == 1


# The list ---------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("store")
def test_what_a_row_says(elsewhere: Any) -> None:
    client = client_of("view_heldlock")
    begin_request("abc-123", "POST /shop/pay/")
    with lock("order:7", expire=10) as lease:
        page = client.get(LIST).content.decode()
        detail = client.get(LOCK, {"store": "default", "name": lease.name}).content.decode()
    (holder,) = {line for line in re.findall(r"<span>(.*?)</span>", page) if "/shop/pay/" in line}
    assert holder == "POST /shop/pay/"
    assert names(page) == ["order:7"]
    for text in ("abc-123", "<span>9s</span>", "1 held lock"):
        assert text in page
    for text in ("disLock:order:7", "POST /shop/pay/", "abc-123", str(lease.fence), "held", "Taken", "Nobody waits."):
        assert text in detail
    width = re.search(r'class="dl-fill" width="(\d+)%"', page)
    assert width is not None
    assert 80 <= int(width[1]) <= 100


@pytest.mark.parametrize("hostile", HOSTILE)
def test_what_clients_send_is_escaped(memory: None, elsewhere: Any, hostile: str) -> None:
    client = client_of("view_heldlock", "release_heldlock")
    begin_request(hostile, f"GET /{hostile}")
    with lock(hostile) as lease:
        pages = [
            client.get(LIST), client.get(LIST, {"fragment": 1}), client.get(LIST, {"q": hostile}),
            client.get(LOCK, {"store": "default", "name": lease.name}),
            client.get(LOCK, {"store": hostile, "name": hostile}),
            client.get(RELEASE, {**target(lease), "back": hostile}), client.get(LIST, {"q": hostile + "nothing"}),
            client.get(LIST, {"q": hostile, "state": hostile, "sort": hostile}),
            client.post(RELEASE, {"lock": hostile, "confirmed": 1}, follow=True),
            client.post(RELEASE, target(lease, fence=1), follow=True),
        ]  # fmt: skip
    for page in pages:
        text = page.content.decode()
        assert page.status_code == 200
        assert hostile not in text
        assert "alert(1)" in text or "&lt;b&gt;" in text
    gone = "Nothing was released: the lock “{}” is no longer held by that holder."
    assert messages(pages[-1]) == [gone.format(f"disLock:{hostile}")]
    assert messages(pages[-2]) == [gone.format(hostile)]


def test_control_characters_and_direction_marks_are_replaced(viewer: Client) -> None:
    begin_request("abc", "GET /\x1b[31m\u202egnp.exe")
    with lock("order:7"):
        page = viewer.get(LIST).content.decode()
    assert "\x1b" not in page
    assert "\u202e" not in page
    assert "GET /\N{REPLACEMENT CHARACTER}[31m\N{REPLACEMENT CHARACTER}gnp.exe" in page


@pytest.mark.parametrize(
    ("search", "shown"),
    [
        ("", ["order:7", "stock:1"]),
        ("order", ["order:7"]),
        ("ABC", ["order:7"]),
        ("/shop/pay", ["order:7"]),
        ("order abc", ["order:7"]),
        ("order stock", []),
        ("stock", ["stock:1"]),
    ],
)
def test_search(viewer: Client, elsewhere: Any, search: str, shown: list[str]) -> None:
    elsewhere("stock:1")
    begin_request("abc", "POST /shop/pay/")
    with lock("order:7"):
        page = viewer.get(LIST, {"q": search}).content.decode()
    assert sorted(names(page)) == shown
    assert f'value="{search}"' in page
    assert ("No held lock matches." in page) == (not shown)


def test_pages_keep_the_search(viewer: Client) -> None:
    with lock([f"order:{number:03}" for number in range(120)]), lock("stock:1"):
        first = viewer.get(LIST, {"q": "order"}).content.decode()
        last = viewer.get(LIST, {"q": "order", "p": "3"}).content.decode()
        beyond = viewer.get(LIST, {"q": "order", "p": "99999"}).content.decode()
        nonsense = viewer.get(LIST, {"q": "order", "p": "x'"}).content.decode()
    assert [len(names(page)) for page in (first, last, beyond, nonsense)] == [50, 20, 20, 50]
    assert set(names(first)).isdisjoint(names(last))
    assert 'href="?q=order&amp;p=3"' in first
    assert "120 of 121 held locks" in first


def test_nothing_held(viewer: Client) -> None:
    assert "No lock is held at the moment." in viewer.get(LIST).content.decode()


def test_the_fragment_is_the_list_alone(viewer: Client) -> None:
    with lock("order:7"):
        page = viewer.get(LIST, {"fragment": 1}).content.decode()
    assert "disLock:order:7" in page
    assert "<html" not in page


@pytest.mark.django_db
def test_several_stores_one_of_them_down(settings: Any, elsewhere: Any) -> None:
    settings.DISTLOCK = {
        "default": {"BACKEND": "memory"}, "other": {"BACKEND": "memory"}, "down": {"LOCATION": "redis://127.0.0.1:1"},
    }  # fmt: skip
    client = client_of("view_heldlock", "release_heldlock")
    elsewhere("order:7", store="other")
    page = client.get(LIST)
    assert page.status_code == 200
    text = page.content.decode()
    assert names(text) == ["order:7"]
    assert '<td class="dl-store" data-label="Store">other</td>' in text
    assert "store “down” cannot be reached" in text
    assert "Traceback" not in text
    assert "store “down” cannot be reached" in client.get(LOCK, {"store": "down", "name": "a"}).content.decode()
    refused = client.post(RELEASE, {"lock": '["down", "a", "1"]', "confirmed": "1"}, follow=True)
    assert "store “down” cannot be reached" in messages(refused)[0]


def test_a_wrong_setting_is_said_on_the_page(settings: Any) -> None:
    settings.DISTLOCK = {"default": {"BACKEND": "memory", "EXPIRE": 0}}
    client = client_of("view_heldlock", "release_heldlock")
    page = client.get(LIST)
    assert page.status_code == 200
    assert "EXPIRE" in page.content.decode()
    assert client.get(LOCK, {"store": "default", "name": "a"}).status_code == 200
    refused = client.get(RELEASE, {"lock": '["default", "a", "1"]'}, follow=True)
    assert "EXPIRE" in messages(refused)[0]


# Release by force -------------------------------------------------------------------------------------------------


def test_release_by_force(releaser: Client, elsewhere: Any, caplog: pytest.LogCaptureFixture) -> None:
    lease = elsewhere("order:7")
    other = elsewhere("order:8")
    confirmation = releaser.get(RELEASE, target(lease))
    assert "disLock:order:7" in confirmation.content.decode()
    assert "both may work" in confirmation.content.decode()
    with caplog.at_level(logging.WARNING, "distlock_web"):
        response = releaser.post(RELEASE, target(lease), follow=True)
    assert messages(response) == [
        "The lock “disLock:order:7” was released. Its holder learns of it at its next round trip."
    ]
    assert [row.lock.name for row in list_all(registry()).rows] == [other.name]
    with pytest.raises(LeaseLost) as lost:
        lease.extend()
    assert lost.value.reason == "revoked"
    entry = LogEntry.objects.get()
    assert (entry.user.get_username(), entry.object_id, entry.action_flag) == ("somebody", "disLock:order:7", DELETION)
    assert str(lease.fence) in entry.change_message
    assert "disLock:order:7 released by force by somebody" in caplog.text
    assert "disLock:order:7" in releaser.get("/admin/").content.decode()  # recent actions


def test_the_entry_of_a_name_that_no_database_takes(memory: None) -> None:
    """PostgreSQL refuses a NUL, after the lock was released."""
    claim = Claim("disLock:a\x00b", new_token(), 30.0)
    granted = drive(registry().store("default").backend.sync_port().acquire(claim, None))
    assert isinstance(granted, Granted)
    form = {"lock": json.dumps(["default", claim.name, str(granted.fence)]), "confirmed": "1"}
    client_of("view_heldlock", "release_heldlock").post(RELEASE, form)
    assert LogEntry.objects.get().object_id == "disLock:a\N{REPLACEMENT CHARACTER}b"


def test_a_holder_that_came_later_is_left_alone(releaser: Client, elsewhere: Any) -> None:
    first = elsewhere("order:7")
    shown = target(first)
    first.release()
    second = elsewhere("order:7")
    assert second.fence != first.fence
    response = releaser.post(RELEASE, shown, follow=True)
    assert messages(response) == ["Nothing was released: the lock “disLock:order:7” is no longer held by that holder."]
    second.extend()  # still its own
    assert LogEntry.objects.count() == 0


def test_the_holder_changes_between_the_look_and_the_release(
    releaser: Client, elsewhere: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = elsewhere("order:7")
    (row,) = list_all(registry()).rows
    lease.release()
    second = elsewhere("order:7")
    monkeypatch.setattr("distlock_web.django.admin.choose", lambda *args: Chosen([row]))
    response = releaser.post(RELEASE, target(lease))
    assert response.status_code == 302
    second.extend()
    assert LogEntry.objects.count() == 0


@pytest.mark.parametrize(
    "wrong",
    [
        '["default", "disLock:order:7", "x"]',
        '["default", "disLock:order:7", ""]',
        "",
        "x",
        "[]",
        "null",
        "{}",
        "1",
        '["nowhere", "disLock:order:7", "1"]',
        '["default", "other", "1"]',
        "[" * 100_000,
        '[[], {}, "1"]',
        f'["default", "disLock:order:7", "{"1" * 5000}"]',
        '["default", "disLock:order:7", null]',
    ],
    ids=lambda text: text[:40],
)
def test_a_forged_target_releases_nothing(releaser: Client, elsewhere: Any, wrong: str) -> None:
    lease = elsewhere("order:7")
    for given in ({"lock": wrong, "confirmed": "1"}, {"confirmed": "1"}, {"host": "", "confirmed": "1"}):
        response = releaser.post(RELEASE, given, follow=True)
        assert response.status_code == 200
        assert "Nothing was released" in messages(response)[0]
    lease.extend()


def test_the_list_is_as_it_was_after_the_release(releaser: Client, elsewhere: Any) -> None:
    lease = elsewhere("order:7")
    page = releaser.get(LIST, {"q": "order 7", "sort": "-age"}).content.decode()
    link = re.search(r'href="(\S*release/\S*?)"', page)
    assert link is not None
    question = releaser.get(html.unescape(link[1])).content.decode()
    back = re.search(r'name="back" value="(.*?)"', question)
    assert back is not None
    response = releaser.post(RELEASE, {**target(lease), "back": html.unescape(back[1])})
    assert response["Location"] == f"{reverse('admin:distlock_web_heldlock_changelist')}?q=order+7&sort=-age"


@pytest.mark.parametrize("back", ["//evil.example", "https://evil.example/?q=a", "?next=//evil.example", "&" * 100])
def test_the_way_back_leads_nowhere_else(releaser: Client, elsewhere: Any, back: str) -> None:
    response = releaser.post(RELEASE, {**target(elsewhere("order:7")), "back": back})
    assert response["Location"].partition("?")[0] == LIST
    assert "evil" not in response["Location"]


def test_several_at_once_each_from_the_holder_that_was_shown(releaser: Client, elsewhere: Any) -> None:
    chosen = [elsewhere(f"order:{number}") for number in range(3)]
    other = elsewhere("order:9")
    question = releaser.post(RELEASE, {"lock": [key(lease) for lease in chosen]}).content.decode()
    assert "take 3 locks" in question
    assert len(list_all(registry()).rows) == 4
    chosen[0].release()
    successor = elsewhere("order:0")
    response = releaser.post(RELEASE, {"lock": [key(lease) for lease in chosen], "confirmed": "1"}, follow=True)
    assert messages(response) == [
        "2 locks were released: “disLock:order:1”, “disLock:order:2”. "
        "Their holders learn of it at their next round trips.",
        "Not released: the lock “disLock:order:0” is no longer held by that holder.",
    ]
    successor.extend()
    other.extend()
    assert set(LogEntry.objects.values_list("object_id", flat=True)) == {"disLock:order:1", "disLock:order:2"}


def test_a_store_that_stops_answering_is_asked_once(settings: Any, elsewhere: Any, injector: Any) -> None:
    client = client_of("view_heldlock", "release_heldlock")
    leases = [elsewhere(f"order:{number}") for number in range(3)]
    injector.lose("revoke", *["request"] * 10)
    response = client.post(RELEASE, {"lock": [key(lease) for lease in leases], "confirmed": "1"}, follow=True)
    assert len(messages(response)) == 1
    assert "cannot be reached at the moment" in messages(response)[0]
    assert injector.calls.count("revoke") == 2  # law 3: the first and its second copy
    injector.lose("revoke")


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
    response = releaser.post(RELEASE, {"lock": [key(lease) for lease in chosen], "confirmed": "1"}, follow=True)
    assert list_all(registry()).rows == []
    released, warning = messages(response)
    assert released.startswith("3 locks were released")
    assert warning == (
        "Released, and not recorded in the history: “disLock:order:1”. The application's log says who released it, "
        "and why it was not recorded."
    )
    assert set(LogEntry.objects.values_list("object_id", flat=True)) == {"disLock:order:0", "disLock:order:2"}
    assert "disLock:order:1 released by force by somebody" in caplog.text
    assert "the disk is full" in caplog.text


def test_a_store_whose_rights_are_gone_hides_not_what_was_released(
    releaser: Client, elsewhere: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = [elsewhere(f"order:{number}") for number in range(3)]
    asked = []

    def refused(registry: Any, row: Any, by: str) -> None:
        asked.append(row)
        if len(asked) > 1:
            raise ConfigurationError("The store does not allow this user to write.")
        force_release(registry, row, by)

    monkeypatch.setattr(release_pages, "force_release", refused)
    response = releaser.post(RELEASE, {"lock": [key(lease) for lease in chosen], "confirmed": "1"}, follow=True)
    released, error = messages(response)
    assert "“disLock:order:0” was released" in released
    assert "does not allow this user to write" in error
    assert len(asked) == 2
    assert len(list_all(registry()).rows) == 2


def test_one_lock_that_is_not_held(viewer: Client) -> None:
    page = viewer.get(LOCK, {"store": "default", "name": "disLock:order:7"})
    assert "This lock is not held at the moment." in page.content.decode()


def test_the_files_of_the_page_need_no_login(client: Client) -> None:
    for name in ("held_locks.css", "held_locks.js", "admin.css"):
        response = client.get(f"{LIST}assets/{name}", {"v": VERSION})
        assert response.status_code == 200
        assert "immutable" in response["Cache-Control"]
    for name in ("nothing.css", "..%2flist.html", "../templates/list.html"):
        assert client.get(f"{LIST}assets/{name}").status_code in (302, 404)


def test_the_migration_makes_the_permissions_and_no_table(db: None) -> None:
    from django.core.management import call_command
    from django.db import connection

    names = set(Permission.objects.filter(content_type__app_label="distlock_web").values_list("codename", flat=True))
    assert names == {"view_heldlock", "release_heldlock"}
    assert not any("heldlock" in table for table in connection.introspection.table_names())
    call_command("makemigrations", "distlock_web", check=True, dry_run=True, verbosity=0)


def test_the_page_under_asgi(memory: None, elsewhere: Any) -> None:
    client = AsyncClient()
    client.force_login(User.objects.create_superuser("admin", password="x"))
    elsewhere("order:7")
    # From outside of a loop the synchronous view runs in this thread, whose database connection is the test's.
    page = async_to_sync(client.get)(LIST)
    assert "disLock:order:7" in page.content.decode()
