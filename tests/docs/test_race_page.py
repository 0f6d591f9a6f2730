"""The files that docs/race.md shows are a project's: its locked view passes, the other one fails."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "race.md"

pytest_plugins = ("pytester",)

SETTINGS = """
SECRET_KEY = "tests"
ROOT_URLCONF = "shop.urls"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = ["shop", "distlock_web.django"]
MIDDLEWARE = ["distlock_web.django.middleware.RequestIDMiddleware"]
DISTLOCK = {"default": {"LOCATION": "redis://127.0.0.1:1/0"}}
"""
URLS = """
from django.urls import path
from shop import views

urlpatterns = [path("buy/<int:pk>", views.buy), path("locked/<int:pk>", views.buy_locked)]
"""


@pytest.fixture
def page(pytester: pytest.Pytester) -> dict[str, str]:
    blocks = dict(re.findall(r"^```python\n# (\w+)\.py\n(.*?)^```", PAGE.read_text("utf-8"), re.M | re.S))
    assert list(blocks) == ["models", "views", "test_race", "settings", "tests", "app", "test_app"]
    shop = pytester.mkpydir("shop")
    for name in ("models", "views"):
        # The lines of the report are those of the blocks as they stand.
        (shop / f"{name}.py").write_text(blocks[name])
    (shop / "urls.py").write_text(URLS)
    blocks["settings"] = SETTINGS + blocks["settings"]
    blocks["app"] = blocks["app"].replace("/tmp/", f"{pytester.path}/")
    pytester.makepyfile(**{name: blocks[name] for name in ("settings", "test_race", "tests", "app", "test_app")})
    return blocks


@pytest.mark.slow
def test_the_tests_of_the_page_do_what_it_says(
    pytester: pytest.Pytester, page: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(pytester.path))
    off = ("cacheprovider", "xdist", "randomly", "asyncio")
    options = ["-q", "-W", "error", *(option for name in off for option in ("-p", f"no:{name}"))]
    done = pytester.runpytest_subprocess(*options, "--ds=settings", "test_race.py")
    done.assert_outcomes(passed=1, failed=1)
    [report] = re.findall(r"^```\n(Not as one.*?)^```", PAGE.read_text("utf-8"), re.M | re.S)
    shown = " ".join("\n".join(line.removeprefix("E").strip() for line in done.outlines).split())
    expected = " ".join(report.replace(", or select_for_update() at views.py:7", "").split())
    assert expected in shown

    done = pytester.runpytest_subprocess(*options, "-p", "no:django", "test_app.py")
    done.assert_outcomes(passed=1)

    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "settings")
    command = (sys.executable, "-W", "error", "-m", "django", "test", "--noinput", "--pythonpath", ".", "tests")
    assert pytester.run(*command).ret == 0
