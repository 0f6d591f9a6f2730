"""A whole screen of a terminal, redrawn in place and given back as it was."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from .output import Output, fitted

try:
    import termios
    import tty
except ImportError:  # pragma: no cover - Windows: no key is read there, Ctrl-C leaves
    termios = None  # type: ignore[assignment]

#: The alternate screen without a cursor, and back. What was there before comes back with it.
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
#: Drawn at once where the terminal knows how: no half of a frame is seen.
_BEGIN, _END = "\x1b[?2026h", "\x1b[?2026l"


@contextmanager
def full_screen(out: Output) -> Iterator[None]:
    """While the block runs the terminal shows what :func:`draw` draws, and keys arrive without Enter.

    Also when a signal ends or stops the process, the terminal is as it was.
    """
    keyboard = _Keyboard()

    def enter() -> None:
        keyboard.single_keys()
        _write(out, _ENTER)

    def leave() -> None:
        _write(out, _LEAVE)
        keyboard.restore()

    def stopped(signum: int, frame: FrameType | None) -> None:
        leave()
        os.kill(os.getpid(), signal.SIGSTOP)
        enter()

    handlers = {signal.SIGTERM: _end, signal.SIGHUP: _end, signal.SIGTSTP: stopped}
    previous = {signum: signal.signal(signum, handler) for signum, handler in handlers.items()}
    try:
        enter()
        yield
    finally:
        try:
            leave()
        finally:
            for signum, handler in previous.items():
                signal.signal(signum, handler)


def draw(out: Output, lines: Sequence[str], styles: Sequence[Sequence[str]]) -> None:
    """The whole screen from these lines, each in its styles; a line is cut, and lines that do not fit are counted."""
    width, height = os.get_terminal_size(out.stream.fileno())
    height = height or 24  # a serial line does not know its size
    shown = [out.paint(fitted(line, width or 80), *style) for line, style in zip(lines, styles, strict=True)]
    if len(shown) > height:
        shown[height - 1 :] = [out.paint(f"{len(shown) - height + 1} more", "dim")]
    _write(out, f"{_BEGIN}\x1b[H" + "\r\n".join(f"{line}\x1b[K" for line in shown) + f"\x1b[J{_END}")


def read_key(seconds: float) -> str:
    """The key that is pressed within so many seconds, or ``""``."""
    if termios is None or not sys.stdin or not sys.stdin.isatty():
        time.sleep(seconds)
        return ""
    ready, _, _ = select.select([sys.stdin], [], [], seconds)
    return os.read(sys.stdin.fileno(), 1).decode("ascii", "replace") if ready else ""


class _Keyboard:
    def __init__(self) -> None:
        self._before: list[Any] | None = None

    def single_keys(self) -> None:
        if termios is not None and sys.stdin and sys.stdin.isatty():
            self._before = termios.tcgetattr(sys.stdin)
            tty.setcbreak(sys.stdin)

    def restore(self) -> None:
        if self._before is not None:
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, self._before)


def _end(signum: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + signum)


def _write(out: Output, text: str) -> None:
    """Past the stream's buffer, which a signal's handler must not enter while the code that it interrupts is inside."""
    data = text.encode("utf-8", "replace")
    while data:
        data = data[os.write(out.stream.fileno(), data) :]
