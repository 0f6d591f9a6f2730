"""The text of a ``LOCATION``: what a message may show of it."""

from __future__ import annotations

import re


def without_credentials(location: str) -> str:
    """A URL as a message may show it. Also one that is wrong, where nobody can tell the password from the rest."""
    scheme, mark, rest = location.partition("://") if "://" in location else ("", "", location)
    _, at, place = rest.rpartition("@")  # the last: a password that should have been encoded may have one
    if not at and place.startswith(":"):  # the host and its @ were forgotten
        place = ":***"
    return scheme + mark + ("***@" if at else "") + re.sub(r"(?i)(\w*pass\w*=)[^&]*", r"\1***", place)
