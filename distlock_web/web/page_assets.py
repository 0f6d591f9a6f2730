"""The templates, the style sheet and the script of the pages of held locks: one set for every framework."""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path

TEMPLATES = Path(__file__).parent / "templates"
#: One for all frameworks. Django's staticfiles look for it there.
_STATIC = Path(__file__).parents[1] / "django" / "static" / "distlock_web"
_CSS = "text/css; charset=utf-8"
_TYPES = {
    "held_locks.css": _CSS,
    "held_locks.js": "text/javascript; charset=utf-8",
    "admin.css": _CSS,  # around it in Django's admin
    "page.css": _CSS,  # around it where no framework brings a page
}

#: Changes with the files: their addresses have it, so that browsers may keep them.
VERSION = blake2b(b"".join((_STATIC / name).read_bytes() for name in sorted(_TYPES)), digest_size=6).hexdigest()


def asset(name: str, version: str | None) -> tuple[bytes, dict[str, str]] | None:
    """A style sheet or a script, and its headers. None: there is none of this name.

    ``version`` is the one that the address names. Only under its own a file may be kept for good: in a rolling
    deployment an old worker is asked for the new one's, and what it has would stay in the browser for a year.
    """
    if name not in _TYPES:
        return None
    kept = "public, max-age=31536000, immutable" if version == VERSION else "no-cache"
    return (_STATIC / name).read_bytes(), {"Content-Type": _TYPES[name], "Cache-Control": kept}
