"""The pages of held locks, for every framework: what their templates show.

A framework says who asks, what they may do and where the pages are. The functions here give the values of a template of
``templates``. The framework renders it in its own engine (Django's and Jinja's have all that the templates use), and
puts that into a page of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from ..core.errors import ConfigurationError, DistLockError
from ..core.registry import Registry, registry
from ..core.runtime import THREADS, drive
from ..ops.held_locks import LockRow, inspect_store
from ..ops.lock_browser import READ_AT_MOST, Browsed, LockQuery, browse, keeps_records, waiters_of
from ..ops.readable import printable, span
from .lock_presenter import Links, LockPresenter, WaiterPresenter
from .texts import _

Context = dict[str, Any]

#: Waiters that the page of a lock lists.
SHOWN = 50


@dataclass(frozen=True, slots=True)
class Viewer:
    """Who looks at the pages, and where they are."""

    links: Links
    may_release: bool
    csrf: object = ""  #: hidden inputs of a form, which the engine must not escape


# The list -----------------------------------------------------------------------------------------------------------


def list_context(parameters: Mapping[str, str], viewer: Viewer) -> Context:
    """For ``list.html``, and for ``list_live.html``, the part that the page refreshes."""
    query = LockQuery.of(parameters)
    try:
        stores = registry()
    except ConfigurationError as error:  # DISTLOCK itself is wrong
        return {**_common(viewer), **_listed(Browsed(query, errors={"": error}), None, viewer)}
    return {**_common(viewer), **_listed(browse(stores, query), stores, viewer)}


def _listed(browsed: Browsed, stores: Registry | None, viewer: Viewer) -> Context:
    query = browsed.query
    back = query.address()
    return {
        "query": query,
        "back": back,
        "errors": [failure_text(alias, error) for alias, error in browsed.errors.items()],
        "notices": _notices(browsed),
        "totals": _totals(browsed),
        "tabs": _tabs(query, viewer) if stores and any(map(keeps_records, stores.stores.values())) else [],
        "locks": [
            LockPresenter(row, viewer.links, stores.store(row.alias).config.prefix if stores else "", back)
            for row in browsed.shown
        ],
        "several_stores": len(browsed.stores) > 1,
        "nothing": _nothing(query),
        "fragment_url": viewer.links.list + back,
    }


def _common(viewer: Viewer) -> Context:
    return {"links": viewer.links, "may_release": viewer.may_release, "csrf": viewer.csrf}


def failure_text(alias: str, error: DistLockError) -> str:
    """Why the locks of this store are not shown."""
    if isinstance(error, ConfigurationError):
        return str(error)
    return _("The locks of the store “%(store)s” cannot be reached at the moment: %(error)s", store=alias, error=error)


def _notices(browsed: Browsed) -> list[str]:
    """What the list does not show, or only of some."""
    said = []
    if browsed.partial:
        text = _(
            "%(held)s locks are held. Order and totals are of %(read)s of them: of each store the %(most)s that end "
            "first, and those whose name has all words that are searched for.",
            held=f"{browsed.totals.held:,}",
            read=f"{browsed.read:,}",
            most=f"{READ_AT_MOST:,}",
        )
        said.append(text)
    if len(browsed.rows) > len(browsed.shown):
        text = _(
            "The first %(shown)s of %(number)s are shown: a search narrows the list.",
            shown=f"{len(browsed.shown):,}",
            number=f"{len(browsed.rows):,}",
        )
        said.append(text)
    return said


def _totals(browsed: Browsed) -> list[dict[str, str]]:
    """The figures above the list."""
    totals = browsed.totals
    if browsed.query.done:
        figures = [(_("Done"), f"{len(browsed.rows):,}")]
    else:
        figures = [
            (_("Held"), f"{totals.held:,}"),
            (_("Waiting"), f"{totals.waiting:,}"),
            (_("Longest hold"), span(totals.longest_hold) if totals.longest_hold else "–"),
            (_("Longest wait"), span(totals.longest_wait) if totals.longest_wait else "–"),
        ]
    return [{"label": label, "text": browsed.known(text)} for label, text in figures]


def _tabs(query: LockQuery, viewer: Viewer) -> list[dict[str, str]]:
    """Held, and done; the one that is shown without an address."""
    pages = {_("Held"): LockQuery(query.q), _("Done"): LockQuery(query.q, done=True)}
    return [
        {"text": text, "url": "" if page.done is query.done else viewer.links.list + page.address()}
        for text, page in pages.items()
    ]


def _nothing(query: LockQuery) -> str:
    if query.done:
        if query.q:
            return _("Nothing that was done matches.")
        return _("Nothing that was done is remembered at the moment.")
    return _("No held lock matches.") if query.q else _("No lock is held at the moment.")


# One lock -----------------------------------------------------------------------------------------------------------


def lock_context(parameters: Mapping[str, str], viewer: Viewer) -> Context:
    """For ``lock.html``, and for ``lock_live.html``, the part that the page refreshes."""
    alias, name = parameters.get("store", ""), parameters.get("name", "")
    context: Context = {
        **_common(viewer), "name": printable(name), "errors": [],
        "lock": None, "holders": [],
        "fragment_url": f"{viewer.links.lock}?{urlencode({'store': alias, 'name': name})}",
    }  # fmt: skip
    try:
        stores = registry()
        rows = drive(inspect_store(stores.store(alias), THREADS, [name]))
        if rows:
            context.update(_detail(stores, rows, viewer))
    except DistLockError as error:
        context["errors"] = [failure_text(alias, error)]
    return context


def _detail(stores: Registry, rows: list[LockRow], viewer: Viewer) -> Context:
    """Of the lock that these hold, the oldest first."""
    row = rows[0]
    waiters = waiters_of(stores, row, SHOWN)
    queue = [WaiterPresenter(place, waiter) for place, waiter in enumerate(waiters or [], 1)]
    unseen = row.lock.waiters - len(queue)
    return {
        "lock": LockPresenter(row, viewer.links),
        "holders": [LockPresenter(each, viewer.links) for each in rows[:SHOWN]],
        "queue": queue,
        "unseen": _("and %(number)s more", number=f"{unseen:,}") if queue and unseen > 0 else "",
        "queue_unknown": waiters is None,
    }
