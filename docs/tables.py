"""The table of stores in docs/which-store.md, from what each backend declares: ``python docs/tables.py``

A test compares; ``--check`` writes nothing, and fails where the table is not up to date.
"""

from __future__ import annotations

import re
import sys
from dataclasses import fields
from importlib import import_module
from pathlib import Path

from distlock_web.core.backend import Capabilities
from distlock_web.core.config import BACKENDS, SCHEMES

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "which-store.md"
PLACE = re.compile(r"(?<=<!-- capabilities: python docs/tables.py -->\n).*?(?=<!-- end -->)", re.S)

#: A heading for each capability. One that is missing here fails.
HEADINGS = {
    "fencing": "fence",
    "waiting": "wait",
    "queue": "in order",
    "transfer": "hand-over",
    "listing": "listing",
    "records": "`once`",
    "bounded_queue": "`max_waiters`",
    "sharing": "`limit`, `shared`",
    "min_expire": "shortest `expire`",
    "max_expire": "longest",
}
EXCLUDES = {
    "redis": "every process that uses the server, its Sentinels or its proxy",
    "redis-cluster": "every process that uses the cluster",
    "redlock": "every process that uses the same servers, of which a minority may fail",
    "sql": "every process that uses the database",
    "zookeeper": "every process that uses the ensemble",
    "memory": "threads and tasks of one process: for tests",
}


def capabilities(name: str) -> Capabilities:
    module, _, backend = BACKENDS[name].rpartition(".")
    found: Capabilities = getattr(import_module(module), backend).capabilities
    return found


def table() -> str:
    headings = [HEADINGS[field.name] for field in fields(Capabilities)]
    rows = [["backend", "`LOCATION`", "excludes", *headings], ["---"] * (3 + len(headings))]
    for name in BACKENDS:
        urls = " ".join(f"`{scheme}://`" for scheme, backend in SCHEMES.items() if backend == name)
        rows.append([f"`{name}`", urls, EXCLUDES[name], *map(_cell, _values(capabilities(name)))])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _values(found: Capabilities) -> list[object]:
    return [getattr(found, field.name) for field in fields(found)]


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "–" if value == float("inf") else f"{value:g} s"


def main() -> int:
    text = PAGE.read_text()
    wanted = PLACE.sub(table(), text)
    if wanted == text:
        return 0
    if "--check" in sys.argv:
        print(PAGE.name, "is not up to date")
        return 1
    PAGE.write_text(wanted)
    print(PAGE.name, "written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
