"""``flask distlock``: the command line that all share, with the stores of the app."""

from __future__ import annotations

from collections.abc import Sequence

import click
from flask.cli import with_appcontext

from ..cli.exit_codes import CommandFailed
from ..cli.help_texts import GROUP
from ..cli.main import execute


class _PassedOn(click.Command):
    """A command whose arguments click does not touch: all four command lines read them alike."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.params["argv"] = tuple(args)
        return []


@click.command("distlock", cls=_PassedOn, short_help=GROUP, add_help_option=False)
@with_appcontext
def command(argv: Sequence[str]) -> None:
    context = click.get_current_context()
    try:
        code = execute(argv, "flask distlock")
    except CommandFailed as failed:
        click.echo(f"Error: {failed}", err=True)
        code = failed.exit_code
    context.exit(code)
