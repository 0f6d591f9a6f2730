"""``DISTLOCK`` is set, and the app that reads it is not in ``INSTALLED_APPS``: a fresh process for each."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

PROJECT = """
import sys
import django
from django.conf import settings
from django.core.management import call_command

settings.configure(
    INSTALLED_APPS=["django.contrib.contenttypes", *sys.argv[2:]],
    ROOT_URLCONF="__main__",
    MIDDLEWARE=["distlock_web.django.middleware.RequestIDMiddleware"],
    DISTLOCK={"default": {"BACKEND": "memory", "PREFIX": "shop:"}},
    DEBUG=True,
)
django.setup()
from distlock_web import configure, distributed_lockable, lock

def urls():
    yield path("pay/", distributed_lockable(key="a")(lambda request: None))

try:
    if sys.argv[1] == "check":
        from django.urls import path
        urlpatterns = list(urls())
        call_command("check", fail_level="WARNING")
    elif sys.argv[1] == "lock":
        with lock("a") as lease:
            print(lease.name)
    else:
        locked = distributed_lockable(key="a")(lambda: "ran")
        if sys.argv[1] == "by hand":
            configure(settings.DISTLOCK)
        print(locked())
except Exception as error:
    print(type(error).__name__, error)
"""


def run(what: str, *apps: str) -> str:
    command = [sys.executable, "-c", PROJECT, what, *apps]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip()


@pytest.mark.parametrize("what", ["lock", "function"])
@pytest.mark.parametrize("url", ["", "memory://"])
def test_the_first_lock_names_the_app(what: str, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISTLOCK_URL", url)
    said = run(what)
    assert said.startswith("ConfigurationError")
    assert 'INSTALLED_APPS lacks "distlock_web.django"' in said
    assert "set DISTLOCK" not in said


def test_stores_that_the_project_configures_itself_after_its_functions_are_imported() -> None:
    assert run("by hand") == "ran"
    assert run("check").startswith("System check identified no issues")


@pytest.mark.parametrize("app", ["distlock_web", "distlock_web.django", "distlock_web.django.apps.DistLockConfig"])
def test_the_app_under_each_of_its_names(app: str) -> None:
    assert run("lock", app) == "shop:a"
    assert run("check", app).startswith("System check identified no issues")
