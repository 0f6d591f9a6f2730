"""The pictures of the admin page: ``python docs/pictures/make.py``. Needs ``playwright`` and a Chromium in PATH.

The example project's admin runs on a store of this file, which shows the same locks every time, so that a new picture
differs from the old one only where the page does.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
SIZE = {"width": 1280, "height": 720}

#: Name, method and path, function, request id, host, pid, held for, whole lease, left, waiting, state. Seconds.
SAMPLES: list[tuple[str, str, str, str, str, int, float, float, float, int, str]] = [
    ("report:2026-10", "", "reports.tasks.monthly", "0f6c1e5d2b7a", "worker-1", 7, 754, 60, 51, 0, "held"),
    ("account:7731", "POST /transfers/", "bank.views.transfer", "f3a92c41d07b", "web-3", 2211, 6.4, 10, 3.6, 2, "held"),
    ("account:8090", "POST /transfers/", "bank.views.transfer", "f3a92c41d07b", "web-3", 2211, 6.4, 10, 3.6, 0, "held"),
    ("stock:bicycle", "POST /shop/buy/", "shop.views.buy", "7d40b83e9a16", "web-1", 1840, 4.2, 5, 0.8, 14, "held"),
    ("order:4711", "POST /orders/4711/pay/", "shop.views.pay", "c19e5570fa24", "web-2", 1977, 2.3, 10, 7.7, 1, "held"),
    ("import:customers", "", "crm.tasks.import_customers", "b2286f0d914c", "worker-2", 31, 2.1, 30, 27.9, 0, "transit"),
    ("digest:weekly", "", "mail.tasks.send_digest", "e61b74a80d35", "worker-1", 9, 1.0, 3600, 3599, 0, "cooldown"),
]  # fmt: skip


class SampleLocks:
    """A store for this page alone: it lists the samples, and can do nothing else."""

    settings: frozenset[str] = frozenset()

    def __init__(self, config: object) -> None:
        from distlock_web.core.backend import Capabilities

        self.capabilities = Capabilities(
            fencing=True, waiting=True, queue=True, transfer=True, listing=True, min_expire=0.001
        )

    def sync_port(self) -> SampleLocks:
        return self

    async def inspect(self, names: Any = None) -> list[Any]:
        from distlock_web.core.backend import LockInfo

        now = time.time()
        return [
            LockInfo(
                f"disLock:{name}", 1_763_622_000_000_001 + number * 137_911,
                json.dumps([request_id, path, function, host, pid, expire, request_id[:8], "gunicorn", "Thread-2", ""]), now - age, left, waiting, state,
                now - age / 2 if waiting else None, "5f0c1e5d" if waiting else "",
            )
            for number, (name, path, function, request_id, host, pid, age, expire, left, waiting, state)
            in enumerate(SAMPLES)
            if names is None or f"disLock:{name}" in names
        ]  # fmt: skip

    async def names(self, limit: int | None = None) -> tuple[int, list[str]]:
        return len(SAMPLES), [f"disLock:{sample[0]}" for sample in SAMPLES][:limit]

    async def waiters(self, name: str, limit: int) -> list[Any]:
        from distlock_web.core.backend import WaiterInfo

        now = time.time()
        return [
            WaiterInfo(
                json.dumps(
                    [
                        f"{n:012x}",
                        "POST /shop/buy/",
                        "shop.views.buy",
                        "web-2",
                        1911,
                        5.0,
                        "abcd1234",
                        "gunicorn",
                        "Thread-3",
                        "",
                    ]
                ),
                now - 3 + n / 5,
            )
            for n in range(14)
        ][:limit]

    def close(self) -> None:
        """Nothing to close."""


def main() -> None:
    from playwright.sync_api import sync_playwright

    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with admin_site() as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport=SIZE)
        page.goto(f"{address}/admin/")
        page.fill("#id_username", "admin")
        page.fill("#id_password", "admin")
        page.click("[type=submit]")
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            page.goto(f"{address}/admin/distlock_web/heldlock/")
            page.screenshot(path=FOLDER / f"held-locks-{scheme}.png")
        browser.close()


@contextmanager
def admin_site() -> Iterator[str]:
    """The example project's admin on a free port of the loopback, with a user ``admin``."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(
            DJANGO_SETTINGS_MODULE="example_project.shop_django.settings", SHOP_DATABASE=f"{folder}/shop.sqlite3"
        )
        sys.path.insert(0, str(FOLDER.parents[1]))
        from django.conf import settings

        settings.DEBUG = True
        settings.DISTLOCK = {"default": {"BACKEND": "make.SampleLocks"}}
        import django

        django.setup()
        from django.contrib.auth.models import User
        from django.contrib.staticfiles.handlers import StaticFilesHandler
        from django.core.management import call_command
        from django.core.servers.basehttp import ThreadedWSGIServer, WSGIRequestHandler
        from django.core.wsgi import get_wsgi_application

        class Handler(WSGIRequestHandler):
            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name it has there
                """Silent."""

        call_command("migrate", verbosity=0)
        User.objects.create_superuser("admin", password="admin")  # noqa: S106 - for the minute that this runs
        server = ThreadedWSGIServer(("127.0.0.1", 0), Handler)
        server.set_app(StaticFilesHandler(get_wsgi_application()))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            server.server_close()


if __name__ == "__main__":
    main()
