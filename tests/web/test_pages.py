"""The page "Held locks" in Django's admin and in Flask: what holds in both."""

from __future__ import annotations

import html
import json
import logging
import re
from collections.abc import Callable
from typing import Any, NamedTuple, cast
from urllib.parse import parse_qsl, urlencode

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client
from flask import Flask

from distlock_web import Lease, LeaseLost, lock, once
from distlock_web.core.registry import registry
from distlock_web.flask import DistLock, held_locks_blueprint
from distlock_web.ops.held_locks import list_all
from distlock_web.ops.lock_browser import LockQuery, browse
from distlock_web.testing.fault_injector import FaultInjector
from distlock_web.web.page_assets import VERSION
from tests.support.origins import begin_request

pytestmark = pytest.mark.django_db

Elsewhere = Callable[..., Lease]

HOSTILE = [
    "<script>alert(1)</script>\"'",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "</textarea><b>",
]


class Page(NamedTuple):
    status: int
    text: str
    headers: Any


class DjangoSite:
    url = "/admin/distlock_web/heldlock/"
    field, stranger = "csrfmiddlewaretoken", 403

    def __init__(self) -> None:
        self._user = User.objects.create_user("ann", password="x", is_staff=True)
        self._client = Client(enforce_csrf_checks=True)
        self._client.force_login(self._user)
        self.allow(view=True, release=True)

    def allow(self, *, view: bool, release: bool) -> None:
        allowed = [name for name, given in (("view_heldlock", view), ("release_heldlock", release)) if given]
        self._user.user_permissions.set(Permission.objects.filter(codename__in=allowed))

    def ask(self, method: str, path: str, query: dict[str, Any], **form: str) -> Page:
        response = self._client.generic(
            method.upper(), self.url + path, urlencode(form), "application/x-www-form-urlencoded",
            QUERY_STRING=urlencode(query),
        )  # fmt: skip
        return Page(response.status_code, response.content.decode(), response.headers)

    def post(self, form: dict[str, Any]) -> Page:
        response = self._client.post(self.url + "release/", form, follow=True)
        return Page(response.status_code, response.content.decode(), response.headers)


class FlaskSite:
    url = "/distlock/"
    field, stranger = "distlock_csrf", 400

    def __init__(self) -> None:
        self._may: dict[str, object] = {"view": "ann", "release": "ann"}
        app = Flask("shop")
        DistLock(app)  # with the stores of the process
        app.register_blueprint(held_locks_blueprint(self._may.get))
        self._client = app.test_client()

    def allow(self, *, view: bool, release: bool) -> None:
        self._may.update(view="ann" if view else None, release="ann" if release else None)

    def ask(self, method: str, path: str, query: dict[str, Any], **form: str) -> Page:
        response = self._client.open(self.url + path, method=method.upper(), query_string=query, data=form or None)
        return Page(response.status_code, response.text, response.headers)

    def post(self, form: dict[str, Any]) -> Page:
        response = self._client.post(self.url + "release/", data=form)
        return Page(response.status_code, response.text, response.headers)


Site = DjangoSite | FlaskSite


@pytest.fixture(params=[DjangoSite, FlaskSite])
def site(request: pytest.FixtureRequest, memory: None) -> Site:
    """Somebody is logged in who may see the locks and release them."""
    return cast(Site, request.param())


def get(site: Site, path: str = "", **query: Any) -> Page:
    return site.ask("get", path, query)


def token(site: Site) -> str:
    found = re.findall(rf'name="{site.field}" value="(\S+?)"', get(site).text)
    return str(found[0])


def key(lease: Lease, fence: object = None) -> str:
    return json.dumps(["default", lease.name, str(fence or lease.fence), False])


def release(site: Site, *locks: str, **more: Any) -> str:
    """What the page says afterwards."""
    page = site.post({"lock": list(locks), "confirmed": "1", site.field: token(site), **more})
    assert page.status == 200
    return html.unescape(page.text)


def held() -> list[str]:
    return sorted(row.lock.name for row in list_all(registry()).rows)


def test_the_list_one_lock_and_a_fragment(site: Site) -> None:
    begin_request("abc-123", "POST /shop/pay/")
    with lock("order:7", expire=10) as lease:
        page, fragment = get(site), get(site, fragment=1)
        detail = get(site, "lock/", store="default", name=lease.name)
        searched = get(site, q="order abc"), get(site, q="stock")
    assert [each.status for each in (page, fragment, detail, *searched)] == [200] * 5
    for text in ("abc-123", "POST /shop/pay/", "<span>9s</span>"):
        assert text in page.text
    assert '<span class="dl-prefix">disLock:</span><span class="dl-stem"></span><span>order:7</span></a>' in page.text
    assert "order:7" in fragment.text
    assert "<html" not in fragment.text
    assert "no-store" in fragment.headers["Cache-Control"]
    for text in ("disLock:order:7", "POST /shop/pay/", "abc-123", str(lease.fence), "held", "Nobody waits."):
        assert text in detail.text
    assert "order:7" in searched[0].text
    assert "No held lock matches." in searched[1].text


