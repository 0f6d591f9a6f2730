"""``manage.py distlock``: the shared commands, for Django."""

from __future__ import annotations

from argparse import RawDescriptionHelpFormatter
from collections.abc import Sequence
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from ....web import commands
from ....web.commands import OPTIONS


class Command(BaseCommand):
    help = commands.GROUP_HELP
    requires_system_checks = ()  # it is for the moment when something is wrong

    def add_arguments(self, parser: CommandParser) -> None:
        subparsers = parser.add_subparsers(dest="command", required=True)
        listing = subparsers.add_parser("list", **_help(commands.LIST_SUMMARY, commands.LIST_DESCRIPTION))
        listing.add_argument("--search", default="", metavar="WORDS", help=OPTIONS["search"])
        listing.add_argument("--json", action="store_true", help=OPTIONS["json"])
        release = subparsers.add_parser("release", **_help(commands.RELEASE_SUMMARY, commands.RELEASE_DESCRIPTION))
        release.add_argument("name", metavar="NAME", help=OPTIONS["name"])
        release.add_argument("--store", metavar="ALIAS", help=OPTIONS["store"])
        release.add_argument("--fence", type=int, metavar="N", help=OPTIONS["fence"])
        release.add_argument("--yes", action="store_true", help=OPTIONS["yes"])

    def handle(self, *args: Any, command: str, **options: Any) -> None:
        try:
            if command == "list":
                commands.list_locks(self.stdout.write, search=options["search"], json=options["json"])
            else:
                chosen = {name: options[name] for name in ("store", "fence", "yes")}
                commands.release_lock(self.stdout.write, options["name"], **chosen)
        except commands.CommandFailed as failed:
            raise CommandError(str(failed), returncode=failed.exit_code) from failed


def _help(summary: str, paragraphs: Sequence[str]) -> dict[str, Any]:
    description = "\n\n".join(paragraphs).format(program="python manage.py distlock")
    return {"help": summary, "description": description, "formatter_class": RawDescriptionHelpFormatter}
