"""The files that docs/testing.md shows are a project's, and its tests pass there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "testing.md"

pytest_plugins = ("pytester",)


def test_the_tests_of_the_page_pass_without_a_server(pytester: pytest.Pytester) -> None:
    blocks = re.findall(r"^```python\n# (\w+)\.py\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    assert [name for name, _ in blocks] == ["shop", "test_shop", "conftest"]
    pytester.makepyfile(**{name: code.replace("127.0.0.1:6379", "127.0.0.1:1") for name, code in blocks})
    pytester.makepyfile(
        test_redis="""
        from distlock_web import lock

        def test_a_server_of_its_own(real_locks):
            with lock("a") as lease:
                assert lease.acquired
        """
    )
    options = ("-q", "-p", "no:django", "-p", "no:cacheprovider", "-p", "no:xdist")
    pytester.runpytest_subprocess(*options, "test_shop.py", "test_redis.py").assert_outcomes(passed=3)
