"""A real browser (headless Chromium) in front of Django's admin and of a Flask app."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import Browser, ConsoleMessage, Dialog, Page, expect, sync_playwright

from distlock_web import Lease, LeaseLost, configure, lock
from distlock_web.core.registry import registry
from distlock_web.ops.lock_browser import LockQuery, browse
from tests.support.flask_site import flask_site
from tests.support.origins import begin_request
from tests.support.requirements import require_chromium
from tests.support.waiting import eventually

FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--no-first-run",
)  # fmt: skip

expect.set_options(timeout=30_000)  # a busy machine may need more than the usual five seconds


@pytest.fixture
def beside() -> Iterator[Callable[..., Any]]:
    """Call a function in another thread and give its result: Playwright's event loop runs in this one."""
    with ThreadPoolExecutor(1) as pool:
        yield lambda call, *args, **kwargs: pool.submit(call, *args, **kwargs).result(20)


@pytest.fixture
def waits(beside: Callable[..., Any]) -> Iterator[Callable[[str, int], list[Future[Lease]]]]:
    """Let some wait for a lock, each as somebody else: ``waits("order:7", 2)``; who gets it keeps it until the end."""
    over = threading.Event()

    def take(key: str, granted: Future[Lease]) -> None:
        with suppress(LeaseLost), lock(key, expire=30, wait=60) as lease:
            granted.set_result(lease)
            over.wait(60)

    def start(key: str, number: int) -> list[Future[Lease]]:
        granted: list[Future[Lease]] = [Future() for _ in range(number)]
        for each in granted:
            pool.submit(contextvars.Context().run, take, key, each)
        eventually(lambda: beside(lambda: browse(registry(), LockQuery()).totals.waiting) == number, "they wait")
        return granted

    with ThreadPoolExecutor(4) as pool:
        yield start
        over.set()


@pytest.fixture
def hold(beside: Callable[..., Any], waits: object) -> Iterator[Callable[..., Lease]]:
    """Hold a lock as another request: ``hold("order:7", req="abc", path="POST /pay/")``.

    It is released in the end, before those who wait for it are waited for.
    """
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
def store(redis_url: str) -> dict[str, Any]:
    """An empty Redis. A test that stops it overrides this."""
    return {"BACKEND": "redis", "LOCATION": redis_url}


@pytest.fixture
def admin_address(live_server: Any, settings: Any, store: dict[str, Any]) -> str:
    """The admin of a project whose locks are in ``store``."""
    settings.DISTLOCK = {"default": store}
    User.objects.all().delete()  # a page that is still open may hold up the emptying of the database
    User.objects.create_superuser("admin", password="admin")
    return f"{live_server.url}/admin/"


@pytest.fixture
def browser(admin_address: str) -> Iterator[Browser]:
    # After the project: from here on an event loop runs in this thread, and Django lets nobody near its database.
    path = require_chromium()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A window of its own. A dialog, an error in a script or a blocked resource fails the test."""
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    page = context.new_page()
    errors: list[str] = []

    def dismiss(dialog: Dialog) -> None:
        errors.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def notice(message: ConsoleMessage) -> None:
        if "Content Security Policy" in message.text:
            errors.append(message.text)

    page.on("dialog", dismiss)
    page.on("console", notice)
    page.on("pageerror", lambda error: errors.append(f"script: {error}"))
    yield page
    context.close()
    assert errors == []


@pytest.fixture
def held_locks(page: Page, admin_address: str) -> str:
    """The address of the page in Django's admin; ``admin``, who may do everything, is logged in."""
    page.goto(admin_address)
    page.fill("#id_username", "admin")
    page.fill("#id_password", "admin")
    page.click("input[type=submit]")
    return f"{admin_address}distlock_web/heldlock/"


@pytest.fixture(params=["django", "flask"])
def site(request: pytest.FixtureRequest, store: dict[str, Any]) -> Iterator[str]:
    """The address of the page in each framework, for somebody who may do everything."""
    if request.param == "django":
        yield request.getfixturevalue("held_locks")
        return
    configure({"default": store})  # for the test's own locks
    with flask_site(store) as address:
        yield f"{address}/distlock/"
