"""What people read: text from outside made safe to show (names of locks, paths, request ids), and lengths of time."""

from __future__ import annotations

import math


def printable(text: str) -> str:
    """Without what could steer a terminal, forge a line of a log, or reverse the reading direction of a page.

    Escaping for HTML is not done here.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def span(seconds: float) -> str:
    """A length of time in its two largest units: ``7s``, ``2m 5s``, ``3h 10m``, ``4d 2h``."""
    whole = max(0, math.floor(seconds))
    for unit, size, smaller, part in (("d", 86400, "h", 3600), ("h", 3600, "m", 60), ("m", 60, "s", 1)):
        if whole >= size:
            rest = whole % size // part
            return f"{whole // size}{unit} {rest}{smaller}" if rest else f"{whole // size}{unit}"
    return f"{whole}s"
