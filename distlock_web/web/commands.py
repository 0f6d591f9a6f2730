"""``distlock list`` and ``distlock release``: one behaviour and one help for ``manage.py`` and for ``flask``.

A framework parses the arguments, calls :func:`list_locks` or :func:`release_lock`, and makes its own kind of error of
``CommandFailed``.
"""

from __future__ import annotations

import getpass
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..core.errors import ConfigurationError, DistLockError
from ..core.registry import registry
from .held_locks import AmbiguousName, LockNotHeld, StoreUnreachable, find_lock, force_release, list_all, not_listed
from .printable import printable
from .terminal import as_json, as_table

#: Exit codes beside 0, which is: done.
NOT_RELEASED = 1
USAGE = 2
UNREACHABLE = 3

GROUP_HELP = "Show which locks are held, and release one by force."
LIST_SUMMARY = "Show the locks that are held now."
RELEASE_SUMMARY = "Take a lock from its holder, and give it to the next in the queue."

#: By option or argument. ``{program}`` in the descriptions below is what one types in front of the command.
OPTIONS = {
    "search": "Only locks with all of these words; see above.",
    "json": "A JSON array, for programs; times are seconds.",
    "name": "The lock, as `list` shows it, or without the prefix of its store.",
    "store": "The store, where several hold a lock of this name.",
    "fence": "Only from the holder with this fence, as `list` shows it.",
    "yes": "Do not ask, even at a terminal.",
}

#: Paragraphs that keep their lines.
LIST_DESCRIPTION = (
    """\
Show the locks that are held now, the oldest first, in all stores.""",
    """\
WORDS are looked for in a lock's name, its request id, the path and function
that hold it, and the host; with the `request` that --json shows they find all
locks of one request. LEFT is the time until the lock ends unless its
holder renews it; WAITERS is how many wait for it.""",
    """\
  {program} list
  {program} list --search "order worker-2"
  {program} list --json | jq '.[].name'""",
    """\
Exit status: 0, also if nothing is held; 2 wrong usage or settings; 3 a store
does not answer (the others are shown).""",
)
RELEASE_DESCRIPTION = (
    """\
Take the lock NAME from its holder, and give it to the next in the queue.""",
    """\
NAME is as `list` shows it, or without the store's prefix. The holder is not
stopped: it learns that it lost the lock at its next renewal or release, and
may go on writing until then. So look first whether it is alive (HOST:PID); a
lock whose holder is dead ends by itself, after the time LEFT.""",
    """\
At a terminal it shows the holder and asks, unless --yes is given.""",
    """\
  {program} release order:42
  {program} release order:42 --fence 1763622000000001 --yes""",
    """\
Exit status: 0 released; 1 not held, or held by somebody else meanwhile, or
not confirmed; 2 wrong usage or settings, or several locks are meant; 3 a
store does not answer.""",
)


class CommandFailed(Exception):
    """What goes to standard error, and the exit code."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def list_locks(write: Callable[[str], object], *, search: str, json: bool) -> None:
    """``distlock list``: ``write`` gets the text. Raises ``CommandFailed``."""
    with _failures():
        listing = list_all(registry(), search)
        if json:
            write(as_json(listing.rows))
        elif listing.rows:
            write(as_table(listing.rows))
        elif not listing.errors:
            write(f"No lock that is held matches {search!r}." if search else "No lock is held.")
        if listing.errors:
            raise not_listed(listing.errors)


def release_lock(write: Callable[[str], object], name: str, *, store: str | None, fence: int | None, yes: bool) -> None:
    """``distlock release NAME``: ``write`` gets the text. Raises ``CommandFailed``."""
    with _failures():
        stores = registry()
        row = find_lock(stores, name, store, fence)
        if not yes and interactive():
            write(as_table([row]))
            if not confirmed("Take the lock from this holder?"):
                raise CommandFailed("Not confirmed: nothing was released.", NOT_RELEASED)
        force_release(stores, row, _user())
        write(f"Released {printable(row.lock.name)} (fence {row.lock.fence}).")


def interactive() -> bool:
    """Whether somebody can be asked. A cron job or a pipe cannot, and must not wait for an answer."""
    return sys.stdin is not None and sys.stdin.isatty()


def confirmed(question: str) -> bool:
    """Ask; everything but a yes is a no."""
    try:
        return input(f"{question} [y/N]: ").strip().casefold() in ("y", "yes")
    except (EOFError, KeyboardInterrupt):
        return False


@contextmanager
def _failures() -> Iterator[None]:
    """Turn what went wrong into a message and an exit code."""
    try:
        yield
    except StoreUnreachable as error:
        raise CommandFailed(str(error), UNREACHABLE) from error
    except ConfigurationError as error:
        raise CommandFailed(str(error), USAGE) from error
    except AmbiguousName as error:
        raise CommandFailed(f"{error} (--store ALIAS)", USAGE) from error
    except LockNotHeld as error:
        raise CommandFailed(f"{error} `distlock list` shows what is.", NOT_RELEASED) from error
    except DistLockError as error:
        raise CommandFailed(str(error), NOT_RELEASED) from error


def _user() -> str:
    """Who released a lock, for the log."""
    try:
        name = getpass.getuser()
    except (ImportError, KeyError, OSError):  # a container's user that has no name
        name = f"uid {os.getuid()}" if hasattr(os, "getuid") else "somebody"
    return f"{name} (command line)"
