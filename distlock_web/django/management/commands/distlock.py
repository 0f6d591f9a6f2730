"""``manage.py distlock list`` and ``manage.py distlock release NAME``: the admin page for a shell."""

from __future__ import annotations

import logging
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from ....core.errors import DistLockError
from ....core.registry import registry
from ....web.held_locks import Listing, as_json, as_table, held, named, printable, revoke

logger = logging.getLogger("distlock_web")

#: Exit codes beside 0 (done) and 2 (usage).
NOT_HELD = 1
UNAVAILABLE = 3


class Command(BaseCommand):
    help = "Shows who holds which lock, and releases a lock by force."
    requires_system_checks = ()  # it is for the moment when something is wrong

    def add_arguments(self, parser: CommandParser) -> None:
        commands = parser.add_subparsers(dest="command", required=True)
        listing = commands.add_parser("list", help="Show the locks that are held. Exit code 3: a store did not answer.")
        listing.add_argument("--search", default="", help="words in the name, request id, path, function or host")
        listing.add_argument("--json", action="store_true", help="as JSON")
        release = commands.add_parser(
            "release",
            help="Take a lock from its holder. Exit code 1: it is not held; 3: a store did not answer.",
        )
        release.add_argument("name", help="the lock's name, with or without the prefix")
        release.add_argument("--store", help="the store's alias, if locks of this name are held in several")
        release.add_argument("--fence", type=int, help="release it only if this is still its fence")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            if options["command"] == "list":
                self._list(options["search"], options["json"])
            else:
                self._release(options["name"], options["store"], options["fence"])
        except DistLockError as error:
            raise CommandError(str(error), returncode=UNAVAILABLE) from error

    def _list(self, search: str, json: bool) -> None:
        listing = held(registry(), search)
        if json:
            self.stdout.write(as_json(listing.rows))
        elif listing.rows:
            for line in as_table(listing.rows):
                self.stdout.write(line)
        elif not listing.errors:
            self.stderr.write("No lock is held.")
        self._raise_trouble(listing)

    def _release(self, name: str, alias: str | None, fence: int | None) -> None:
        listing = named(registry(), name)
        rows = [
            row for row in listing.rows
            if alias in (None, row.alias) and fence in (None, row.lock.fence)
        ]  # fmt: skip
        if len(rows) > 1:
            found = ", ".join(f"{row.lock.name} in {row.alias}" for row in rows)
            raise CommandError(f"Several locks are meant ({found}): give the whole name and --store.", returncode=2)
        if not rows:
            self._raise_trouble(listing)
            raise CommandError(f"No lock {printable(name)!r} is held{_by(alias, fence)}.", returncode=NOT_HELD)
        (row,) = rows
        if not revoke(registry(), row.alias, row.lock.name, row.lock.fence):
            raise CommandError(f"The lock {row.lock.name!r} went on to another holder meanwhile.", returncode=NOT_HELD)
        logger.warning("Lock %s (fence %s) released by force from the shell", row.lock.name, row.lock.fence)
        self.stdout.write(f"Released {row.lock.name} (fence {row.lock.fence}).")

    def _raise_trouble(self, listing: Listing) -> None:
        if listing.errors:
            text = "\n".join(f"{alias}: {error}" for alias, error in listing.errors.items())
            raise CommandError(text, returncode=UNAVAILABLE)


def _by(alias: str | None, fence: int | None) -> str:
    store = "" if alias is None else f" in the store {alias!r}"
    return store + ("" if fence is None else f" under the fence {fence}")
