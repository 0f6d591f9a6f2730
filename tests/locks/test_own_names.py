"""What a function in a program's own module is called: its lock, and its record, are those of no other program."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from distlock_web.locks.function_names import name_before, qualified_name
from tests.support.source import PROJECT

PROGRAM = """
import multiprocessing
import sys

from distlock_web import configure, distributed_lockable, once

configure({"default": {"BACKEND": "memory"}})


@distributed_lockable()
def nightly(): ...


class Job:
    @once(key="job", keep=60)
    def run(self): ...


def tell(pipe):
    pipe.send((nightly.__distlock__.keys.fixed[0], Job.run.__distlock__.name))


if __name__ == "__main__":
    for how in sys.argv[1:]:
        context = multiprocessing.get_context(how)
        here, there = context.Pipe()
        process = context.Process(target=tell, args=(there,))
        process.start()
        print(*(here.recv() if here.poll(60) else ["nothing"]))
        process.join()
    print(nightly.__distlock__.keys.fixed[0], Job.run.__distlock__.name)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "started", "module"),
    [
        ("reports.py", ["reports.py"], "reports"),
        ("reports.py", ["./reports.py"], "reports"),
        ("reports.py", ["-m", "reports"], "reports"),
        ("shop/reports.py", ["-m", "shop.reports"], "shop.reports"),
        ("shop/__main__.py", ["-m", "shop"], "shop"),
        ("shop/__main__.py", ["shop"], "shop"),
        ("", ["-c", PROGRAM], "__main__"),
    ],
    ids=str,
)
def test_a_program_is_named_as_if_it_was_imported(tmp_path: Path, file: str, started: list[str], module: str) -> None:
    """``nightly`` of two programs was one; and in a process of ``multiprocessing`` another than in its parent."""
    if file:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(PROGRAM)
    ways = ["spawn", "forkserver"] if file == "shop/reports.py" else ["spawn"] if file == "reports.py" else []
    ran = subprocess.run(
        [sys.executable, *started, *ways], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(PROJECT)},
        capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert ran.stdout.splitlines() == [f"{module}.nightly {module}.Job.run"] * (1 + len(ways)), ran.stderr


@pytest.mark.parametrize(
    ("file", "spec", "module"),
    [
        ("/jobs/reports.py", None, "reports"),
        ("/jobs/shop/__main__.py", None, "shop"),
        ("/jobs/reports.py", "__main__", "reports"),
        ("/jobs/shop/reports.py", "shop.reports", "shop.reports"),
        ("/jobs/shop/__main__.py", "shop.__main__", "shop"),
        (None, None, None),
        ("", None, None),
    ],
)
@pytest.mark.parametrize("name", ["__main__", "__mp_main__"])
def test_the_module_of_a_program(
    monkeypatch: pytest.MonkeyPatch, name: str, file: str | None, spec: str | None, module: str | None
) -> None:
    """Without processes: ``__main__``, or as ``multiprocessing`` calls it in a process that it has begun."""
    main = ModuleType(name)
    main.__file__, main.__spec__ = file, spec and ModuleSpec(spec, None)  # type: ignore[assignment]
    monkeypatch.setitem(sys.modules, name, main)

    def nightly() -> None: ...

    nightly.__module__, nightly.__qualname__ = name, "nightly"
    assert qualified_name(nightly) == f"{module or name}.nightly"
    assert name_before(nightly) == f"{name}.nightly"


def test_a_program_that_is_no_module_here_keeps_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was pickled, by a process that ``multiprocessing`` began, and is read in another one."""

    def nightly() -> None: ...

    nightly.__module__, nightly.__qualname__ = "__mp_main__", "nightly"
    monkeypatch.delitem(sys.modules, "__mp_main__", raising=False)
    assert qualified_name(nightly) == "__mp_main__.nightly"


@pytest.mark.parametrize(("function", "before"), [(str.join, "?.str.join"), ("".join, "None.str.join")])
def test_what_says_no_module_has_a_name(function: Any, before: str) -> None:
    assert qualified_name(function) == "?.str.join"
    assert name_before(function) == before
