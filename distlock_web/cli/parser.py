"""The arguments of all commands, and help that teaches: each with what it does, examples and what to look out for."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn, TypeAlias

from ..core.errors import ConfigurationError
from ..core.findings import SEVERITIES, Finding
from ..core.setting import check_seconds
from .exit_codes import BUSY, EPILOG, USAGE, CommandFailed
from .help_texts import DESCRIPTIONS, GROUP, STORES, SUMMARIES
from .output import Output


@dataclass(frozen=True, slots=True)
class Context:
    """What a command works with beside its options."""

    out: Output
    errors: Output
    #: What a framework knows to be wrong with the project, asked by ``doctor``.
    findings: Callable[[], Iterable[Finding]]


class Parser(argparse.ArgumentParser):
    """An ``ArgumentParser`` that raises ``CommandFailed``, where argparse ends the process with 2."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **kwargs)

    def error(self, message: str) -> NoReturn:
        raise CommandFailed(f"{message}\n{self.format_usage()}`{self.prog} --help` explains.", USAGE)

    def print_help(self, file: Any = None) -> None:
        Output(file or sys.stdout).write(self.format_help())  # argparse's own does not say that it could not


def parser(program: str, *, stores: bool) -> Parser:
    """The parser of the whole command line. ``stores``: whether options say where the locks are, or the framework."""
    top = Parser(prog=program, description=GROUP, epilog=EPILOG)
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=Parser)
    for name, options in _COMMANDS.items():
        description = DESCRIPTIONS[name].format(program=program)
        command = commands.add_parser(name, help=SUMMARIES[name], description=description, epilog=EPILOG)
        if name == "run":  # argparse writes "..." for the user's own command
            command.usage = f"{command.prog} --key KEY [OPTION ...] [--] COMMAND [ARGUMENT ...]"
        for option in options:
            group = command.add_mutually_exclusive_group() if isinstance(option, list) else command
            for names, how in option if isinstance(option, list) else [option]:
                group.add_argument(*names, **how)
        _add_stores(command, stores)
    _add_stores(top, stores)
    return top


def _add_stores(to: Parser, stores: bool) -> None:
    """``--url`` and ``--config``, accepted both before and after the command.

    Without a default: that of the command's own parser would replace what was given before the command.
    """
    if stores:
        to.add_argument("--url", default=argparse.SUPPRESS, metavar="URL", help=STORES["url"])
        to.add_argument("--config", default=argparse.SUPPRESS, metavar="MODULE:NAME", help=STORES["config"])


def _name(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:  # bytes of the command line that are no UTF-8
        raise argparse.ArgumentTypeError(f"{text!r} is not UTF-8 text, so no lock has such a name") from None
    return text


def _seconds(text: str, *, zero: bool = True) -> float:
    try:
        return check_seconds(text, "it", zero=zero, text=True)
    except ConfigurationError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


_positive = partial(_seconds, zero=False)


def _exit_code(text: str) -> int:
    value = int(text) if text.isdecimal() else -1
    if not 0 <= value <= 255:
        raise argparse.ArgumentTypeError(f"{text!r} is not an exit status from 0 to 255")
    return value


#: Names and keywords of ``add_argument``.
Argument: TypeAlias = tuple[tuple[str, ...], dict[str, Any]]


def _of(*names: str, **how: Any) -> Argument:
    return names, how


def _json(what: str) -> Argument:
    return _of("--json", action="store_true", help=f"{what}, for programs; times are seconds")


def _store(purpose: str) -> Argument:
    return _of("--store", metavar="ALIAS", help=purpose)


_LOCK = [
    _of("name", type=_name, metavar="NAME", help="the lock, as `list` shows it, or without the prefix of its store"),
    _store("the store, if several have a lock of this name"),
]

#: By command. A list in a list: one of them at most.
_COMMANDS: dict[str, list[Argument | list[Argument]]] = {
    "list": [
        _of("--search", default="", metavar="WORDS", help="only locks with all of these words; see above"),
        _json("an array"),
    ],
    "show": [*_LOCK, _json("an object")],
    "release": [
        *_LOCK,
        _of("--fence", type=int, metavar="N", help="only from the holder with this fence, as `list` shows it"),
        _of("--yes", "-y", action="store_true", help="do not ask; required without a terminal"),
    ],
    "doctor": [
        _store("only this store"),
        _json("an array"),
        _of("--fail-level", choices=SEVERITIES, default="error", help="the least severity that makes the status 1"),
    ],
    "run": [
        _of("--key", "-k", required=True, help="what to lock; runs with the same key exclude each other"),
        _of("--expire", type=_positive, metavar="TIME", help="how long the lock outlives a crash (store's EXPIRE)"),
        [
            _of("--wait", "-w", type=_seconds, metavar="TIME", help="the longest wait (for ever)"),
            _of("--no-wait", "-n", dest="wait", action="store_const", const=0.0, help="do not wait for a busy lock"),
        ],
        _of("--on-lost", choices=("kill", "warn"), default="kill", help="what to do when the lock is lost (kill)"),
        _of("--kill-after", type=_seconds, default=10.0, metavar="TIME", help="from SIGTERM to SIGKILL (10)"),
        _of("--busy-exit-code", "-E", type=_exit_code, default=BUSY, metavar="N", help=f"if it is busy ({BUSY})"),
        _store("the store of the lock (default)"),
        _of("--prefix", help="the beginning of the lock's name (store's PREFIX)"),
        _of("--once", type=_positive, metavar="TIME", help="after success, do not run it again for this time"),
        _of("argv", metavar="-- COMMAND", nargs=argparse.REMAINDER, help="the command and its arguments"),
    ],
    "once": [
        _of("action", choices=["list", "forget"], help="show what is done, or let KEY run again"),
        _of("name", nargs="?", type=_name, metavar="KEY", help="as given to `run`, or as `once list` shows it"),
        _of("--search", default="", metavar="WORDS", help="`once list`: only what has all of these words"),
        _store("only this store"),
        _json("an array, or an object"),
    ],
    "init": [_store("only this store")],
    "redlock": [
        _of("action", choices=["adopt"], help="make the list of nodes in the settings count"),
        _store("this store, else 'default'"),
    ],
}
