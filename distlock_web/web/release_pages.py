"""The release by force on the pages: what is asked before, and what became of it."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..core.errors import ConfigurationError, DistLockError
from ..core.registry import registry
from ..core.runtime import THREADS, drive
from ..ops.held_locks import LockRow, OtherFence, StoreUnreachable, force_release, inspect_store
from ..ops.lock_browser import LockQuery
from ..ops.readable import printable
from .lock_pages import Viewer, failure_text
from .lock_presenter import LockKey, LockPresenter
from .texts import _, plural

logger = logging.getLogger("distlock_web")

#: Names in one message.
NAMED = 5


@dataclass(slots=True)
class Release:
    """The locks that are meant, each as its holder has it now; and what became of them."""

    rows: list[LockRow] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)  #: names that are not held (any more) by the holder that was meant
    errors: list[str] = field(default_factory=list)
    released: list[LockRow] = field(default_factory=list)
    unrecorded: list[str] = field(default_factory=list)  #: names of those that ``audit`` has failed for

    def messages(self) -> list[tuple[str, str]]:
        """For people: ``success``, ``warning`` or ``error``, and the text."""
        said: list[tuple[str, str]] = []
        done = [printable(row.lock.name) for row in self.released if row.done]
        names = [printable(row.lock.name) for row in self.released if not row.done]
        if done:
            text = _("Forgotten: %(names)s. The next call with that key runs again.", names=_some(done))
            said.append(("success", text))
        if names:
            text = _("Released: %(names)s. The holder learns of it at its next round trip.", names=_some(names))
            said.append(("success", text))
        if self.gone:
            text = _("Not released, because that holder no longer has it: %(names)s.", names=_some(self.gone))
            said.append(("warning", text))
        if self.unrecorded:
            text = _(
                "Not recorded in the history: %(names)s. The application's log says who released it, and why it was "
                "not recorded.",
                names=_some(self.unrecorded),
            )
            said.append(("warning", text))
        return said + [("error", error) for error in self.errors]


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(f"“{name}”" for name in names[:NAMED])
    if len(names) <= NAMED:
        return shown
    return _("%(names)s and %(number)s more", names=shown, number=len(names) - NAMED)


def choose(locks: Iterable[str]) -> Release:
    """The locks that ``locks`` names, each as ``LockKey.dumps`` writes it."""
    meant, keys = Release(), defaultdict[str, list[LockKey]](list)
    for text in locks:
        try:
            key = LockKey.loads(text)
        except ValueError:
            meant.gone.append(printable(text)[:100])
        else:
            keys[key.alias].append(key)
    for alias, of_store in keys.items():
        try:
            rows = drive(inspect_store(registry().store(alias), THREADS, {key.name for key in of_store}))
        except DistLockError as error:
            text = failure_text(alias, error)
            wrong = isinstance(error, ConfigurationError)
            meant.errors.append(_("Nothing was released: %(reason)s", reason=text) if wrong else text)
            continue
        held = {(row.lock.name, row.lock.fence, row.done): row for row in rows}
        for key in of_store:
            row = held.get((key.name, key.fence, key.done))
            meant.gone += [printable(key.name)[:200]] if row is None else []
            meant.rows += [] if row is None else [row]
    if not keys and not meant.gone:
        meant.errors.append(_("Nothing was released: no lock was chosen."))
    return meant


def list_url(viewer: Viewer, parameters: Mapping[str, str]) -> str:
    """Back to the list as it was: ``back`` is its query."""
    return (viewer.links.list + _back(parameters)).removesuffix("?")


def _back(parameters: Mapping[str, str]) -> str:
    return LockQuery.of_address(parameters.get("back", "")).address()


def release_context(meant: Release, viewer: Viewer, parameters: Mapping[str, str]) -> dict[str, Any]:
    """For ``release.html``: the question before, with all that is known of those who would lose their locks."""
    done, number = all(row.done for row in meant.rows), len(meant.rows)
    return {
        "title": _("Forget it?") if done else _("Release by force?"),
        "answer": _("Yes, forget it") if done else plural("Yes, release it", "Yes, release %(number)s locks", number),
        "links": viewer.links,
        "back": _back(parameters),
        "list_url": list_url(viewer, parameters),
        "csrf": viewer.csrf,
        "locks": [LockPresenter(row, viewer.links) for row in meant.rows],
        "one": number == 1,
        "done": done,
        "messages": meant.messages(),
    }


#: Told of each lock, and that it was released by force, or perhaps.
Audit = Callable[[LockRow, str], object]


def release(meant: Release, by: str, audit: Audit) -> list[tuple[str, str]]:
    """Take each lock from exactly the holder that is shown; what to tell of it. Blocking.

    A store that does not answer, or refuses, is not asked for the others: each would wait for as long. What ``audit``
    raises is logged and said, and keeps no other lock from being released.
    """
    down = set[str]()
    for row in meant.rows:
        if row.alias in down:
            continue
        try:
            force_release(registry(), row, by)
        except OtherFence:
            meant.gone.append(printable(row.lock.name))
        except ConfigurationError as error:
            down.add(row.alias)
            meant.errors.append(failure_text(row.alias, error))
        except StoreUnreachable as error:
            down.add(row.alias)
            text = _(
                "It is not known whether the lock “%(name)s” was released. %(error)s",
                name=printable(row.lock.name),
                error=failure_text(row.alias, error.errors[row.alias]),
            )
            meant.errors.append(text)
            _record(meant, row, audit, f"Perhaps {row.freed}")
        else:
            meant.released.append(row)
            _record(meant, row, audit, row.freed.capitalize())
    return meant.messages()


def _record(meant: Release, row: LockRow, audit: Audit, what: str) -> None:
    name = printable(row.lock.name)
    try:
        audit(row, what)
    except Exception:
        fields = row.log_fields(reason="unrecorded")
        logger.exception("The release by force of the lock %s was not recorded", name, extra=fields)
        meant.unrecorded.append(name)
