"""What people see in answers and on pages, in their language: ``_`` and ``plural``, of catalogues in gettext's format.

English is the source. What no catalogue has stays English, as do logs, the command line and what developers read. Every
text has one context, so that a project's own "Store" or "Done" is another text.
"""

from __future__ import annotations

from collections.abc import Callable
from gettext import NullTranslations
from typing import Protocol

from ..core import integrations

CONTEXT = "distlock_web"


class Catalogue(Protocol):
    """A language, as ``gettext`` and Django have it."""

    def pgettext(self, context: str, message: str, /) -> str: ...
    def npgettext(self, context: str, singular: str, plural: str, number: int, /) -> str: ...


ENGLISH = NullTranslations()


def add_catalogue(find: Callable[[], Catalogue | None], *, last: bool = False) -> None:
    """``find`` gives the catalogue of the client's language; None: its framework does not run this code.

    ``last``: it answers for any running code, so it is asked after the others.
    """
    catalogues = integrations.installed.catalogues
    catalogues.insert(len(catalogues) if last else 0, find)


def _catalogue() -> Catalogue:
    return next((found for find in integrations.installed.catalogues if (found := find()) is not None), ENGLISH)


def _(message: str, /, **values: object) -> str:
    """The text, in which ``%(name)s`` is the value of that name."""
    text = _catalogue().pgettext(CONTEXT, message)
    return text % values if values else text


def plural(one: str, many: str, number: int, /, **values: object) -> str:
    """The text for this ``%(number)s``: English has two, other languages one, or four."""
    return _catalogue().npgettext(CONTEXT, one, many, number) % {"number": number, **values}


def language() -> str:
    """For ``<html lang>``: the language that the texts are in. A catalogue says its own."""
    return _("en")
