"""The page "Held locks" as somebody in front of a screen meets it."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Page, expect

from distlock_web import LeaseLost
from tests.support.browser import screenshot

pytestmark = pytest.mark.timeout(120)

SCRIPT = "<script>alert(1)</script>"
IMAGE = '"><img src=x onerror=alert(2)>'


@pytest.fixture
def held_locks(admin_address: str) -> str:
    return f"{admin_address}distlock_web/heldlock/"


def test_what_clients_send_is_shown_and_never_run(page: Page, hold: Any, held_locks: str) -> None:
    # The page fixture fails on any dialog.
    hold(SCRIPT, req="7f9c2ba4e88f4ad9b1d2", path=f"GET /shop/{IMAGE}")
    hold(IMAGE, req=SCRIPT)
    page.goto(held_locks)
    expect(page.get_by_text(f"disLock:{SCRIPT}", exact=True)).to_be_visible()
    expect(page.get_by_text(f"GET /shop/{IMAGE}", exact=True)).to_be_visible()
    expect(page.get_by_text(f"disLock:{IMAGE}", exact=True)).to_be_visible()
    expect(page.locator(".request-id", has_text=SCRIPT)).to_be_visible()
    with page.expect_response(lambda response: "fragment" in response.url):
        pass  # the same through the script that refreshes the list
    expect(page.get_by_text(f"disLock:{SCRIPT}", exact=True)).to_be_visible()
    assert page.locator("#held-locks img, #held-locks script").count() == 0

    page.locator("tr", has_text=f"disLock:{IMAGE}").get_by_role("link", name="Release").click()
    expect(page.locator("strong.lock-name")).to_have_text(f"disLock:{IMAGE}")
    page.get_by_role("button", name="Yes, release it").click()
    expect(page.locator(".messagelist .success")).to_contain_text(f"disLock:{IMAGE}")


def test_the_list_refreshes_itself_and_leaves_search_and_selection_alone(
    page: Page, hold: Any, held_locks: str, beside: Any
) -> None:
    first = hold("order:1")
    page.goto(held_locks + "?q=order")
    page.evaluate("window.here = 'not reloaded'")
    name = page.get_by_text("disLock:order:1", exact=True)
    page.fill("#searchbar", "half typed")
    name.click(click_count=3)

    hold("stock:2")  # is not searched for
    hold("order:2")
    expect(page.get_by_text("disLock:order:2", exact=True)).to_be_visible()
    expect(page.get_by_text("disLock:stock:2", exact=True)).to_have_count(0)
    expect(page.locator(".paginator")).to_contain_text("2 held locks")
    assert page.evaluate("window.here") == "not reloaded"
    assert page.input_value("#searchbar") == "half typed"
    assert "disLock:order:1" in page.evaluate("getSelection().toString()")

    beside(first.release)
    expect(name).to_have_count(0)
    expect(page.get_by_text("disLock:order:2", exact=True)).to_be_visible()


def test_a_hidden_page_asks_nothing_and_a_shown_one_at_once(page: Page, hold: Any, held_locks: str) -> None:
    page.goto(held_locks)
    expect(page.get_by_text("No lock is held at the moment.")).to_be_visible()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    hide = "Object.defineProperty(document, 'hidden', {value: %s, configurable: true});" + (
        "document.dispatchEvent(new Event('visibilitychange'))"
    )
    page.evaluate(hide % "true")
    asked.clear()
    page.wait_for_timeout(3000)  # more than one period: nothing may come
    assert asked == []
    hold("order:1")
    page.evaluate(hide % "false")
    expect(page.get_by_text("disLock:order:1", exact=True)).to_be_visible()


def test_force_release_frees_the_lock_and_its_holder_learns_of_it(
    page: Page, hold: Any, held_locks: str, beside: Any
) -> None:
    lease = hold("order:4711", req="7f9c2ba4e88f4ad9b1d2", path="POST /shop/orders/4711/pay/", expire=60)
    page.goto(held_locks)
    page.get_by_role("link", name="Release").click()
    expect(page.get_by_text("POST /shop/orders/4711/pay/")).to_be_visible()
    screenshot(page, "release")
    assert beside(lambda: lease.state) == "held"
    page.get_by_role("button", name="Yes, release it").click()
    expect(page.locator(".messagelist .success")).to_contain_text("disLock:order:4711")
    expect(page.get_by_text("No lock is held at the moment.")).to_be_visible()
    hold("order:4711")  # free

    with pytest.raises(LeaseLost) as lost:
        beside(lease.extend)
    assert lost.value.reason == "revoked"
    assert beside(lease.lost.is_set)
    page.goto(held_locks + "../..")
    expect(page.locator("#recent-actions-module .deletelink")).to_contain_text("disLock:order:4711")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 1024, 400])
def test_nothing_is_cut_off(page: Page, hold: Any, held_locks: str, scheme: Any, width: int) -> None:
    hold("order:4711", req="7f9c2ba4e88f4ad9b1d2", path="POST /shop/orders/4711/pay/")
    hold("report:" + "customer-4711:" * 9, expire=3600)
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 800})
    page.goto(held_locks)
    screenshot(page, f"held-locks-{scheme}-{width}")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for button in page.get_by_role("link", name="Release").all():
        box = button.bounding_box()
        assert box is not None
        assert box["x"] + box["width"] <= width


def test_no_inline_script_or_style(page: Page, hold: Any, held_locks: str) -> None:
    hold("order:1")
    page.goto(held_locks)
    ours = page.locator("#content")
    assert ours.locator("script, style, [style], [onclick]").count() == 0


@pytest.mark.parametrize(("width", "table"), [(1280, True), (1024, True), (400, False)])
def test_a_table_beside_the_open_sidebar_and_cards_on_a_phone(
    page: Page, hold: Any, held_locks: str, width: int, table: bool
) -> None:
    for number in range(30):
        hold(
            f"order:{number}:" + "long-name-" * (number % 7), req="7f9c2ba4e88f4ad9b1d2" * 3, path="POST /a/" + "b" * 90
        )
    page.set_viewport_size({"width": width, "height": 720})
    page.goto(held_locks)
    assert page.locator("#nav-sidebar").is_visible() == table
    assert page.locator("#held-locks thead").is_visible() == table
    buttons = [button.bounding_box() for button in page.get_by_role("link", name="Release").all()]
    assert len(buttons) == 30
    assert all(box is not None and box["x"] + box["width"] <= width for box in buttons)
