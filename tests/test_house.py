"""The house rules that a reader relies on: who may import whom, and what has to be in the wheel."""

from __future__ import annotations

import ast
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

import distlock_web

PACKAGE = Path(distlock_web.__file__).parent
PROJECT = Path(__file__).parent.parent
FILES = sorted(path for path in PACKAGE.rglob("*.py"))
#: On top of the house: they may use all that is below, and never each other.
TOP = ("django", "flask", "testing")
#: What a backend may use beside core: its driver.
DRIVERS = {"redis": {"redis", "hiredis"}, "memory": set[str]()}


def imports(path: Path) -> Iterator[str]:
    """The modules that a file imports, wherever in it, as absolute names."""
    package = path.relative_to(PACKAGE.parent).parent.parts
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*base, *([node.module] if node.module else [])])
            # `from . import engine` names a module, `from .engine import end` does not: both readings are given.
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names if node.module is None)


def below(folder: str) -> list[Path]:
    return [path for path in FILES if path.relative_to(PACKAGE).parts[0] == folder]


def belongs(module: str, *packages: str) -> bool:
    return any(module == package or module.startswith(package + ".") for package in packages)


def wrong(paths: list[Path], allowed: set[str], ours: tuple[str, ...]) -> list[str]:
    """What these files import that is neither in the standard library, nor allowed, nor in these parts of ours."""
    parts = tuple("distlock_web." + part for part in ours)
    return [
        f"{path.relative_to(PACKAGE)} imports {module}"
        for path in paths
        for module in imports(path)
        if module != "distlock_web"
        and not belongs(module, *parts)
        and module.partition(".")[0] not in allowed | sys.stdlib_module_names
    ]


def test_core_needs_nothing_but_the_standard_library() -> None:
    assert len(below("core")) > 8
    assert wrong(below("core"), set(), ("core",)) == []


def test_a_backend_needs_core_and_its_driver() -> None:
    by_backend = defaultdict(list)
    for path in below("backends"):
        by_backend[path.relative_to(PACKAGE / "backends").parts[0].removesuffix(".py")].append(path)
    del by_backend["__init__"]
    for name, files in by_backend.items():
        assert wrong(files, DRIVERS[name], ("core", f"backends.{name}")) == []


@pytest.mark.parametrize("part", TOP)
def test_what_is_on_top_does_not_know_its_neighbours(part: str) -> None:
    neighbours = tuple(f"distlock_web.{other}" for other in TOP if other != part)
    found = [(path.name, module) for path in below(part) for module in imports(path) if belongs(module, *neighbours)]
    assert found == []


def test_nobody_imports_a_backend() -> None:
    """They are loaded by name, so that a driver that is not installed is missed by nobody who does not use it."""
    found = [
        (path.name, module)
        for path in FILES
        for module in imports(path)
        if belongs(module, "distlock_web.backends") and path.relative_to(PACKAGE).parts[0] != "backends"
    ]
    assert found == []


def test_the_engine_knows_neither_threads_nor_time() -> None:
    assert not {"threading", "time"} & set(imports(PACKAGE / "locks" / "engine.py"))


def test_every_data_file_is_in_the_package_data() -> None:
    """A wheel without its scripts installs well, and fails at the first lock."""
    if PACKAGE != PROJECT / "distlock_web":
        pytest.skip("the package that is tested is an installed wheel")
    settings = tomllib.loads((PROJECT / "pyproject.toml").read_text("utf-8"))
    patterns = settings["tool"]["setuptools"]["package-data"]["distlock_web"]
    listed = {path for pattern in patterns for path in PACKAGE.glob(pattern)}
    data = {path for path in PACKAGE.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")}
    assert any(path.suffix == ".lua" for path in data)
    assert sorted(data - listed) == []


def test_every_script_is_where_the_package_is() -> None:
    """The same from the other side: this is what tells when the tests run against a wheel."""
    scripts = {path.name for path in PACKAGE.rglob("*.lua")}
    assert {"acquire.lua", "release.lua", "extend.lua", "cancel.lua"} <= scripts
    assert (PACKAGE / "py.typed").exists()


def test_the_readme_can_be_read_in_one_sitting() -> None:
    assert len((PROJECT / "README.md").read_text("utf-8").splitlines()) < 200
