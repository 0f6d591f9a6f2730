"""Text that came from outside, made safe to show: names of locks, paths, request ids."""

from __future__ import annotations


def printable(text: str) -> str:
    """Without what could steer a terminal, forge a line of a log, or reverse the reading direction of a page.

    Escaping for HTML is not done here.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)
