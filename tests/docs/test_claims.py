"""What the pages say in words alone."""

from __future__ import annotations

import re
from collections import Counter

from tests.support.simulation.mutants import MUTANTS
from tests.support.source import PROJECT


def test_the_pages_name_the_same_as_public_for_authors_of_integrations() -> None:
    docs = PROJECT / "docs"
    rest = (docs / "integrations.md").read_text("utf-8").partition("## The rest of a web framework")[2]
    used = {"distlock_web." + path.replace("/", ".") for path in re.findall(r"`(\w+/\w+)\.py`", rest)}
    public = (docs / "architecture.md").read_text("utf-8").partition("| authors of stores and integrations |")[2]
    shared = set(re.findall(r"`(distlock_web\.(?:web|cli)\.\w+)`", public.partition("\n")[0]))
    assert used == shared != set()


def test_when_it_goes_wrong_names_functions_that_exist() -> None:
    """They are what a reader looks for at three in the morning."""
    page = (PROJECT / "docs" / "architecture.md").read_text("utf-8")
    section = page.partition("## When it goes wrong")[2].partition("\n## ")[0]
    source = "\n".join(
        path.read_text("utf-8") for path in (PROJECT / "distlock_web").rglob("*") if path.suffix in (".py", ".lua")
    )
    named = {name.rpartition(".")[2] for name in re.findall(r"`((?:[\w]+\.)?[a-z_]{4,})`", section)}
    kept = {"expired", "taken", "revoked", "forked", "unsure", "once", "recheck_after", "record"}  # words and fields
    assert named & {"release_all", "hand_over", "record_within", "check_process", "undo"}
    missing = {name for name in named - kept if not re.search(rf"(?:def|function) {name}\b", source)}
    assert missing == set()


def test_the_table_of_mutants_has_the_seeds_with_which_the_test_begins() -> None:
    page = (PROJECT / "docs" / "proof.md").read_text("utf-8")
    section = page.partition("## That it can fail")[2].partition("\n## ")[0]
    rows = "\n".join(line for line in section.splitlines() if line.startswith("|"))
    assert Counter(re.findall(r"`([a-z-]+-\d+)`", rows)) == Counter(mutant.seed for mutant in MUTANTS.values())
