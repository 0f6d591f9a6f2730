"""The lists of mutants follow the code: who moves a function, a line or a test takes its entries along."""

from __future__ import annotations

import ast
import re
import tomllib

from tests.support.mutants.__main__ import KNOWN, PROJECT
from tests.support.mutants.subjects import FILES
from tests.support.source import PACKAGE

#: By the name of its file: which survive, each with the reason.
SURVIVORS = tomllib.loads(KNOWN.read_text("utf-8"))


def functions(code: str) -> set[str]:
    """As an entry names them: ``f``, ``Class.f``."""
    body = ast.parse(code).body
    inside = [(f"{each.name}.", node) for each in body if isinstance(each, ast.ClassDef) for node in each.body]
    return {
        prefix + node.name
        for prefix, node in [*(("", node) for node in body), *inside]
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def test_a_survivor_is_of_a_function_and_a_line_that_are_there_and_has_a_reason() -> None:
    wrong = []
    for name, reasons in SURVIVORS.items():
        code = (PACKAGE / FILES[name][0]).read_text("utf-8")
        known, words = functions(code), " ".join(code.split())
        for text in (text for reason in reasons if reason["why"] for text in reason["mutants"]):
            function, _, change = text.partition(": ")
            if function not in known or " ".join(change.partition(" → ")[0].split()) not in words:
                wrong.append(f"{name}: {text}")
    assert wrong == []


def test_the_tests_of_a_file_are_there() -> None:
    assert [path for _, tests in FILES.values() for path in tests if not (PROJECT / path).exists()] == []


def test_the_night_tries_each_file_that_has_a_list() -> None:
    night = (PROJECT / ".github/workflows/nightly.yml").read_text("utf-8")
    [tried] = re.findall(r"\n  mutants:\n.*?\n +file: \[(.*?)\]", night, re.DOTALL)
    assert tried.split(", ") == list(FILES)
