"""What the pages say in words alone."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.support import source
from tests.support.mutants import subjects
from tests.support.source import FILES, PACKAGE, PROJECT, shown


def test_the_pages_name_the_same_as_public_for_authors_of_integrations() -> None:
    docs = PROJECT / "docs"
    rest = (docs / "integrations.md").read_text("utf-8").partition("## The rest of a web framework")[2]
    used = {"distlock_web." + path.replace("/", ".") for path in re.findall(r"`(\w+/\w+)\.py`", rest)}
    public = (docs / "architecture.md").read_text("utf-8").partition("| authors of stores and integrations |")[2]
    shared = set(re.findall(r"`(distlock_web\.(?:web|ops|cli)\.\w+)`", public.partition("\n")[0]))
    assert used == shared != set()


def test_the_page_of_the_code_names_functions_where_they_are() -> None:
    """They are what a reader looks for at three in the morning."""
    page = (PROJECT / "docs" / "architecture.md").read_text("utf-8")
    part = page.partition("## A new option of a lock\n")[2].partition("\n## What can be set")[0]
    steps = re.findall(r"^\d+\. (?:`([\w/]+\.(?:py|lua))` ((?:`[\w.]+`(?:, )?)+): )?(.*)", part, re.M)
    assert len(steps) > 50
    wrong = [text for file, _, text in steps if not file]
    for file, names, _ in steps:
        wrong += [f"{file} {name}" for name in re.findall(r"`([\w.]+)`", names) if name not in _functions(file)]
    assert wrong == []
    others = set(re.findall(r"`([A-Z]\w+\.\w+)`", part))
    known = {name for path in FILES for name in (*_functions(shown(path)), *_attributes(path))}
    assert others - known == set()
    private = set(re.findall(r"`(_[a-z]\w*)`", page))  # of any class: in a sentence its file is the step's
    assert private - {name.rpartition(".")[2] for name in known} == set() != private


def _functions(file: str) -> set[str]:
    """What is defined in a file of the package: functions, classes, methods with their class."""
    path = PACKAGE / file
    if path.suffix == ".lua":
        return set(re.findall(r"^local function (\w+)", path.read_text("utf-8"), re.M))
    return set(_defined(source.tree(path), ""))


def _defined(tree: ast.AST, inside: str) -> Iterator[str]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield inside + node.name
        if isinstance(node, ast.ClassDef):
            yield from _defined(node, f"{node.name}.")


def _attributes(path: Path) -> Iterator[str]:
    """Of its classes, as ``Class.attribute``."""
    for node in ast.walk(source.tree(path)):
        if isinstance(node, ast.ClassDef):
            names = re.findall(r"^ +(?:self\.)?(\w+)(?::| =) ", ast.unparse(node), re.M)
            yield from (f"{node.name}.{name}" for name in names)


def test_the_words_of_the_code_are_its_words() -> None:
    page = (PROJECT / "docs" / "architecture.md").read_text("utf-8")
    table = page.partition("## Words of the code\n")[2].partition("\n## ")[0]
    words = [word for row in re.findall(r"^\| ([\w, ]+) \|", table, re.M)[1:] for word in row.split(", ")]
    assert len(words) > 20
    files = (*FILES, *PACKAGE.rglob("*.lua"))
    used = "\n".join(path.read_text("utf-8") for path in files).lower()
    assert [word for word in words if not re.search(rf"\b{word}\b", used)] == []


def test_the_page_has_a_row_for_each_file_whose_mutants_the_night_tries() -> None:
    page = (PROJECT / "docs" / "proof.md").read_text("utf-8")
    section = page.partition("## Mutants of our code")[2].partition("\n## ")[0]
    assert sorted(re.findall(r"^\| `([\w/]+\.py)`", section, re.M)) == sorted(
        file for file, _ in subjects.FILES.values()
    )
