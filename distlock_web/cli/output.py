"""Text for a terminal, a pipe or a file: aligned columns, and colours on a terminal."""

from __future__ import annotations

import os
import sys
import unicodedata
from collections.abc import Sequence
from typing import Protocol


class TextStream(Protocol):
    """``sys.stdout``, or what a framework has in its place."""

    def write(self, text: str, /) -> object: ...
    def flush(self) -> object: ...
    def isatty(self) -> bool: ...
    def fileno(self) -> int: ...


class Unwritten(Exception):
    """This stream takes no more; why is its ``__cause__``."""

    def __init__(self, stream: TextStream) -> None:
        self.stream = stream


_STYLES = {"bold": "1", "red": "31", "yellow": "33", "cyan": "36"}


def say(stream: TextStream, text: str) -> None:
    """Write this to stderr. If it has no reader, or its disk is full, the exit status alone says what happened."""
    try:
        stream.write(text)
        stream.flush()
    except OSError:
        unread(stream)


def unread(stream: TextStream) -> None:
    """Connect a stream that failed to nothing: Python would complain once more, when it flushes at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def is_stdout(stream: TextStream) -> bool:
    """Whether it is standard output, or a framework's stream around it; else it is a file of who has called us."""
    try:
        return stream.fileno() == sys.stdout.fileno()
    except (AttributeError, ValueError):  # one of them is no file
        return False


class Output:
    """Lines on a stream. ``colours``: no-color.org's rule, and not on a terminal that has none."""

    def __init__(self, stream: TextStream) -> None:
        self.stream = stream
        self.terminal = stream.isatty()
        self.colours = self.terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"

    def write(self, text: str) -> None:
        encoding = getattr(self.stream, "encoding", None) or "utf-8"  # a name may have what a locale has not
        try:
            self.stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
        except OSError as error:
            raise Unwritten(self.stream) from error

    def flush(self) -> None:
        try:
            self.stream.flush()
        except OSError as error:
            raise Unwritten(self.stream) from error

    def line(self, text: str = "") -> None:
        self.write(text + "\n")

    def paint(self, text: str, *styles: str) -> str:
        """The text in these styles; itself where there are no colours."""
        if not self.colours or not styles:
            return text
        return f"\x1b[{';'.join(_STYLES[style] for style in styles)}m{text}\x1b[0m"


def open_closed_streams() -> None:
    """Connect standard streams that are closed (``>&-``) to nothing.

    Else a connection to a store would get the number of one, and a write to that number would go into it.
    """
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115 - it lasts as long as we do
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


def columns(text: str) -> int:
    """How many columns of a terminal a printable text takes."""
    if text.isascii():
        return len(text)
    return sum(map(_columns, text))


def _columns(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def aligned(table: Sequence[Sequence[str]]) -> list[str]:
    """Lines of cells under each other, two spaces apart."""
    widths = [max(map(columns, column)) for column in zip(*table, strict=True)]
    return [
        "  ".join(cell + " " * (width - columns(cell)) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in table
    ]
