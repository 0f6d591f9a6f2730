"""``SaveOnceMixin``: two clicks on Save in Django's admin add one object, and the second is shown what that was."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from html import unescape
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connections
from django.test import Client

from distlock_web.django import save_once
from tests.support.databases import Database
from tests.support.shop_admin import Clicks, Line, Order, shop_admin
from tests.support.waiting import SOON

ADD, LIST = "shop/order/add/", "shop/order/"
FORM = {
    "name": "shoes", "line_set-TOTAL_FORMS": "1", "line_set-INITIAL_FORMS": "0", "line_set-0-item": "left",
    "_save": "Save",
}  # fmt: skip


pytestmark = pytest.mark.slow  # ten tables are made for each


@pytest.fixture(params=[False, True], ids=["autocommit", "ATOMIC_REQUESTS"])
def clicks(
    request: pytest.FixtureRequest,
    memory: None,
    make_database: Callable[..., Database],
    settings: Any,
    django_db_blocker: Any,
) -> Iterator[Clicks]:
    with (
        django_db_blocker.unblock(),
        shop_admin(make_database("sqlite"), settings, atomic_requests=request.param) as clicks,
    ):
        yield clicks


class Window:
    """A window of a browser, with the form that it shows."""

    def __init__(self, site: str = "admin", user: str = "admin") -> None:
        self._site = site
        self.client = Client(raise_request_exception=False)
        self.client.force_login(User.objects.get(username=user))
        self.field: dict[str, str] = {}

    def open(self, address: str) -> str:
        page = self.client.get(f"/{self._site}/{address}").content.decode()
        found = re.findall(r'name="_once" value="([^"]+)"', page)
        self.field = {"_once": found[0]} if found else {}
        return unescape(page)

    def post(self, address: str, form: dict[str, Any]) -> Any:
        return self.client.post(f"/{self._site}/{address}", {**form, **self.field})

    def twice(self, address: str, form: dict[str, Any]) -> tuple[Any, Any]:
        """Two clicks: both requests are on their way with the cookies from before."""
        cookies = self.client.cookies.output(header="", sep=";")

        def click() -> Any:
            client = Client(raise_request_exception=False)
            client.cookies.load(cookies)
            try:
                return client.post(f"/{self._site}/{address}", {**form, **self.field})
            finally:
                connections.close_all()

        with ThreadPoolExecutor(2) as pool:
            both = [pool.submit(click) for _ in range(2)]
            first, second = (each.result(4 * SOON) for each in both)
        return first, second

    def after(self, answer: Any) -> str:
        """The page that a browser shows after this answer."""
        self.client.cookies.update(answer.cookies)
        return unescape(self.client.get(answer["Location"]).content.decode())


@pytest.fixture
def window(clicks: Clicks) -> Window:
    window = Window()
    window.open(ADD)
    return window


def orders() -> list[tuple[str, int]]:
    """Name, and lines."""
    return [(order.name, Line.objects.filter(order=order).count()) for order in Order.objects.order_by("pk")]


def test_without_it_two_clicks_add_two(clicks: Clicks) -> None:
    clicks.begin(together=True)
    window = Window("plain")
    window.open(ADD)
    assert window.field == {}
    window.twice(ADD, FORM)
    assert orders() == [("shoes", 1)] * 2


def test_two_clicks_add_one_with_its_inlines_and_both_are_shown_it(clicks: Clicks, window: Window) -> None:
    clicks.begin(together=True)
    answers = window.twice(ADD, FORM)
    assert orders() == [("shoes", 1)]
    assert [(answer.status_code, answer["Location"]) for answer in answers] == [(302, "/admin/shop/order/")] * 2
    for answer in answers:
        other = Window()
        page = other.after(answer)
        assert page.count("was added successfully") == 1
        assert re.search(r'<a href="/admin/shop/order/1/change/">&lt;shoes&gt;</a>|/1/change/"><shoes></a>', page)


def test_sent_again_later_it_is_answered_again(window: Window) -> None:
    first = window.post(ADD, FORM)
    assert window.after(first).count("was added successfully") == 1
    second = window.post(ADD, FORM)
    assert (second.status_code, second["Location"]) == (302, first["Location"])
    assert window.after(second).count("was added successfully") == 1
    assert orders() == [("shoes", 1)]


def test_a_message_that_waits_already_is_not_shown_twice(window: Window) -> None:
    window.post(ADD, FORM)
    assert window.after(window.post(ADD, FORM)).count("was added successfully") == 1


def test_whichever_button_is_clicked_second(window: Window) -> None:
    first = window.post(ADD, FORM)
    data = {name: value for name, value in FORM.items() if name != "_save"}
    others = [{**data, button: "x"} for button in ("_continue", "_addanother")]
    assert {window.post(ADD, form)["Location"] for form in others} == {first["Location"]}
    assert len(orders()) == 1


def test_a_form_with_a_mistake_is_no_result(window: Window) -> None:
    wrong = window.post(ADD, {**FORM, "name": ""})
    assert (wrong.status_code, orders()) == (200, [])
    assert window.post(ADD, {**FORM, "name": ""}).status_code == 200
    assert window.post(ADD, FORM).status_code == 302
    assert orders() == [("shoes", 1)]


def test_other_data_in_the_same_form_is_another_object(window: Window) -> None:
    """Back, and changed: nothing of it may be dropped."""
    window.post(ADD, FORM)
    window.post(ADD, {**FORM, "name": "socks"})
    window.post(ADD, {**FORM, "line_set-0-item": "right"})
    assert orders() == [("shoes", 1), ("socks", 1), ("shoes", 1)]


def test_each_form_is_its_own(window: Window) -> None:
    for _ in range(3):
        assert window.post(ADD, FORM).status_code == 302
        window.open(ADD)
    assert len(orders()) == 3


def test_another_user_is_not_shown_it(window: Window) -> None:
    User.objects.create_superuser("eve", password="x")
    window.post(ADD, FORM)
    eve = Window(user="eve")
    eve.field = window.field
    eve.post(ADD, FORM)
    assert len(orders()) == 2


def test_what_has_failed_is_done_by_the_second_click(clicks: Clicks, window: Window) -> None:
    clicks.begin(together=True, fails=1)
    answers = window.twice(ADD, FORM)
    assert sorted(answer.status_code for answer in answers) == [302, 500]
    assert orders() == [("shoes", 1)]


def test_a_change_and_a_popup(window: Window) -> None:
    popup = f"{ADD}?_popup=1"
    window.open(popup)
    first, second = (window.post(popup, {**FORM, "_popup": "1"}) for _ in range(2))
    assert first.content == second.content
    assert b"popup-response" in first.content
    assert orders() == [("shoes", 1)]

    change = "shop/order/1/change/"
    assert 'value="shoes"' in window.open(change)
    more = {**FORM, "name": "boots", "line_set-0-item": "tongue"}
    pages = [window.after(window.post(change, more)) for _ in range(2)]
    assert all("was changed successfully" in page for page in pages)
    assert orders() == [("boots", 2)]


def test_an_action_runs_once_and_says_so_twice(clicks: Clicks, window: Window) -> None:
    window.post(ADD, FORM)
    window.open(LIST)
    clicks.begin(together=True)
    answers = window.twice(LIST, {"action": "send", "_selected_action": ["1"]})
    assert [order.sent for order in Order.objects.all()] == [1]
    for answer in answers:
        assert "Orders were sent" in Window().after(answer)


def test_an_action_that_answers_with_a_file_gives_it_again_and_keeps_what_it_did(window: Window) -> None:
    window.post(ADD, FORM)
    window.open(LIST)
    for times in (1, 2, 3):
        answer = window.post(LIST, {"action": "export", "_selected_action": ["1"]})
        assert (answer.status_code, answer.content) == (200, b"a,b\n")
        assert [order.sent for order in Order.objects.all()] == [times]


def test_an_action_that_fails_when_it_runs_again_is_rolled_back_as_at_first(clicks: Clicks, window: Window) -> None:
    """The first time, the second time, and without the field of ``once``: each in the project's transaction."""
    window.post(ADD, FORM)
    window.open(LIST)
    action = {"action": "export", "_selected_action": ["1"]}
    is_atomic = connections.settings["default"]["ATOMIC_REQUESTS"]
    for failures in (1, 3, 5):
        clicks.begin(fails=1)
        assert window.post(LIST, action).status_code == 500
        assert [order.sent for order in Order.objects.all()] == [failures // 2 if is_atomic else failures]
        if failures == 3:
            window.field = {}
        assert window.post(LIST, action).status_code == 200


def test_what_is_too_long_to_be_kept_is_not_done_again(window: Window, monkeypatch: pytest.MonkeyPatch) -> None:
    window.post(ADD, FORM)
    window.open(LIST)
    monkeypatch.setattr(save_once, "_text", lambda message: 70_000 * "x")
    answers = [window.post(LIST, {"action": "send", "_selected_action": ["1"]}) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [302, 200]
    assert answers[1].content == b"This has been done. Its answer was not kept.\n"
    assert [order.sent for order in Order.objects.all()] == [1]


def test_an_admin_with_a_transaction_of_its_own(window: Window) -> None:
    add = "auth/user/add/"
    window.open(add)
    form = {"username": "ann", "usable_password": "true", "password1": "s3cret-s3cret", "password2": "s3cret-s3cret"}
    answers = [window.post(add, form) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [302, 302]
    assert User.objects.filter(username="ann").count() == 1


def test_a_view_that_is_not_saved_once_keeps_its_transaction(clicks: Clicks, window: Window) -> None:
    """That of a password's change is called auth_user_password_change: it lost that of ATOMIC_REQUESTS."""
    user = User.objects.get(username="admin")
    clicks.begin(fails=1)
    form = {"usable_password": "true", "password1": "s3cret-s3cret", "password2": "s3cret-s3cret"}
    assert window.post(f"auth/user/{user.pk}/password/", form).status_code == 500
    user.refresh_from_db()
    assert user.check_password("s3cret-s3cret") is not connections.settings["default"]["ATOMIC_REQUESTS"]


def test_without_the_field_it_is_djangos(window: Window) -> None:
    """A program, or a project's own template without the block."""
    window.field = {}
    assert [window.post(ADD, FORM).status_code for _ in range(2)] == [302, 302]
    assert len(orders()) == 2


def test_who_waits_too_long_is_told_so_also_without_the_middleware(
    window: Window, settings: Any, monkeypatch: pytest.MonkeyPatch, elsewhere: Any
) -> None:
    settings.MIDDLEWARE = settings.MIDDLEWARE[2:]
    digest = save_once._digest
    asked: list[str] = []

    def note(request: Any) -> str:
        asked.append(digest(request))
        return "the-same"

    monkeypatch.setattr(save_once, "_digest", note)
    monkeypatch.setattr(save_once, "WAIT", 0.1)
    save_once._once.cache_clear()
    elsewhere("admin:the-same", prefix="disLock:once:")
    answer = window.post(ADD, FORM)
    save_once._once.cache_clear()
    assert (answer.status_code, orders()) == (409, [])
    assert asked


def test_a_store_that_does_not_answer_saves_nothing(window: Window, settings: Any) -> None:
    settings.DISTLOCK = {"default": {"BACKEND": "redis", "LOCATION": "redis://127.0.0.1:1/0"}}
    answer = window.post(ADD, FORM)
    assert (answer.status_code, orders()) == (503, [])
