"""The files that docs/testing.md shows are a project's, and its tests pass there."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "testing.md"

pytest_plugins = ("pytester",)


def files() -> dict[str, str]:
    blocks = re.findall(r"^```python\n# (\w+)\.py\n(.*?)^```", PAGE.read_text("utf-8"), re.M | re.S)
    return {name: code.replace("127.0.0.1:6379", "127.0.0.1:1") for name, code in blocks}


def test_the_tests_of_the_page_pass_without_a_server(pytester: pytest.Pytester) -> None:
    blocks = files()
    assert list(blocks) == ["shop", "test_shop", "test_api", "views", "tests", "settings", "conftest"]
    pytester.makepyfile(**{name: blocks[name] for name in ("shop", "test_shop", "test_api", "conftest")})
    pytester.makepyfile(
        test_redis="""
        from distlock_web import lock

        def test_a_server_of_its_own(real_locks):
            with lock("a") as lease:
                assert lease.acquired
        """
    )
    options = ("-q", "-p", "no:django", "-p", "no:cacheprovider", "-p", "no:xdist")
    pytester.runpytest_subprocess(*options, "test_shop.py", "test_api.py", "test_redis.py").assert_outcomes(passed=9)


DJANGO = {
    "settings": """
        SECRET_KEY = "tests"
        ROOT_URLCONF = "urls"
        INSTALLED_APPS = ["distlock_web.django"]
        MIDDLEWARE = ["distlock_web.django.middleware.RequestIDMiddleware"]
        DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
        DISTLOCK = {"default": {"LOCATION": "redis://127.0.0.1:1/0"}}
        """,
    "urls": """
        from django.urls import path
        import views

        urlpatterns = [path("orders/<int:order_id>/pay/", views.pay), path("orders/<int:order_id>/ship/", views.ship)]
        """,
}


def test_djangos_own_runner_runs_those_of_django(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = files()
    pytester.makepyfile(**DJANGO, **{name: blocks[name] for name in ("views", "tests")})
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "settings")
    done = pytester.run(sys.executable, "-W", "error", "-m", "django", "test", "--pythonpath", ".", "tests")
    assert done.ret == 0
    done.stderr.fnmatch_lines(["Ran 4 tests in *", "", "OK"])
