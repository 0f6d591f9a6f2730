"""Two clicks on Save, as somebody in front of a screen does it: one object, and its message."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.core.wsgi import get_wsgi_application
from playwright.sync_api import Page, expect
from werkzeug.serving import make_server

from tests.support.databases import Database
from tests.support.flask_site import SilentHandler
from tests.support.shop_admin import Clicks, Order, shop_admin
from tests.support.waiting import eventually

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(120)]


@pytest.fixture
def clicks(
    make_database: Callable[..., Database], settings: Any, store: dict[str, Any], django_db_blocker: Any
) -> Iterator[Clicks]:
    settings.DISTLOCK = {"default": store}
    database = make_database("sqlite")
    with django_db_blocker.unblock(), shop_admin(database, settings, atomic_requests=False) as clicks:
        yield clicks


@pytest.fixture
def admin_address(clicks: Clicks) -> Iterator[str]:
    """In place of the one of ``conftest.py``: each request has its own connection to the database."""
    server = make_server("127.0.0.1", 0, get_wsgi_application(), threaded=True, request_handler=SilentHandler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    thread.join(20)
    server.server_close()


@pytest.fixture
def shop(page: Page, admin_address: str) -> str:
    page.goto(f"{admin_address}admin/")
    page.fill("#id_username", "admin")
    page.fill("#id_password", "admin")
    page.click("input[type=submit]")
    return admin_address


def fill_in(page: Page, address: str) -> None:
    page.goto(f"{address}shop/order/add/")
    page.fill("#id_name", "shoes")
    page.fill("#id_line_set-0-item", "left")


def click_twice(page: Page, clicks: Clicks, button: str) -> None:
    """The second one when the first one's request has come: the browser forgets that one's answer."""
    page.locator(button).scroll_into_view_if_needed()
    box = page.locator(button).bounding_box()
    assert box is not None
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    clicks.begin(together=True)
    page.mouse.click(x, y)
    eventually(lambda: clicks.count == 1, "the first click has come")
    page.mouse.click(x, y)


def orders() -> list[str]:
    return [order.name for order in Order.objects.all()]


def test_a_double_click_adds_two_without_the_mixin(page: Page, shop: str, clicks: Clicks, beside: Any) -> None:
    fill_in(page, f"{shop}plain/")
    click_twice(page, clicks, "input[name=_save]")
    expect(page.locator(".messagelist")).to_contain_text("was added successfully")
    assert beside(orders) == ["shoes", "shoes"]


def test_with_it_one_and_its_message_is_shown(page: Page, shop: str, clicks: Clicks, beside: Any) -> None:
    fill_in(page, f"{shop}admin/")
    click_twice(page, clicks, "input[name=_save]")
    expect(page.locator(".messagelist li")).to_have_count(1)
    expect(page.locator(".messagelist")).to_contain_text("was added successfully")
    assert page.url.endswith("/admin/shop/order/")
    assert beside(orders) == ["shoes"]

    page.locator(".action-select").check()
    page.select_option("select[name=action]", "send")
    click_twice(page, clicks, "button[name=index]")
    expect(page.locator(".messagelist li")).to_have_count(1)
    expect(page.locator(".messagelist")).to_contain_text("Orders were sent")
    assert beside(lambda: [order.sent for order in Order.objects.all()]) == [1]
