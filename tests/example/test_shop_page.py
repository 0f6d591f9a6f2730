"""The shop page in a real browser: both drills, the held locks, a lock that is taken away."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from tests.support.requirements import require_chromium

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.fixture
def page() -> Iterator[Page]:
    """An empty page; a script error on it fails the test."""
    program = require_chromium()
    errors: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_context().new_page()
        page.set_default_timeout(20_000)
        page.on("pageerror", lambda error: errors.append(str(error)))
        yield page
        browser.close()
    assert not errors


def test_the_shop_page(demo: Callable[..., subprocess.Popen[str]], page: Page) -> None:
    shop = address(demo(SERVE="1"))
    page.goto(shop)
    without, with_lock = page.locator(".drill").all()

    without.get_by_role("button").click()
    verdict = without.get_by_role("status")
    expect(verdict).to_have_text(re.compile(r"^\d+ sold of 20: \d+ buyers have paid for nothing\.$"), timeout=60_000)
    oversold = [int(number) for number in re.findall(r"\d+", verdict.inner_text())]
    assert oversold[0] - oversold[1] == oversold[2] > 0
    assert f"{oversold[0]} items sold" in (without.get_by_role("img").get_attribute("aria-label") or "")

    with_lock.get_by_role("button").click()
    expect(with_lock.get_by_role("status")).to_have_text("20 sold of 20, not one too many.", timeout=60_000)
    assert "20 items sold to 60 buyers" in (with_lock.get_by_role("img").get_attribute("aria-label") or "")

    admin = page.context.new_page()
    admin.goto(f"{shop}admin/")
    admin.fill("#id_username", "admin")
    admin.fill("#id_password", "admin")
    admin.click("[type=submit]")

    locks, says = page.locator(".locks tbody"), page.locator("#stocktaking-says")
    expect(locks).to_contain_text("No lock is held")
    page.get_by_role("button", name="Hold one").click()
    expect(locks).to_contain_text("disLock:stocktaking")
    page.get_by_role("button", name="Hold one").click()
    expect(says).to_contain_text("409")

    admin.goto(f"{shop}admin/distlock_web/heldlock/")
    row = admin.locator("tr", has_text="disLock:stocktaking")
    row.get_by_role("link", name="Release").click()
    admin.get_by_role("button", name="Yes, release it").click()
    expect(says).to_have_text("The lock was lost: revoked.")


def address(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if found := re.match(r"Shop +(http://\S+)", line):
            return found[1]
    raise AssertionError(process.communicate()[1])
