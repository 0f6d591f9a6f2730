"""The arguments of all commands, and help that teaches: each with what it does, examples and what to look out for."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from ..core.config import MAX_SECONDS
from ..core.findings import SEVERITIES, Finding
from .exit_codes import BUSY, EPILOG, USAGE, CommandFailed
from .output import Output
from .texts import DESCRIPTIONS, GROUP, STORES, SUMMARIES


@dataclass(frozen=True, slots=True)
class Context:
    """What a command works with beside its options."""

    out: Output
    errors: Output
    #: What a framework knows to be wrong with the project, asked by ``doctor`` with gunicorn's time-out.
    findings: Callable[[float | None], Sequence[Finding]]


class Parser(argparse.ArgumentParser):
    """An ``ArgumentParser`` that raises ``CommandFailed``, where argparse ends the process with 2."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **kwargs)

    def error(self, message: str) -> NoReturn:
        raise CommandFailed(f"{message}\n{self.format_usage()}`{self.prog} --help` explains.", USAGE)


def parser(program: str, *, stores: bool) -> Parser:
    """The parser of the whole command line. ``stores``: whether options say where the locks are, or the framework."""
    top = Parser(prog=program, description=GROUP, epilog=EPILOG)
    chosen = _stores() if stores else []
    for each in chosen:
        each(top)
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=Parser)
    for name, add in _COMMANDS.items():
        description = DESCRIPTIONS[name].format(program=program)
        command = commands.add_parser(name, help=SUMMARIES[name], description=description)
        if name == "run":  # argparse writes "..." for a command of somebody's own
            command.usage = f"{command.prog} --key KEY [OPTION ...] [--] COMMAND [ARGUMENT ...]"
        add(command)
        for each in chosen:
            each(command)
    return top


def _stores() -> list[Callable[[Parser], object]]:
    """``--url`` and ``--config``, accepted both before and after the command.

    Without a default: that of the command's own parser would replace what was given before the command.
    """
    absent = argparse.SUPPRESS
    return [
        lambda to: to.add_argument("--url", default=absent, metavar="URL", help=STORES["url"]),
        lambda to: to.add_argument("--config", default=absent, metavar="MODULE:NAME", help=STORES["config"]),
    ]


def _search(to: Parser) -> None:
    to.add_argument("--search", default="", metavar="WORDS", help="only locks with all of these words; see above")


def _json(to: Parser, what: str) -> None:
    to.add_argument("--json", action="store_true", help=f"{what}, for programs; times are seconds")


def _one_store(to: Parser, purpose: str) -> None:
    to.add_argument("--store", metavar="ALIAS", help=purpose)


def _list(to: Parser) -> None:
    _search(to)
    _json(to, "an array")


def _show(to: Parser) -> None:
    to.add_argument(
        "name", type=_name, metavar="NAME", help="the lock, as `list` shows it, or without the prefix of its store"
    )
    _one_store(to, "the store, where several hold a lock of this name")
    _json(to, "an object")


def _release(to: Parser) -> None:
    to.add_argument(
        "name", type=_name, metavar="NAME", help="the lock, as `list` shows it, or without the prefix of its store"
    )
    _one_store(to, "the store, where several hold a lock of this name")
    to.add_argument("--fence", type=int, metavar="N", help="only from the holder with this fence, as `list` shows it")
    to.add_argument("--yes", "-y", action="store_true", help="do not ask; required where there is no terminal")


def _watch(to: Parser) -> None:
    _search(to)
    to.add_argument("--interval", "-n", type=_positive, default=2.0, metavar="SECONDS", help="between two looks (2)")
    to.add_argument("--count", type=_count, metavar="N", help="leave after so many looks")


def _run(to: Parser) -> None:
    to.add_argument("--key", "-k", required=True, help="what to lock; runs with the same key exclude each other")
    to.add_argument("--expire", type=_positive, metavar="SECONDS", help="how long it outlives us (store's EXPIRE)")
    waiting = to.add_mutually_exclusive_group()
    waiting.add_argument("--wait", "-w", type=_seconds, metavar="SECONDS", help="wait so long at most (for ever)")
    waiting.add_argument(
        "--no-wait", "-n", dest="wait", action="store_const", const=0.0, help="do not wait for a busy lock"
    )
    to.add_argument(
        "--on-lost", choices=("kill", "warn"), default="kill", help="what to do when the lock is lost (kill)"
    )
    to.add_argument("--kill-after", type=_seconds, default=10.0, metavar="SECONDS", help="from SIGTERM to SIGKILL (10)")
    to.add_argument(
        "--busy-exit-code", "-E", type=_exit_code, default=BUSY, metavar="N", help=f"if the lock is busy ({BUSY})"
    )
    _one_store(to, "the store of the lock (default)")
    to.add_argument("--prefix", help="the beginning of the lock's name (store's PREFIX)")
    to.add_argument("argv", metavar="-- COMMAND", nargs=argparse.REMAINDER, help="the command and its arguments")


def _doctor(to: Parser) -> None:
    _one_store(to, "only this store")
    _json(to, "an array")
    to.add_argument(
        "--fail-level", choices=SEVERITIES, default="error", help="the least severity that makes the exit status 1"
    )
    to.add_argument(
        "--gunicorn-timeout",
        type=_seconds,
        metavar="SECONDS",
        help="gunicorn's timeout (what GUNICORN_CMD_ARGS says)",
    )
    to.add_argument("--uwsgi", metavar="FILE", help="uWSGI's .ini file, to look at its options, too")


def _init(to: Parser) -> None:
    _one_store(to, "only this store")


def _redlock(to: Parser) -> None:
    to.add_argument("action", choices=["adopt"], help="make the list of nodes in the settings count")
    _one_store(to, "this store, else 'default'")


_COMMANDS: dict[str, Callable[[Parser], None]] = {
    "list": _list,
    "show": _show,
    "release": _release,
    "watch": _watch,
    "doctor": _doctor,
    "run": _run,
    "init": _init,
    "redlock": _redlock,
}


def _name(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:  # bytes of the command line that are no UTF-8
        raise argparse.ArgumentTypeError(f"{text!r} is no text, and no lock has such a name") from None
    return text


def _seconds(text: str) -> float:
    value = float(text) if re.fullmatch(r"\d*\.?\d+", text) else -1.0
    if not 0 <= value <= MAX_SECONDS:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds, 0 to {MAX_SECONDS:.0f}")
    return value


def _positive(text: str) -> float:
    if (value := _seconds(text)) == 0:
        raise argparse.ArgumentTypeError("it has to be more than 0 seconds")
    return value


def _count(text: str) -> int:
    value = int(text) if text.isdecimal() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of looks, 1 or more")
    return value


def _exit_code(text: str) -> int:
    value = int(text) if text.isdecimal() else -1
    if not 0 <= value <= 255:
        raise argparse.ArgumentTypeError(f"{text!r} is no exit status, 0 to 255")
    return value
