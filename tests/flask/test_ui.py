"""The page "Held locks" in Flask, beside what tests/web/test_pages.py says of all: who may, and the forms' token."""

from __future__ import annotations

import contextvars
import html
import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from flask import Blueprint, Flask, abort, redirect
from flask.testing import FlaskClient
from jinja2 import TemplateNotFound

from distlock_web import ConfigurationError, Lease, LeaseLost, lock
from distlock_web.core.registry import Registry
from distlock_web.flask import DistLock, held_locks_blueprint
from distlock_web.ops.held_locks import list_all

HOSTILE = "<script>alert(1)</script>\"'"


class Site:
    """An app with the pages. ``may`` says what its user may, and gives their name."""

    url = "/distlock/"

    def __init__(self) -> None:
        self.may: dict[str, object] = {"view": "ann", "release": "ann"}
        self.app = Flask("shop")
        self.app.config["DISTLOCK"] = {"default": {"BACKEND": "memory"}}
        DistLock(self.app)
        self.app.register_blueprint(held_locks_blueprint(lambda action: self.authorize(action)))
        self.client: FlaskClient = self.app.test_client()
        self.stores: Registry = self.app.extensions["distlock"].registry

    def authorize(self, action: str) -> object:
        return self.may[action]

    def get(self, path: str = "", **parameters: Any) -> Any:
        return self.client.get(self.url + path, query_string=parameters)

    def token(self) -> str:
        (token,) = set(re.findall(r'name="distlock_csrf" value="(\S+?)"', self.get().text))
        return str(token)

    def release(self, *leases: Lease, **more: Any) -> Any:
        keys = [json.dumps(["default", lease.name, str(lease.fence), False]) for lease in leases]
        form = {"lock": keys, "confirmed": "1", "distlock_csrf": self.token(), **more}
        return self.client.post(self.url + "release/", data=form)

    @property
    def held(self) -> list[str]:
        return [row.lock.name for row in list_all(self.stores).rows]


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site()
    yield site
    site.stores.close()


@pytest.fixture
def hold(site: Site) -> Iterator[Callable[..., Lease]]:
    """Hold a lock in the app, outside of the test's own call chain."""
    held: list[tuple[contextvars.Context, Lease]] = []

    def acquire(key: str) -> Lease:
        def in_app() -> Lease:
            with site.app.app_context():
                return lock(key, expire=30).acquire()

        context = contextvars.Context()
        held.append((context, context.run(in_app)))
        return held[-1][1]

    yield acquire
    for context, lease in held:
        if lease.state == "held":
            with suppress(LeaseLost):  # released by force: the lease does not know it yet
                context.run(lease.release)


@pytest.mark.parametrize("no", [None, "", False])
def test_what_says_no(site: Site, hold: Callable[..., Lease], no: object) -> None:
    lease = hold("order:7")
    site.may.update(release=no)
    assert "Release" not in site.get().text
    site.may.update(view=no, release="ann")
    assert site.get().status_code == 403
    assert site.get("release/").status_code == 403
    site.may.update(view=True, release=True)
    assert "Released" in site.release(lease).text


@pytest.mark.parametrize("answer", [("log in first", 401), object(), 1], ids=["a tuple", "an object", "1"])
def test_what_is_no_answer_lets_nobody_in(site: Site, hold: Callable[..., Lease], answer: object) -> None:
    """All of these are true, and so was a coroutine: everybody could release every lock."""
    hold("order:7")
    site.may.update(view=answer)
    for path in ("", "lock/", "release/"):
        page = site.get(path)
        assert page.status_code == 500
        assert "order" not in page.text
    site.may.update(view="ann", release=answer)
    assert site.client.post(site.url + "release/").status_code == 500


def test_who_may_not_can_be_sent_to_the_login(site: Site) -> None:
    site.may.update(view=redirect("/login"), release=redirect("/login"))
    for path in ("", "lock/", "release/"):
        page = site.get(path)
        assert (page.status_code, page.headers["Location"]) == (302, "/login")


def test_an_abort_is_a_no_as_well(site: Site, hold: Callable[..., Lease]) -> None:
    hold("order:7")

    def may(action: str) -> object:
        return abort(403) if action == "release" else "ann"

    site.authorize = may  # type: ignore[method-assign]
    page = site.get()
    assert page.status_code == 200, "who may look is not shut out by what they may not do"
    assert "order:7" in page.text
    assert "release/" not in page.text
    assert site.get("release/").status_code == 403
    site.authorize = lambda action: abort(401)  # type: ignore[method-assign]
    assert site.get().status_code == 401, "the app's own answer"


def test_a_form_of_another_site_releases_nothing(site: Site, hold: Callable[..., Lease]) -> None:
    lease = hold("order:7")
    token = site.token()
    form = {
        "lock": json.dumps(["default", lease.name, str(lease.fence), False]),
        "confirmed": "1",
        "distlock_csrf": token,
    }
    cross = site.client.post(site.url + "release/", data=form, headers={"Sec-Fetch-Site": "cross-site"})
    assert cross.status_code == 400
    stranger = site.app.test_client()  # has no cookie
    assert stranger.post(site.url + "release/", data=form).status_code == 400
    assert stranger.post(site.url + "release/", data={**form, "distlock_csrf": ""}).status_code == 400
    assert site.held == [lease.name]
    assert site.release(lease).status_code == 200


