"""What the pages say in words alone."""

from __future__ import annotations

import re

from tests.support.source import PROJECT


def test_the_pages_name_the_same_as_public_for_authors_of_integrations() -> None:
    docs = PROJECT / "docs"
    rest = (docs / "integrations.md").read_text("utf-8").partition("## The rest of a web framework")[2]
    used = {"distlock_web." + path.replace("/", ".") for path in re.findall(r"`(\w+/\w+)\.py`", rest)}
    public = (docs / "architecture.md").read_text("utf-8").partition("| authors of stores and integrations |")[2]
    shared = set(re.findall(r"`(distlock_web\.(?:web|cli)\.\w+)`", public.partition("\n")[0]))
    assert used == shared != set()
