"""The templates, the style sheet and the script of the pages of held locks: one set for every framework."""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path

TEMPLATES = Path(__file__).parent / "templates"
_STATIC = Path(__file__).parent / "static"
_CSS = "text/css; charset=utf-8"
_TYPES = {
    "held_locks.css": _CSS,
    "held_locks.js": "text/javascript; charset=utf-8",
    "admin.css": _CSS,  # around it in Django's admin
    "page.css": _CSS,  # around it where no framework brings a page
}

#: Changes with the files: their addresses have it, so that browsers may keep them for good.
VERSION = blake2b(b"".join((_STATIC / name).read_bytes() for name in sorted(_TYPES)), digest_size=6).hexdigest()
CACHE_CONTROL = "public, max-age=31536000, immutable"


def asset(name: str) -> tuple[str, bytes] | None:
    """A style sheet or a script: its content type and itself. None: there is none of this name."""
    return (_TYPES[name], (_STATIC / name).read_bytes()) if name in _TYPES else None
