"""The package's source as the house rules read it: files, imports (of types too), functions."""

from __future__ import annotations

import ast
import tokenize
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import distlock_web

PACKAGE = Path(distlock_web.__file__).parent
PROJECT = Path(__file__).parents[2]
FILES = sorted(PACKAGE.rglob("*.py"))


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


@cache
def code_lines(path: Path) -> frozenset[int]:
    """The numbers of the lines of code: a comment or docstring counts nowhere, so that no rule makes one shorter."""
    spoken = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING}
    with path.open("rb") as file:
        tokens = [each for each in tokenize.tokenize(file.readline) if each.type not in spoken]
    lines = {line for token in tokens for line in range(token.start[0], token.end[0] + 1)}
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines -= {*range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    return frozenset(lines)


def shown(path: Path) -> str:
    """A path of the package as the rules name it: ``core/keys.py``."""
    return path.relative_to(PACKAGE).as_posix()


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def below(folder: str) -> list[Path]:
    """The files of one part of the package: a folder, or one module."""
    return [path for path in FILES if path.relative_to(PACKAGE).parts[0].removesuffix(".py") == folder]


def imports(path: Path) -> list[str]:
    """The modules that a file imports, wherever in it and be it for the type checker alone, as absolute names."""
    return sorted({module for module, _ in _imported(path, tree(path))})


def imported_names(path: Path) -> list[tuple[str, str]]:
    """``from module import name``, wherever in the file: pairs of both, the module as an absolute name."""
    return sorted(_imported(path, tree(path)))


def _imported(path: Path, parsed: ast.AST) -> Iterator[tuple[str, str]]:
    package = path.relative_to(PACKAGE.parent).parent.parts if path.is_relative_to(PACKAGE) else ()
    for node in ast.walk(parsed):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                # `from .core import keys` names a module, `from .core.keys import shorten` does not.
                submodule = f"{module}.{alias.name}"
                yield (submodule, "") if submodule in modules() else (module, alias.name)


@cache
def modules() -> frozenset[str]:
    """All modules of the package."""
    return frozenset(module_name(path) for path in FILES)


def graph() -> dict[str, set[str]]:
    """Which module of ours imports which others of ours."""
    return {
        module_name(path): {module for module in imports(path) if module in modules()} - {module_name(path)}
        for path in FILES
    }


def circle(edges: Mapping[str, Iterable[str]]) -> list[str]:
    """The modules of one that there is, in their order; empty, where there is none."""
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def private_imports(path: Path) -> list[str]:
    """What a file imports of another part of the package although its name begins with an underscore.

    ``module._name``, too, where the file has imported the module.
    """
    part = _part(module_name(path))
    found = [
        f"{module}.{name}"
        for module, name in imported_names(path)
        if name.startswith("_") and name not in ("__version__", "_")  # "_" is gettext's, by custom
    ]
    names = _names_of_modules(path)
    found += [
        f"{names[node.value.id]}.{node.attr}"
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__")
        if isinstance(node.value, ast.Name) and node.value.id in names
    ]
    return [name for name in found if name.startswith("distlock_web.") and _part(name) != part]


def _part(module: str) -> str:
    """Whose private names these are: those of ``core``, or of one backend."""
    parts = module.split(".")
    return ".".join(parts[1:3]) if parts[1:2] == ["backends"] else ".".join(parts[1:2])


def _names_of_modules(path: Path) -> dict[str, str]:
    """By the name that it has in this file: each module of ours that the file has imported."""
    package = path.relative_to(PACKAGE.parent).parent.parts
    names: dict[str, str] = {}
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*base, *([node.module] if node.module else [])])
            names |= {
                alias.asname or alias.name: f"{module}.{alias.name}"
                for alias in node.names
                if f"{module}.{alias.name}" in modules()
            }
    return names
