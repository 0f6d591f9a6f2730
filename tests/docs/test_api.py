"""docs/api.md has every public name, and none that does not exist."""

from __future__ import annotations

import inspect
import pydoc
import re
from collections.abc import Callable, Collection
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import distlock_web
from distlock_web import DistLockError, Lease, distributed_lockable, lock, once
from distlock_web.locks.decorator import OPTIONS as FUNCTION_OPTIONS
from distlock_web.locks.once import OPTIONS as ONCE_OPTIONS
from distlock_web.locks.options import OPTIONS as LOCK_OPTIONS

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "api.md").read_text()

#: Public modules of a framework, below its package.
MODULES = {
    "distlock_web.django": ("admin", "middleware", "responses", "rest", "signals", "views", "fencing"),
    "distlock_web.flask": ("responses", "signals"),
    "distlock_web.starlette": ("responses",),
}


def names_under(heading: str) -> set[str]:
    found = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S)
    assert found, heading
    cells = [line.split("|")[1] for line in found[1].splitlines() if line.startswith("| `")]
    return {name for cell in cells for name in re.findall(r"`([\w.]+)`", cell)}


def public(thing: object) -> set[str]:
    return {name for name in dir(thing) if not name.startswith("_")}


def test_every_name_of_the_package_is_there() -> None:
    errors = names_under("Errors")
    assert names_under("distlock_web") | errors == set(distlock_web.__all__)
    for name in errors - {"OpenTransactionWarning"}:
        assert issubclass(getattr(distlock_web, name), DistLockError)


def test_the_reference_has_the_docstring_of_every_name_and_module() -> None:
    shown = set(re.findall(r"^::: distlock_web\.([\w.]+)$", (DOCS / "site" / "reference.md").read_text(), re.M))
    wanted = {name for name in distlock_web.__all__ if name.islower()} - {"events"}  # a module
    wanted |= {f"{package}.{module}".partition(".")[2] for package, modules in MODULES.items() for module in modules}
    assert wanted - shown == set()


@pytest.mark.parametrize(("heading", "kind"), [("Lock", type(lock("a"))), ("Lease", Lease)])
def test_every_attribute_is_there(heading: str, kind: type) -> None:
    assert names_under(heading) == public(kind)


@pytest.mark.parametrize(
    "package",
    [f"distlock_web.{name}" for name in ("celery", "flask", "opentelemetry", "prometheus", "sqlalchemy", "starlette")],
)
def test_every_name_of_a_framework_is_there(package: str) -> None:
    names = {name for name in names_under(package) if "." not in name}
    assert names == set(import_module(package).__all__)


@pytest.mark.parametrize("package", MODULES)
def test_what_is_named_in_a_module_is_in_it(package: str) -> None:
    dotted = {name for name in names_under(package) if "." in name}
    assert {name.partition(".")[0] for name in dotted} == set(MODULES[package])
    for name in dotted:
        module, _, attribute = name.partition(".")
        assert hasattr(import_module(f"{package}.{module}"), attribute), name


@pytest.mark.parametrize(
    ("function", "first", "options"),
    [
        (lock, "key", LOCK_OPTIONS),
        (distributed_lockable, "given", FUNCTION_OPTIONS),
        (once, "first_key", ONCE_OPTIONS),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_help_and_signature_list_the_options(
    function: Callable[..., Any], first: str, options: Collection[str]
) -> None:
    parameters = inspect.signature(function).parameters
    assert list(parameters) == [first, *options]
    assert all(parameters[name].kind is inspect.Parameter.KEYWORD_ONLY for name in options)
    shown = pydoc.plain(pydoc.render_doc(function))
    assert "expire: 'Duration | None' = not given" in shown, shown[:500]
