"""What the import of a framework's or a library's integration installs in this package: all of it, in one object.

``locks/hooks.install`` fills it, and ``add_catalogue`` of ``web/texts.py`` with languages. Every question looks at
``integrations.installed`` anew, so a test can put an empty one in its place.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any, TypeAlias

#: What an object stands for: the name of its table or model, and its primary key; None in it: it is not saved.
Row: TypeAlias = tuple[str, tuple[object, ...]]


class Installed:
    """What is asked for what only a framework or a library can know. Empty, where none is imported."""

    def __init__(self) -> None:
        #: By each question of ``locks/hooks.Integration``, those that answer it, in the order of their installation.
        self.answering: dict[str, list[Any]] = {}
        # What lower layers ask themselves, some of it for every lock: functions, made of the same integrations.
        #: Each gives the ``Registry`` that the running code means, or None. At most one does: code runs in one app.
        self.registries: list[Callable[[], Any]] = []
        #: Each says in words why it has no stores for the running code although there are some; "": it has none at all.
        self.why_no_registry: list[Callable[[], str]] = []
        #: Each says in words in which transaction of its kind the running code is, or None.
        self.open_transactions: list[Callable[[], str | None]] = []
        #: Each says of an object which row it stands for, or None.
        self.rows: list[Callable[[object], Row | None]] = []
        #: Each gives the catalogue (``web/texts.py``) of the client's language, or None: it does not run this code.
        self.catalogues: list[Callable[[], Any]] = []


installed = Installed()


def load_for(libraries: Mapping[str, str]) -> None:
    """Load our module for each of these libraries that is imported already, in a process that installs nothing of ours.

    One that is not made for this release of it, or for a module of the project's own with that name, stays out.
    """
    for library, ours in libraries.items():
        if library in sys.modules:
            with suppress(ImportError):
                import_module(ours)
