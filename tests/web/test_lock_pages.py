"""What the pages of held locks show, the same in Django's engine and in Jinja."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from distlock_web import Lease, lock
from distlock_web.core.registry import registry
from distlock_web.django.admin import render as render_in_django
from distlock_web.flask.lock_pages import environment
from distlock_web.ops import lock_browser
from distlock_web.ops.held_locks import list_all
from distlock_web.ops.readable import span
from distlock_web.web import release_pages
from distlock_web.web.lock_pages import Viewer, list_context, lock_context
from distlock_web.web.lock_presenter import Links, LockKey, LockPresenter
from distlock_web.web.release_pages import choose, release_context
from tests.support.origins import begin_request

HOSTILE = "<script>alert(1)</script>\"'&\x1b[31m\u202e{{ 7*7 }}{% x %}"
LINKS = Links("/locks/", "/locks/lock/", "/locks/release/")
RELEASER, VIEWER = Viewer(LINKS, may_release=True), Viewer(LINKS, may_release=False)


def plain(page: str) -> str:
    """The page without what the engines do differently: how they escape quotes, and white space between elements."""
    return re.sub(r"\s+", " ", re.sub(r">\s+<", "><", html.unescape(page))).strip()


def render(template: str, context: dict[str, Any]) -> str:
    """In both engines, which have to agree."""
    in_django = str(render_in_django(template, context))
    in_jinja = environment.get_template(template).render(context)
    assert plain(in_django) == plain(in_jinja)
    for page in (in_django, in_jinja):
        assert "<script" not in page
        assert "\x1b" not in page
        assert "\u202e" not in page
    return in_django


def totals(page: str) -> list[str]:
    return re.findall(r"<dd>(.*?)</dd></div>", page)


@pytest.fixture
def busy(memory: None, elsewhere: Callable[..., Lease]) -> Iterator[Lease]:
    """Some locks, the last one with all that may be known of a holder, and hostile where it may be."""
    for number in range(120):
        elsewhere(f"order:{number}")
    begin_request(HOSTILE, f"GET /{HOSTILE}")
    with lock(HOSTILE, expire=30) as lease:
        yield lease


@pytest.mark.parametrize("viewer", [RELEASER, VIEWER], ids=["releaser", "viewer"])
@pytest.mark.parametrize(
    "parameters",
    [{}, {"q": "script"}, {"q": "nothing"}, {"q": HOSTILE}],
    ids=str,
)
def test_the_list(busy: Lease, viewer: Viewer, parameters: dict[str, str]) -> None:
    context = list_context(parameters, viewer)
    page = render("list.html", context)
    assert plain(render("list_live.html", context)) != ""
    assert ("Release" in page) == viewer.may_release
    assert page.count("<tr>") - ("<thead>" in page) == len(context["locks"])


def test_of_several_stores_one_that_is_down_leaves_the_totals_open(
    settings: Any, elsewhere: Callable[..., Lease]
) -> None:
    settings.DISTLOCK = {"default": {"BACKEND": "memory"}, "other": {"LOCATION": "redis://127.0.0.1:1"}}
    elsewhere("order:1")
    elsewhere("order:2")
    page = render("list.html", list_context({}, RELEASER))
    assert totals(page)[:2] == ["2+", "?"]  # whether anybody waits is not known
    assert "“other” cannot be reached" in page


def test_very_many(busy: Lease, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_browser, "READ_AT_MOST", 20)
    page = render("list.html", list_context({}, RELEASER))
    assert "121 locks are held. Order and totals are of 20 of them" in page
    monkeypatch.setattr(lock_browser, "SHOWN", 10)
    assert "The first 10 of 20 are shown: a search narrows the list." in render("list.html", list_context({}, RELEASER))


def test_a_lock_without_a_fence(busy: Lease, monkeypatch: pytest.MonkeyPatch) -> None:
    (row,) = [row for row in list_all(registry()).rows if row.lock.name == busy.name]
    lock = LockPresenter(replace(row, lock=replace(row.lock, fence=None)), LINKS)
    context = {**lock_context({"store": "default", "name": busy.name}, RELEASER), "lock": lock, "holders": [lock]}
    assert "cannot be released here" in render("lock.html", context)
    rows = render("rows.html", {**list_context({}, RELEASER), "locks": [lock]})
    assert 'name="lock"' not in rows


def test_the_question_before(busy: Lease, monkeypatch: pytest.MonkeyPatch) -> None:
    key = LockKey("default", busy.name, busy.fence or 0).dumps()
    page = render("release.html", release_context(choose([key]), RELEASER, {"back": HOSTILE}))
    assert "Yes, release it" in page
    keys = [LockPresenter(row, LINKS).key for row in list_all(registry()).rows]
    many = render("release.html", release_context(choose(keys), RELEASER, {}))
    assert "Yes, release 121 locks" in many
    messages = release_pages.release(choose([HOSTILE]), "ann", print)
    assert "Not released" in render("released.html", {"messages": messages, "list_url": "/"})


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (-1, "0s"),
        (0.9, "0s"),
        (59.9, "59s"),
        (60, "1m"),
        (125, "2m 5s"),
        (3600, "1h"),
        (11_400, "3h 10m"),
        (9e4, "1d 1h"),
    ],
)
def test_lengths_of_time(seconds: float, shown: str) -> None:
    assert span(seconds) == shown


def test_a_name_with_half_of_a_character_can_be_shown(busy: Lease) -> None:
    row = next(row for row in list_all(registry()).rows if row.lock.name == busy.name)
    shown = LockPresenter(replace(row, lock=replace(row.lock, name="a\ud800\x00")), LINKS)
    for text in (shown.lock_url, shown.release_url, shown.key):
        assert text.isascii()
        assert text.isprintable()
