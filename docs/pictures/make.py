"""The pictures of the page: ``python docs/pictures/make.py``. Needs ``playwright`` and a Chromium in PATH.

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
from hashlib import md5
from pathlib import Path
from typing import Any, NamedTuple

from distlock_web.backends.memory import MemoryBackend, MemoryPort
from distlock_web.core.backend import LockInfo, WaiterInfo
from distlock_web.core.runtime import THREADS

FOLDER = Path(__file__).parent
SIZE = {"width": 1280, "height": 760}


class Sample(NamedTuple):
    """A lock of the pictures. Times are seconds."""

    name: str
    path: str
    function: str
    host: str
    pid: int
    age: float
    expire: float
    left: float
    waiting: int = 0
    state: str = "held"
    program: str = "gunicorn"

    @property
    def request_id(self) -> str:
        return md5(f"{self.path}{self.host}{self.age}".encode(), usedforsecurity=False).hexdigest()[:16]

    def holder(self) -> str:
        words = [self.request_id, self.path, self.function, self.host, self.pid, self.expire, self.request_id[:8]]
        return json.dumps([*words, self.program, "ThreadPoolExecutor-0_3", ""])


SAMPLES = [
    Sample("stock:bicycle", "POST /shop/buy/", "shop.views.buy", "web-1", 1840, 4.2, 5, 0.8, 14),
    Sample("stock:helmet", "POST /shop/buy/", "shop.views.buy", "web-4", 1713, 2.9, 5, 2.1, 6),
    Sample("account:7731", "POST /transfers/", "bank.views.transfer", "web-3", 2211, 6.4, 10, 3.6, 2),
    Sample("order:4711", "POST /orders/<int:order_id>/pay/", "shop.views.pay", "web-2", 1977, 2.3, 10, 7.7, 1),
    Sample("report:2026-10", "", "reports.tasks.monthly", "worker-1", 7, 754, 60, 51, program="celery worker"),
    Sample("search-index", "", "search.index:118", "worker-2", 44, 131, 30, 12, program="manage.py reindex"),
    Sample("account:8090", "POST /transfers/", "bank.views.transfer", "web-3", 2211, 6.4, 10, 3.6),
    Sample("import:customers", "", "crm.tasks.load", "worker-2", 31, 3.1, 30, 26.9, 0, "transit", "celery worker"),
    Sample("digest:weekly", "", "mail.tasks.digest", "worker-1", 9, 1.2, 3600, 3598, 0, "cooldown", "celery worker"),
    *(
        Sample(
            f"order:{4690 + number}", "POST /orders/<int:order_id>/pay/", "shop.views.pay", f"web-{1 + number % 4}",
            1800 + 37 * number % 400, 3.0 - number / 8, 10, 7 + number / 8,
        )
        for number in range(20)
    ),
]  # fmt: skip


class SampleLocks(MemoryBackend):
    """A store for this page alone: it lists the samples."""

    def sync_port(self) -> SamplePort:
        return SamplePort(self._table, THREADS)


class SamplePort(MemoryPort):
    async def inspect(self, names: Any = None) -> list[Any]:
        now = time.time()
        return [
            LockInfo(
                f"disLock:{sample.name}", 1_763_622_000_000_001 + number * 137_911, sample.holder(), now - sample.age,
                sample.left, sample.waiting, sample.state, now - sample.age / 2 if sample.waiting else None,
            )
            for number, sample in enumerate(SAMPLES)
            if names is None or f"disLock:{sample.name}" in names
        ]  # fmt: skip

    async def names(self, limit: int | None = None) -> tuple[int, list[str]]:
        return len(SAMPLES), [f"disLock:{sample.name}" for sample in SAMPLES][:limit]

    async def waiters(self, name: str, limit: int) -> list[Any]:
        now = time.time()
        shop = [SAMPLES[0]._replace(host=f"web-{1 + n % 4}", pid=1800 + 53 * n % 300, age=n) for n in range(14)]
        return [WaiterInfo(sample.holder(), now - 2.1 + sample.age / 8) for sample in shop][:limit]

    async def done(self, limit: int) -> list[Any]:
        return []


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
        held_locks = f"{address}/admin/distlock_web/heldlock/"
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            page.goto(held_locks)
            page.screenshot(path=FOLDER / f"held-locks-{scheme}.png")
            page.goto(f"{held_locks}lock/?store=default&name=disLock:{SAMPLES[0].name}")
            page.screenshot(path=FOLDER / f"one-lock-{scheme}.png")
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
