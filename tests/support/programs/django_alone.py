"""A Django project whose locks are in its own database: ``python -m … SETTINGS BLOCKED``.

What it uses of the store, in one process, with modules that cannot be imported. The last line says what was imported.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.abc import MetaPathFinder
from typing import Any

database, blocked = json.loads(sys.argv[1]), sys.argv[2].split(",")


class Blocker(MetaPathFinder):
    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> None:
        if name.partition(".")[0] in blocked:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Blocker())
if database.pop("pymysql", False):
    import pymysql

    pymysql.install_as_MySQLdb()
    pymysql.version_info = (2, 2, 7, "final", 0)

import django  # noqa: E402
from django.conf import settings  # noqa: E402
from django.core.management import call_command  # noqa: E402

from tests.support.django_project import settings as project  # noqa: E402

settings.configure(
    **{name: getattr(project, name) for name in dir(project) if name.isupper()}
    | {
        "DATABASES": {"default": database},
        "DISTLOCK": {"default": {"DATABASE": "default", "OPTIONS": {"timeout": 1.5}}},
        "INSTALLED_APPS": [app for app in project.INSTALLED_APPS if app != "rest_framework"],
        "ROOT_URLCONF": __name__,
    }
)
django.setup()

from django.contrib import admin  # noqa: E402
from django.contrib.auth.models import Group, User  # noqa: E402
from django.db import connections  # noqa: E402
from django.test import Client  # noqa: E402
from django.urls import path  # noqa: E402

from distlock_web import BackendUnavailable, distributed_lockable, lock, once  # noqa: E402
from distlock_web.backends.sql.statement import Statement  # noqa: E402
from distlock_web.core.registry import registry  # noqa: E402
from tests.support.proxy import Proxy  # noqa: E402

urlpatterns = [path("admin/", admin.site.urls)]


def hand_over() -> None:
    """One waits, and is told: with a listener on PostgreSQL."""
    held, entered = lock("stock:42", expire=20).acquire(), threading.Event()

    def wait() -> None:
        with lock("stock:42", wait=10):
            entered.set()

    waiter = threading.Thread(target=wait)
    waiter.start()
    port: Any = registry().store("default").backend.sync_port()
    while not any(line.waiters for line in port._verbs.inspect(None)):
        time.sleep(0.01)
    held.release()
    assert entered.wait(10)
    waiter.join()


@once(key="report:{day}", keep="1h", result=True)
def report(day: int) -> int:
    return day


@once(key="group:{name}", keep="1h", until="commit", result=True)
def add(name: str) -> str:
    Group.objects.create(name=name)
    return name


@distributed_lockable(key="async:{number}")
async def locked(number: int) -> int:
    return number


async def crowd() -> list[int]:
    return list(await asyncio.gather(*(locked(number) for number in range(6))))


def of_the_page() -> str:
    User.objects.create_superuser("root", password="root")
    client = Client()
    client.login(username="root", password="root")
    with lock("page:1"):
        return client.get("/admin/distlock_web/heldlock/").content.decode()


def in_a_test_run() -> None:
    """The locks are in its database. PostgreSQL drops none that somebody is connected to, as they are."""
    known, creation = connections["default"].settings_dict, connections["default"].creation
    name = known["NAME"]
    creation.create_test_db(verbosity=0, autoclobber=True, serialize=False)
    assert known["NAME"] != name
    hand_over()
    creation.destroy_test_db(name, verbosity=0)
    with lock("page:1"):
        pass


def wait_without_a_limit() -> None:
    """As a COMMIT is waited for of which nobody else has to know: for longer than any answer may take otherwise."""
    requests: Any = registry().store("default").backend
    sleep = "pg_sleep" if database["ENGINE"].endswith("postgresql") else "SLEEP"

    def work(transaction: Any) -> None:
        transaction.wait_for_the_commit()
        transaction.run(Statement(f"SELECT {sleep}(2.5)"))

    requests._requests.run(work, begin=False)


def wait_for_a_silent_server() -> None:
    """It answers no more, and its host does: a request is refused all the same, and within its time."""
    known = connections.settings["default"]
    with Proxy(int(known["PORT"]), known["HOST"]) as proxy:
        known["PORT"] = proxy.port
        lock("silent").acquire().release()
        proxy.swallow()
        begun = time.monotonic()
        try:
            lock("silent").acquire()
        except BackendUnavailable:
            print("refused", "in time" if time.monotonic() - begun < 30 else "late")


call_command("migrate", verbosity=0)
call_command("check", fail_level="WARNING")
has_server = database["ENGINE"] != "django.db.backends.sqlite3"
waiting = ThreadPoolExecutor(1).submit(wait_without_a_limit if has_server else int)
with lock(["a", "b"], renew=True) as lease:
    lease.extend()
    assert all(lease.fences.values())
hand_over()
assert report(7) == report(7) == 7
assert add("buyers") == add("buyers")
assert Group.objects.count() == 1
assert asyncio.run(crowd()) == list(range(6))
with lock("readers", shared=True):
    call_command("distlock", "list")
assert "page:1" in of_the_page()
call_command("distlock", "doctor")
if has_server:
    waiting.result(60)
    print("answered")
if database["ENGINE"] == "django.db.backends.postgresql":
    in_a_test_run()
if has_server:
    wait_for_a_silent_server()
registry().close()
drivers = {"sqlalchemy", "psycopg", "psycopg2", "pymysql", "MySQLdb", "_sqlite3"}
print(json.dumps(sorted(drivers & sys.modules.keys())))
