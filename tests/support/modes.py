"""A test written once over a harness, run with threads and with asyncio."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from distlock_web.core.registry import registry
from distlock_web.testing.harness import HARNESSES

#: For a test that takes the mode's name, and no harness.
modes = pytest.mark.parametrize("mode", ["threads", "asyncio"])


def in_both_modes(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Make two tests of a coroutine over ``harness``, with threads and with asyncio, on the configured store."""

    @pytest.mark.parametrize("mode", sorted(HARNESSES))
    def run_case(mode: str, **fixtures: Any) -> None:
        harness = HARNESSES[mode](registry().store("default"))
        harness.run(test(harness, **fixtures))

    run: Any = run_case
    # What pytest reads: the test's own arguments, without the harness, and the mode.
    signature = inspect.signature(test)
    own = [parameter for name, parameter in signature.parameters.items() if name != "harness"]
    mode = inspect.Parameter("mode", inspect.Parameter.KEYWORD_ONLY)
    run.__signature__ = signature.replace(parameters=[*own, mode], return_annotation=None)
    run.__name__, run.__doc__ = test.__name__, test.__doc__
    run.pytestmark += getattr(test, "pytestmark", [])
    return run
