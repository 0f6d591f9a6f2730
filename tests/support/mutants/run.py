"""mutmut itself, without the stack of calls that it keeps in a context variable, and with tests collected once.

It sets that in each function that it has changed, and some of ours run while garbage is collected, perhaps within
``ContextVar.set()``: before Python 3.12 that is a crash. The stack is only for who looks at results of an earlier run.

It collects the tests for each mutant anew, which takes far longer than the one of them that fails.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from importlib import import_module
from typing import Any

import pytest
from _pytest.config import _prepareconfig


class NoStack:
    @staticmethod
    def get() -> tuple[str, int]:
        return "", 0

    @staticmethod
    def set(_: tuple[str, int]) -> None:
        return None

    @staticmethod
    def reset(_: object) -> None:
        return None


_session: pytest.Session | None = None


def collect(runner: Any) -> pytest.Session:
    """As mutmut calls pytest, up to the first test."""
    global _session
    os.chdir("mutants")
    of_subject, more = runner._pytest_add_cli_args_test_selection, runner._pytest_add_cli_args
    config = _prepareconfig(["--rootdir=.", "-x", "-q", "-p", "no:randomly", *of_subject, *more])
    config._do_configure()
    _session = pytest.Session.from_config(config)
    config.hook.pytest_sessionstart(session=_session)
    config.hook.pytest_collection(session=_session)
    return _session


def warm_up(runner: Any) -> None:
    """In the process that forks for each mutant. Where the tests fail without one, each mutant would be found."""
    tests = [item.nodeid for item in collect(runner).items]
    if (child := os.fork()) == 0:
        sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - as mutmut does it
        os._exit(run_tests(runner, mutant_name=None, tests=tests[:: max(1, len(tests) // 50)]))
    if os.waitpid(child, 0)[1]:
        raise RuntimeError("The tests fail in a fork, without any mutant.")


def run_tests(runner: Any, *, mutant_name: str | None, tests: Iterable[str]) -> int:
    """In a fork: 1 if one of them fails; the quick ones first. Without any mutant mutmut sees whether all pass."""
    session = _session or collect(runner)
    # Else a block that ends twice may be its parent's: a test that expects the error fails, with any mutant or none.
    import_module("distlock_web.core.process").Process.generation = 0
    unused = sys.stdout, sys.stderr  # closed by the garbage collector they make a warning, which fails a test
    items = {item.nodeid: item for item in session.items}
    took = state().duration_by_test
    wanted = [items[test] for test in sorted(tests or items, key=lambda test: took.get(test, 0.0)) if test in items]
    for item, following in zip(wanted, [*wanted[1:], None], strict=True):
        try:
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        except KeyboardInterrupt:  # a mutant has let out what a test interrupts with
            return 1
        if session.testsfailed:
            if mutant_name is None:  # mutmut says only that one has failed
                stats = item.config.pluginmanager.get_plugin("terminalreporter").stats
                failed = [report.longreprtext for kind in ("failed", "error") for report in stats.get(kind, ())]
                os.write(2, "\n".join([f"Without any mutant {item.nodeid} fails:", *failed]).encode())
            return 1
    del unused
    return 0


if __name__ == "__main__":
    import_module("mutmut.core").MutmutCallStack = NoStack  # type: ignore[attr-defined]
    state = import_module("mutmut.state").state
    runner_class = import_module("mutmut.runners.harness").PytestRunner
    runner_class.warm_up, runner_class.run_tests = warm_up, run_tests
    sys.argv[0] = "mutmut"
    import_module("mutmut.__main__").cli()
