"""Where all four command lines begin: arguments → a command → an exit code."""

from __future__ import annotations

import logging
import os
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from typing import NoReturn

from .. import __version__
from ..core.errors import ConfigurationError, DistLockError
from ..core.findings import Finding
from ..core.registry import configure, configure_url
from ..ops.held_locks import AmbiguousName, LockNotHeld, StoreUnreachable
from ..ops.readable import printable
from . import doctor, done, held, init, run
from .exit_codes import DONE, NO, SIGNALLED, UNAVAILABLE, UNWRITTEN, USAGE, CommandFailed
from .output import Output, TextStream, Unwritten, is_stdout, open_closed_streams, say, unread
from .parser import Context, parser

_COMMANDS: dict[str, Callable[[Namespace, Context], int]] = {
    "list": held.list_locks,
    "show": held.show_lock,
    "release": held.release_lock,
    "doctor": doctor.doctor,
    "run": run.run,
    "once": done.once,
    "init": init.init,
    "redlock": init.redlock,
}


def console(program: str = "distlock") -> NoReturn:
    """The console script: the stores are those of ``--url``, ``--config`` or ``DISTLOCK_URL``."""
    logging.basicConfig(format="distlock: %(message)s")  # what the locks warn of; a framework has its own
    try:
        code = execute(sys.argv[1:], program, stores=True)
    except CommandFailed as failed:
        say(sys.stderr, f"distlock: {failed}\n")
        code = failed.exit_code
    except KeyboardInterrupt:
        code = SIGNALLED + 2
    say(sys.stderr, "")  # what was logged and could not be written would end us with another status
    sys.exit(code)


def execute(
    argv: Sequence[str],
    program: str,
    *,
    stores: bool = False,
    stream: TextStream | None = None,
    findings: Callable[[], Iterable[Finding]] = tuple,
) -> int:
    """Run one command, and return its exit code. Raises ``CommandFailed``; ``SystemExit(0)`` after ``--help``.

    ``stores``: whether options may say where the locks are. ``findings``: what the project's framework adds to the
    doctor's.
    """
    open_closed_streams()
    out = Output(stream or sys.stdout)
    try:
        try:
            code = _executed(argv, program, stores, Context(out, Output(sys.stderr), findings))
        except SystemExit:  # --help, whose text is not out yet
            Output(sys.stdout).flush()
            raise
        except CommandFailed:  # which says more than that its first lines were lost
            say(sys.stdout, "")
            raise
        out.flush()
        return code
    except Unwritten as error:
        if is_stdout(error.stream):
            unread(error.stream)
        if isinstance(error.__cause__, BrokenPipeError):  # `distlock list | head`
            return SIGNALLED + 13
        raise CommandFailed(
            f"Output was lost: {error.__cause__}. The command itself may be done.", UNWRITTEN
        ) from error


def _executed(argv: Sequence[str], program: str, stores: bool, context: Context) -> int:
    if stores and list(argv) == ["--version"]:  # a framework has its own
        context.out.line(f"distlock {__version__}")
        return DONE
    try:
        options = _parsed(argv, program, stores)
        _configure(options)
        return _COMMANDS[options.command](options, context)
    except StoreUnreachable as error:
        raise CommandFailed(str(error), UNAVAILABLE) from error
    except ConfigurationError as error:
        raise CommandFailed(str(error), USAGE) from error
    except AmbiguousName as error:
        raise CommandFailed(f"{error} (--store ALIAS)", USAGE) from error
    except LockNotHeld as error:
        raise CommandFailed(f"{error} `{program} list` shows what is.", NO) from error
    except DistLockError as error:
        raise CommandFailed(str(error), NO) from error


def _parsed(argv: Sequence[str], program: str, stores: bool) -> Namespace:
    """Parse all that stands in front of the first ``--``; behind it is ``run``'s command, left as it is.

    argparse does not see that: it removes a ``--`` also where the command needs it, each version in another way.
    """
    own, command = list(argv), []
    if "--" in own:
        own, command = own[: own.index("--")], own[own.index("--") :]
    options = parser(program, stores=stores).parse_args(own)
    if options.command == "run":
        # `run -k x echo -- a`: the command begins at the first word that is no option, and the `--` is the command's.
        options.argv += command if options.argv else command[1:]
    elif command:
        raise CommandFailed(f"{options.command}: only `run` takes `--` and a command.", USAGE)
    return options


def _configure(options: Namespace) -> None:
    url, config = getattr(options, "url", None), getattr(options, "config", None)
    if url and config:
        raise CommandFailed("Give either --url or --config, not both.", USAGE)
    if url:
        configure_url(url, "--url")
    elif config:
        configure(_mapping(config))


def _mapping(named: str) -> Mapping[str, object]:
    """The ``DISTLOCK`` mapping of ``module:name``, found from the working directory as ``python -m`` does."""
    module, _, name = named.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = getattr(import_module(module), name or "DISTLOCK")
    except (Exception, SystemExit) as error:  # it is a project's own code: it may raise anything
        problem = printable(" ".join(f"{type(error).__name__}: {error}".split()))
        raise CommandFailed(f"--config {named}: {problem}", USAGE) from error
    if not isinstance(found, Mapping):
        raise CommandFailed(f"--config {named} is not a mapping of stores, but of type {type(found).__name__}.", USAGE)
    return found
