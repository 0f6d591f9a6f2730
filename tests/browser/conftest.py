"""A real browser (headless Chromium) against Django's live server."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import Browser, Dialog, Page, sync_playwright

from distlock_web import Lease, LeaseLost, lock
from tests.support.origins import begin_request
from tests.support.requirements import require_chromium

FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--no-first-run",
)  # fmt: skip


@pytest.fixture
def beside() -> Iterator[Callable[..., Any]]:
    """Call a function in another thread and give its result: Playwright's event loop runs in this one."""
    with ThreadPoolExecutor(1) as pool:
        yield lambda call, *args, **kwargs: pool.submit(call, *args, **kwargs).result(20)


@pytest.fixture
def hold(beside: Callable[..., Any]) -> Iterator[Callable[..., Lease]]:
    """Hold a lock as another request: ``hold("order:7", request_id="abc", path="POST /pay/")``."""
    held: list[tuple[contextvars.Context, Lease]] = []

    def acquire_elsewhere(key: str, *, req: str = "", path: str = "", **options: Any) -> Lease:
        context = contextvars.Context()

        def acquire() -> Lease:
            if req:
                begin_request(req, path)
            return lock(key, **{"expire": 30, **options}).acquire()

        lease = beside(context.run, acquire)
        held.append((context, lease))
        return lease

    yield acquire_elsewhere
    for context, lease in held:
        if lease.state == "held":
            with suppress(LeaseLost):  # released by force: nobody has told the lease yet
                beside(context.run, lease.release)


@pytest.fixture
def admin_address(live_server: Any, settings: Any, redis_url: str) -> str:
    """The admin of a project whose locks are in an empty Redis, with a user ``admin``."""
    settings.DISTLOCK = {"default": {"BACKEND": "redis", "LOCATION": redis_url}}
    User.objects.filter(username="admin").delete()  # a page that is still open may hold up the emptying of the database
    User.objects.create_superuser("admin", password="admin")
    return f"{live_server.url}/admin/"


@pytest.fixture
def browser(admin_address: str) -> Iterator[Browser]:
    path = require_chromium()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser, admin_address: str) -> Iterator[Page]:
    """Logged in. A dialog, an error in a script or a blocked resource fails the test."""
    page = browser.new_page()
    errors: list[str] = []

    def dismiss(dialog: Dialog) -> None:
        errors.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    page.on("dialog", dismiss)
    page.on("pageerror", lambda error: errors.append(f"script: {error}"))
    page.goto(admin_address)
    page.fill("#id_username", "admin")
    page.fill("#id_password", "admin")
    page.click("input[type=submit]")
    yield page
    assert errors == []
