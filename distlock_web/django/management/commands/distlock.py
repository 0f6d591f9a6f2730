"""``manage.py distlock``: the command line that all share, with the stores of the settings."""

from __future__ import annotations

import sys
from argparse import REMAINDER, RawDescriptionHelpFormatter
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from ....cli.exit_codes import EPILOG, CommandFailed
from ....cli.help_texts import GROUP, SUMMARIES
from ....cli.main import execute
from ...checks import findings

PROGRAM = "python manage.py distlock"


class Command(BaseCommand):
    help = GROUP
    requires_system_checks = ()  # it is for the moment when something is wrong

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        commands = "\n".join(f"  {name:9}{summary}" for name, summary in SUMMARIES.items())
        epilog = f"commands ({PROGRAM} COMMAND --help explains each):\n{commands}\n\n{EPILOG}"
        return super().create_parser(
            prog_name, subcommand, epilog=epilog, formatter_class=RawDescriptionHelpFormatter, **kwargs
        )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("args", metavar="COMMAND ...", nargs=REMAINDER, help="one of those below, and its options")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            code = execute(args, PROGRAM, stream=self.stdout, findings=findings)
        except CommandFailed as failed:
            raise CommandError(str(failed), returncode=failed.exit_code) from failed
        if code:
            sys.exit(code)