def test_the_cookie_of_the_forms(site: Site) -> None:
    cookie = site.get().headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Lax" in cookie
    assert f"Path={site.url}" in cookie
    assert "Set-Cookie" not in site.get().headers  # it is known
    secure = site.app.test_client().get(site.url, base_url="https://shop.example")
    assert "Secure" in secure.headers["Set-Cookie"]


@pytest.mark.parametrize("secret", ["a secret", b"a secret"])
def test_a_cookie_that_a_neighbour_has_planted_releases_nothing(
    site: Site, hold: Callable[..., Lease], secret: str | bytes
) -> None:
    """Another subdomain can set the cookie; its own form repeated it."""
    lease = hold("order:7")
    site.app.secret_key = secret
    site.client.set_cookie("distlock_csrf", "planted", path=site.url)
    assert site.release(lease, distlock_csrf="planted").status_code == 400
    site.may.update(release="mallory")  # who may release, too, and knows what forms of theirs have
    theirs = site.token()
    site.may.update(release="ann")
    assert site.release(lease, distlock_csrf=theirs).status_code == 400
    assert site.held == [lease.name]
    assert site.release(lease).status_code == 200
    assert site.held == []


def test_a_cookie_that_is_empty_is_none(site: Site, hold: Callable[..., Lease]) -> None:
    """No form was ever accepted, and no reload helped."""
    site.client.set_cookie("distlock_csrf", "", path=site.url)
    assert site.release(hold("order:7")).status_code == 200


def test_the_token_of_an_app_that_protects_itself(site: Site) -> None:
    site.app.jinja_env.globals["csrf_token"] = lambda: "of-the-app"
    assert '<input type="hidden" name="csrf_token" value="of-the-app">' in site.get().text


# The blueprint ------------------------------------------------------------------------------------------------------


async def somebody(action: str) -> str:
    return "ann"


def bare(**options: Any) -> Flask:
    app = Flask("shop", **options)
    app.config["DISTLOCK"] = {"default": {"BACKEND": "memory"}}
    DistLock(app)
    return app


@pytest.mark.parametrize("authorize", [None, True, somebody])
def test_who_may_has_to_be_said(authorize: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"a plain function .* Without it everybody"):
        held_locks_blueprint(authorize)


def nested(app: Flask, pages: Blueprint) -> None:
    ops = Blueprint("ops", __name__, url_prefix="/ops")
    ops.register_blueprint(pages, url_prefix="/locks")
    app.register_blueprint(ops)


@pytest.mark.parametrize(
    "register",
    [
        lambda app, pages: app.register_blueprint(pages, url_prefix="/ops/locks"),
        lambda app, pages: app.register_blueprint(pages, url_prefix="/ops/locks", name="locks"),
        nested,
    ],
    ids=["prefix", "name", "nested"],
)
def test_it_is_registered_as_any_other(register: Callable[[Flask, Blueprint], None]) -> None:
    app = bare()
    register(app, held_locks_blueprint(lambda action: "ann"))
    page = app.test_client().get("/ops/locks/")
    assert page.status_code == 200
    addresses = re.findall(r'(?:href|src|action)="(/[^"]*)"', page.text)
    assert len(addresses) > 3
    for address in addresses:
        assert address.startswith("/ops/locks/")
        assert app.test_client().get(html.unescape(address)).status_code == 200
    assert "default-src 'none'" in page.headers["Content-Security-Policy"]
    assert (page.headers["X-Frame-Options"], page.headers["Cache-Control"]) == ("DENY", "no-store")


def test_a_projects_own_page_is_around_it(tmp_path: Path) -> None:
    """It may extend the project's base, which loads what it needs and has names of its own."""
    base = '<html lang="{{ language }}"><h1>The shop {{ page_css }}</h1>{% block main %}{% endblock %}</html>'
    (tmp_path / "base.html").write_text(base)
    (tmp_path / "distlock_web").mkdir()
    own = tmp_path / "distlock_web" / "page.html"
    own.write_text('{% extends "base.html" %}{% block main %}{{ held_locks_css }} {{ title }} {{ body }}{% endblock %}')
    app = bare(template_folder=str(tmp_path))
    app.register_blueprint(held_locks_blueprint(lambda action: "ann"))
    app.jinja_env.globals.update(language="de", page_css="/shop.css")
    with app.app_context(), lock("<order>"):
        page = app.test_client().get("/distlock/")
    assert '<html lang="de"><h1>The shop /shop.css</h1>' in page.text
    assert "/distlock/assets/held_locks.css?v=" in page.text
    assert "<span>&lt;order&gt;</span></a>" in page.text
    assert "default-src" not in page.headers["Content-Security-Policy"]
    assert "frame-ancestors 'none'" in page.headers["Content-Security-Policy"]
    assert page.headers["X-Frame-Options"] == "DENY"
    own.write_text('{% extends "nowhere.html" %}')
    app.jinja_env.cache.clear()
    app.testing = True
    with pytest.raises(TemplateNotFound, match="nowhere"):
        app.test_client().get("/distlock/")
