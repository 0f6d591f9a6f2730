"""The tables of stores, options and settings in these pages, from what the code declares: ``python docs/tables.py``

A test compares; ``--check`` writes nothing, and fails where a table is not up to date.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any

from distlock_web.core.backend import Capabilities
from distlock_web.core.config import SETTINGS, STORES, StoreConfig
from distlock_web.core.setting import Setting, Settings
from distlock_web.locks.call_options import CALL_OPTIONS
from distlock_web.locks.once import OWN_OPTIONS as ONCE_OPTIONS
from distlock_web.locks.options import OPTIONS as LOCK_OPTIONS
from distlock_web.web.settings import PROJECT_SETTINGS

DOCS = Path(__file__).parent
#: Where a table stands, and its name there.
PLACE = re.compile(r"(?<=<!-- table )([\w ]+)(: python docs/tables\.py -->\n).*?(?=<!-- end -->)", re.S)

#: A heading for each capability. One that is missing here fails.
HEADINGS = {
    "queue": "in order",
    "transfer": "hand-over",
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
TIMES = 'option (times: seconds, a `timedelta`, or text such as `"24h"`, `"1h30m"`, `"500ms"`)'


def backend(store: str) -> Any:
    module, _, name = StoreConfig("", store).path.rpartition(".")
    return getattr(import_module(module), name)


def options_of(store: str) -> Settings:
    """What may stand in ``OPTIONS``."""
    found: Settings = backend(store).options
    return found


def tables() -> dict[str, str]:
    """All that can be set, and what the stores can do."""
    redis = options_of("redis").values()
    key, *of_calls = CALL_OPTIONS.values()
    found = {
        "capabilities": stores(),
        "lock": settings(TIMES, [key, *LOCK_OPTIONS.values()], "default: the setting, or"),
        "decorator": settings("option", of_calls),
        "once": settings("option", ONCE_OPTIONS.values()),
        "settings": settings("setting", SETTINGS.values()),
        "project": settings("setting", PROJECT_SETTINGS.values()),
        "redlock": settings("`OPTIONS`", [row for row in options_of("redlock").values() if row not in redis]),
    }
    return found | {name: settings("`OPTIONS`", options_of(name).values()) for name in ("redis", "sql", "zookeeper")}


def settings(heading: str, rows: Iterable[Setting], default: str = "default") -> str:
    return table([heading, "means", default], [[f"`{row.name}`", row.meaning, _default(row)] for row in rows])


def stores() -> str:
    headings = [HEADINGS[field.name] for field in fields(Capabilities)]
    rows = []
    for name, store in STORES.items():
        urls = " ".join(f"`{scheme}://`" for scheme in store.schemes)
        found = backend(name).capabilities
        values = (getattr(found, field.name) for field in fields(found))
        rows.append([f"`{name}`", urls, EXCLUDES[name], *map(_capability, values)])
    return table(["backend", "`LOCATION`", "excludes", *headings], rows)


def table(headings: list[str], rows: list[list[str]]) -> str:
    return "".join(f"| {' | '.join(row)} |\n" for row in (headings, ["---"] * len(headings), *rows))


def _default(row: Setting) -> str:
    if row.in_words:
        return row.in_words
    if isinstance(row.default, float):
        return f"{row.default:g}"
    if isinstance(row.default, str) and row.default:
        return f"`{json.dumps(row.default)}`"
    return f"`{row.default}`" if isinstance(row.default, bool) else str(row.default or "–")


def _capability(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "–" if value == float("inf") else f"{value:g} s"


def main() -> int:
    made, old = tables(), False
    for page in sorted(DOCS.glob("*.md")):
        text = page.read_text("utf-8")
        wanted = PLACE.sub(lambda place: f"{place[1]}{place[2]}{made[place[1]]}", text)
        if wanted == text:
            continue
        old = True
        if "--check" not in sys.argv:
            page.write_text(wanted, "utf-8")
        print(page.name, "is not up to date" if "--check" in sys.argv else "written")
    return 1 if old and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