@pytest.mark.parametrize(("view", "may_release"), [(True, True), (True, False), (False, True), (False, False)])
def test_who_may(site: Site, elsewhere: Elsewhere, view: bool, may_release: bool) -> None:
    lease = elsewhere("order:7")
    form = {"lock": key(lease), "confirmed": "1", site.field: token(site)}
    site.allow(view=view, release=may_release)
    for path, query in (("", {}), ("", {"fragment": 1}), ("lock/", {"store": "default", "name": lease.name})):
        page = get(site, path, **query)
        assert page.status == (200 if view else 403)
        assert ("Release" in page.text) == (view and may_release)
    assert get(site, "release/", lock=key(lease)).status == (200 if view and may_release else 403)
    assert site.post(form).status == (200 if view and may_release else 403)
    assert held() == ([] if view and may_release else [lease.name])


@pytest.mark.parametrize("method", ["get", "head", "put", "patch", "delete"])
def test_only_a_post_releases(site: Site, elsewhere: Elsewhere, method: str) -> None:
    lease = elsewhere("order:7")
    for form in ({}, {"confirmed": "1"}):  # a body is possible in each of them
        asked = site.ask(method, "release/", {"lock": key(lease), "confirmed": "1"}, **form)
        assert asked.status in ((200,) if method in ("get", "head") else (405, site.stranger))
    assert held() == [lease.name]


def test_a_form_of_another_site_releases_nothing(site: Site, elsewhere: Elsewhere) -> None:
    lease = elsewhere("order:7")
    form = {"lock": key(lease), "confirmed": "1"}
    known = token(site)
    for wrong in ({}, {site.field: ""}, {site.field: "x"}, {site.field: known + "é"}):
        assert site.post({**form, **wrong}).status == site.stranger
    assert held() == [lease.name]
    assert site.post({**form, site.field: known}).status == 200
    assert held() == []


def test_release_by_force(site: Site, elsewhere: Elsewhere, caplog: pytest.LogCaptureFixture) -> None:
    lease, other = elsewhere("order:7"), elsewhere("order:8")
    question = get(site, "release/", lock=key(lease), back="?q=order").text
    assert "disLock:order:7" in question
    assert "both may work" in question
    assert held() == [lease.name, other.name]
    with caplog.at_level(logging.WARNING, "distlock_web"):
        done = release(site, key(lease))
    assert "Released: “disLock:order:7”. The holder learns of it at its next round trip." in done
    assert "disLock:order:7 released by force by ann" in caplog.text
    assert held() == [other.name]
    with pytest.raises(LeaseLost) as lost:
        lease.extend()
    assert lost.value.reason == "revoked"


def test_a_release_that_the_store_did_not_answer_is_logged_with_who_did_it(
    site: Site, elsewhere: Elsewhere, caplog: pytest.LogCaptureFixture
) -> None:
    lease = elsewhere("order:7")
    injector = FaultInjector(registry().store("default"))
    injector.lose("revoke", "answer", "answer")
    with caplog.at_level(logging.WARNING, "distlock_web"):
        assert "It is not known whether the lock “disLock:order:7” was released." in release(site, key(lease))
    assert "Lock disLock:order:7 perhaps released by force by ann: " in caplog.text
    assert held() == []


def test_several_at_once_each_from_the_holder_that_was_shown(site: Site, elsewhere: Elsewhere) -> None:
    chosen = [elsewhere(f"order:{number}") for number in range(3)]
    shown = [key(lease) for lease in chosen]
    question = site.post({"lock": shown, site.field: token(site)})
    assert "release 3 locks" in question.text
    assert len(held()) == 3
    chosen[0].release()
    successor = elsewhere("order:0")
    done = release(site, *shown)
    assert "Released: “disLock:order:1”, “disLock:order:2”." in done
    assert "Not released, because that holder no longer has it: “disLock:order:0”." in done
    successor.extend()
    assert held() == [successor.name]


@pytest.mark.parametrize(
    "wrong",
    [
        '["default", "disLock:order:7", "x"]', '["default", "disLock:order:7", ""]', "", "x", "[]", "null", "{}", "1",
        '["nowhere", "disLock:order:7", "1"]', '["default", "other", "1"]', '["default", "disLock:order:7", "1"]',
        "[" * 100_000, '[[], {}, "1"]', f'["default", "disLock:order:7", "{"1" * 5000}"]',
        '["default", "disLock:order:7", null]', None,
    ],
    ids=lambda text: str(text)[:40],
)  # fmt: skip
def test_a_forged_target_releases_nothing(site: Site, elsewhere: Elsewhere, wrong: str | None) -> None:
    lease = elsewhere("order:7")
    assert re.search("Nothing was released|Not released", release(site, *([] if wrong is None else [wrong])))
    lease.extend()


