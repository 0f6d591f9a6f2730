"""The page "Held locks" as somebody in front of a screen meets it, in every framework."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from distlock_web import Lease, LeaseLost
from tests.support.browser import screenshot

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(120)]

Hold = Callable[..., Lease]

SCRIPT = "<script>alert(1)</script>"
IMAGE = '"><img src=x onerror=alert(2)>'
TEMPLATE = "{{ 7 * 7 }}{% debug %}${7 * 7}"


def names(page: Page) -> list[str]:
    return [name.removeprefix("disLock:") for name in page.locator(".dl-table tbody .dl-lock a").all_text_contents()]


def link(page: Page, name: str) -> Locator:
    """The link in the list to the page of one lock."""
    return page.locator(".dl-table .dl-lock", has_text=name).get_by_role("link")


def refreshed(page: Page) -> None:
    """Wait until the list has been asked for anew, and shown."""
    with page.expect_response(lambda response: "fragment" in response.url):
        pass
    page.wait_for_timeout(100)


def test_what_clients_send_is_shown_and_never_run(page: Page, hold: Hold, site: str) -> None:
    # The page fixture fails on any dialog.
    hold(SCRIPT, req="7f9c2ba4e88f4ad9b1d2", path=f"GET /shop/{IMAGE}")
    hold(IMAGE, req=SCRIPT)
    hold(TEMPLATE, path=TEMPLATE, req="x")
    hold("long:" + "a-name-without-an-end-" * 20)
    page.goto(site)
    for _ in range(2):
        for name in (SCRIPT, IMAGE):
            expect(link(page, name)).to_be_visible()
        expect(page.get_by_text(f"GET /shop/{IMAGE}", exact=True)).to_be_visible()
        assert len([name for name in names(page) if "7 * 7" in name]) == 1
        refreshed(page)  # the same through the script that refreshes the list
    ours = page.locator(".distlock")
    assert ours.locator("img, script, style, [style], [onclick], [onerror], [onmouseover]").count() == 0

    link(page, IMAGE).click()
    expect(page.locator("h1.dl-name")).to_have_text(f"disLock:{IMAGE}")
    expect(page.locator(".dl-facts code").first).to_be_visible()
    assert ours.locator("img, script").count() == 0
    page.get_by_role("link", name="Release…", exact=True).click()
    expect(page.locator("strong.dl-name")).to_have_text(f"disLock:{IMAGE}")
    page.get_by_role("button", name="Yes, release it").click()
    expect(page.get_by_text("Released:")).to_contain_text(f"disLock:{IMAGE}")


def test_the_list_refreshes_itself_and_leaves_all_else_alone(page: Page, hold: Hold, site: str, beside: Any) -> None:
    first = hold("order:1")
    hold("order:3")
    page.goto(site + "?q=order")
    page.evaluate("window.here = 'not reloaded'")
    page.get_by_label("Select disLock:order:3").check()
    page.mouse.move(0, 0)
    page.locator("[name=q]").fill("half typed")
    hold("stock:2")  # is not searched for
    hold("order:2")
    expect(page.locator(".dl-table tbody tr")).to_have_count(3)
    assert page.evaluate("window.here") == "not reloaded"
    assert page.locator("[name=q]").input_value() == "half typed"
    assert page.get_by_label("Select disLock:order:3").is_checked()
    beside(first.release)
    expect(page.locator(".dl-table tbody tr")).to_have_count(2)
    assert sorted(names(page)) == ["order:2", "order:3"]


def test_it_stands_still_while_somebody_reads(page: Page, hold: Hold, held_locks: str) -> None:
    hold("order:1")
    page.goto(held_locks)
    page.hover(".dl-table tbody .dl-who")
    hold("order:2")
    expect(page.locator("#dl-status")).to_have_text("Standing still while you read")
    expect(page.locator(".dl-total dd").first).to_have_text("2")  # what does not move goes on
    assert names(page) == ["order:1"]
    page.mouse.move(0, 0)
    expect(page.locator(".dl-table tbody tr")).to_have_count(2)
    page.locator(".dl-table tbody a").first.focus()
    page.keyboard.press("Tab")  # in the list with the keyboard
    hold("order:3")
    expect(page.locator("#dl-status")).to_have_text("Standing still while you read")
    assert len(names(page)) == 2
    page.locator("[name=q]").focus()
    expect(page.locator(".dl-table tbody tr")).to_have_count(3)
    expect(page.locator("#dl-status")).to_have_text("Live")


def test_a_hidden_page_asks_nothing_and_a_shown_one_at_once(page: Page, hold: Hold, held_locks: str) -> None:
    page.goto(held_locks)
    expect(page.get_by_text("No lock is held at the moment.")).to_be_visible()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    hide = "Object.defineProperty(document, 'hidden', {value: %s, configurable: true});" + (
        "document.dispatchEvent(new Event('visibilitychange'))"
    )
    page.evaluate(hide % "true")
    asked.clear()
    page.wait_for_timeout(2500)  # more than one period: nothing may come
    assert asked == []
    hold("order:1")
    page.evaluate(hide % "false")
    expect(page.locator(".dl-table tbody tr")).to_have_count(1)


def test_one_lock_its_queue_and_its_requests_others(page: Page, hold: Hold, site: str, waits: Any) -> None:
    lease = hold("order:4711", req="7f9c2ba4e88f4ad9b1d2", path="POST /orders/4711/pay/", expire=60)
    waits("order:4711", 2)
    hold("other", expire=60)
    page.goto(site)
    expect(page.locator(".dl-table tbody .dl-waiting b").first).to_have_text("2")
    assert names(page)[0] == "order:4711"
    link(page, "order:4711").click()
    expect(page.locator(".dl-queue tbody tr")).to_have_count(2)
    expect(page.get_by_text(str(lease.fence))).to_be_visible()
    screenshot(page, f"lock-{site.rsplit('/', 2)[-2]}")
    page.get_by_role("link", name="All locks of this request").click()
    assert names(page) == ["order:4711"]


def test_force_release_hands_on_and_the_holder_learns_of_it(
    page: Page, hold: Hold, site: str, beside: Any, waits: Any
) -> None:
    lease = hold("order:4711", req="7f9c2ba4e88f4ad9b1d2", path="POST /shop/orders/4711/pay/", expire=60)
    (waiting,) = waits("order:4711", 1)
    page.goto(site)
    page.get_by_role("link", name="Release disLock:order:4711").click()
    expect(page.get_by_text("POST /shop/orders/4711/pay/")).to_be_visible()
    screenshot(page, "release")
    assert beside(lambda: lease.state) == "held"
    page.get_by_role("button", name="Yes, release it").click()
    expect(page.get_by_text("Released:")).to_contain_text("disLock:order:4711")
    assert waiting.result(20).fence > (lease.fence or 0)
    with pytest.raises(LeaseLost) as lost:
        beside(lease.extend)
    assert lost.value.reason == "revoked"
    assert beside(lease.lost.is_set)
    if "heldlock" in site:
        page.goto(site + "../..")
        expect(page.locator("#recent-actions-module .deletelink")).to_contain_text("disLock:order:4711")


def test_a_selection(page: Page, hold: Hold, site: str, beside: Any) -> None:
    leases = [hold(f"order:{number}") for number in range(4)]
    page.goto(site)
    button = page.locator("#dl-release-selected")
    expect(button).to_be_disabled()
    for number in (1, 2):
        page.get_by_label(f"Select disLock:order:{number}").check()
    expect(button).to_have_text("Release selected (2)…")
    button.click()
    page.get_by_role("button", name="Yes, release 2 locks").click()
    expect(page.get_by_text("Released: “disLock:order:1”, “disLock:order:2”")).to_be_visible()
    page.goto(site)
    assert names(page) == ["order:0", "order:3"]
    page.get_by_label("Select all on this page").check()
    expect(button).to_have_text("Release selected (2)…")
    for number, lost in enumerate((False, True, True, False)):
        assert (beside(_is_lost, leases[number])) == lost


def _is_lost(lease: Lease) -> bool:
    try:
        lease.extend()
    except LeaseLost:
        return True
    return False


def test_a_line_a_lock_beside_the_open_sidebar_and_on_a_phone(page: Page, hold: Hold, held_locks: str) -> None:
    for number in range(30):
        hold(
            f"order:{number}:" + "long-name-" * (number % 7), req="7f9c2ba4e88f4ad9b1d2" * 3, path="POST /a/" + "b" * 90
        )
    for width, least in ((1440, 20), (1280, 20), (1024, 18), (400, 10)):
        page.set_viewport_size({"width": width, "height": 800})
        page.goto(held_locks)
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            screenshot(page, f"held-locks-{scheme}-{width}")
        assert page.locator("#nav-sidebar").is_visible() == (width > 400)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        bottoms = page.evaluate(
            "[...document.querySelectorAll('.dl-table tbody tr')].map(r => r.getBoundingClientRect().bottom)"
        )
        assert len(bottoms) == 30
        assert len([bottom for bottom in bottoms if bottom <= 800]) >= least
        right = "[...document.querySelectorAll('.dl-act a')].map(link => link.getBoundingClientRect().right)"
        assert max(page.evaluate(right)) <= width


class TestTheStoreStops:
    """Redis is stopped and started again while the page is open."""

    @pytest.fixture
    def server(self, make_redis: Any) -> Any:
        return make_redis()

    @pytest.fixture
    def store(self, server: Any) -> dict[str, Any]:
        return {"BACKEND": "redis", "LOCATION": server.url}

    def test_it_says_so_and_goes_on_afterwards(
        self, page: Page, hold: Hold, site: str, server: Any, beside: Any
    ) -> None:
        hold("order:1", expire=120)
        page.goto(site)
        page.evaluate("window.here = 'not reloaded'")
        page.hover(".dl-table tbody .dl-who")  # an error is shown to who reads, too
        beside(server.stop)
        expect(page.locator(".dl-error")).to_contain_text("cannot be reached", timeout=30_000)
        expect(page.locator("#dl-status")).to_have_text("A store failed")
        expect(page.locator(".dl-total dd")).to_have_text(["?"] * 4)
        screenshot(page, f"store-stopped-{site.rsplit('/', 2)[-2]}")
        page.reload()  # a page that begins so says so, too
        expect(page.locator("#dl-status")).to_have_text("A store failed")
        page.evaluate("window.here = 'not reloaded'")
        beside(server.start)
        hold("order:2")
        expect(page.locator(".dl-error")).to_have_count(0, timeout=30_000)
        expect(page.locator("#dl-status")).not_to_have_text("A store failed")
        page.mouse.move(0, 0)
        expect(page.locator(".dl-table tbody")).to_contain_text("order:2")
        assert page.evaluate("window.here") == "not reloaded"