def test_the_list_is_as_it_was_after_the_release(site: Site, elsewhere: Elsewhere) -> None:
    lease = elsewhere("order:7")
    link = re.search(r'href="\S*release/\?(\S*?)"', get(site, q="order 7").text)
    assert link is not None
    asked = dict(parse_qsl(html.unescape(link[1])))
    assert asked == {"lock": key(lease), "back": "?q=order+7"}
    question = get(site, "release/", **asked).text
    assert f'name="back" value="{html.escape(asked["back"])}"' in question
    done = release(site, asked["lock"], back=asked["back"])
    assert 'value="order 7"' in done or f'href="{site.url}{asked["back"]}"' in done  # the list again, or a link to it


@pytest.mark.parametrize("back", ["//evil.example", "https://evil.example/?q=a", "?next=//evil.example", "&" * 100])
def test_the_way_back_leads_nowhere_else(site: Site, elsewhere: Elsewhere, back: str) -> None:
    assert "evil" not in release(site, key(elsewhere("order:7")), back=back)


@pytest.mark.parametrize("hostile", HOSTILE)
def test_what_clients_send_is_escaped(site: Site, hostile: str) -> None:
    begin_request(hostile, f"GET /{hostile}")
    with lock(hostile) as lease:
        pages = [
            get(site), get(site, fragment=1), get(site, q=hostile), get(site, q=hostile + "nothing"),
            get(site, "lock/", store="default", name=lease.name),
            get(site, "lock/", store=hostile, name=hostile), get(site, "release/", lock=key(lease), back=hostile),
            site.post({"lock": hostile, "confirmed": "1", site.field: token(site)}),
            site.post({"lock": key(lease, fence=1), "confirmed": "1", site.field: token(site)}),
        ]  # fmt: skip
    for page in pages:
        assert page.status == 200
        assert hostile not in page.text
        assert hostile in html.unescape(page.text) or "No held lock" in page.text


def test_its_files_need_no_login_and_are_kept_by_their_version(site: Site) -> None:
    site.allow(view=False, release=False)
    for name in ("held_locks.css", "held_locks.js"):
        kept = {
            version: get(site, f"assets/{name}", v=version).headers["Cache-Control"]
            for version in (VERSION, "0" * len(VERSION), "")
        }
        assert "immutable" in kept[VERSION]
        assert kept["0" * len(VERSION)] == kept[""] == "no-cache", "another version's, in a rolling deployment"
    for name in ("nothing.css", "../templates/list.html"):
        assert get(site, f"assets/{name}").status == 404


def test_a_store_that_is_down_and_a_setting_that_is_wrong_are_said(settings: Any, site: Site) -> None:
    known = token(site)
    for wrong, said in (({"LOCATION": "redis://127.0.0.1:1"}, "cannot be reached"), ({"EXPIRE": 0}, "EXPIRE")):
        settings.DISTLOCK = {"default": wrong}
        for page in (
            get(site), get(site, "lock/", store="default", name="a"),
            site.post({"lock": '["default", "a", "1", false]', "confirmed": "1", site.field: known}),
        ):  # fmt: skip
            assert page.status == 200
            assert said in html.unescape(page.text)


def test_what_is_done_has_a_page_of_its_own(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    runs = []

    @once(key="pay:{order}", keep="24h")
    def pay(order: str) -> None:
        runs.append(order)

    pay("7")
    pay(HOSTILE[1])
    assert "pay:7" not in get(site).text, "nobody holds it"
    assert "done=1" in get(site).text
    page = get(site, done="1")
    (found,) = [name for name in re.findall(r'name="lock" value="(.*?)"', page.text) if "pay:7" in name]
    assert HOSTILE[1] not in page.text
    assert re.search(r"23h 59m|1d", page.text), "how long it is kept"
    assert get(site, done="1", q="nobody").text.count("Nothing that was done matches.") == 1
    assert "Kept for" in get(site, "lock/", store="default", name="disLock:once:pay:7").text
    question = site.ask("get", "release/", {"lock": html.unescape(found), "back": "?done=1"}).text
    assert "runs again" in question
    with caplog.at_level("WARNING", "distlock_web"):
        said = release(site, html.unescape(found), back="?done=1")
    assert "Forgotten: “disLock:once:pay:7”. The next call with that key runs again." in said
    assert any(line.startswith("Lock disLock:once:pay:7 forgotten by ann") for line in caplog.messages)
    pay("7")
    pay(HOSTILE[1])
    assert runs == ["7", HOSTILE[1], "7"]
    assert "no longer has it" in release(site, html.unescape(found)), "that was another run"


def test_a_run_that_ends_before_the_yes_is_not_forgotten(site: Site) -> None:
    """Its record has the fence of the lock that was to be taken: the next click would have paid again."""
    shown: list[str] = []

    @once(key="pay", keep="24h")
    def pay() -> None:
        shown.extend(re.findall(r'name="lock" value="(.*?)"', get(site).text))

    pay()
    assert "no longer has it" in release(site, *map(html.unescape, shown))
    (row,) = browse(registry(), LockQuery(done=True)).rows
    assert row.done
