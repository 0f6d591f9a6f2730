"""``flask distlock``: the shared commands, for click."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import click
from flask.cli import AppGroup

from ..web import commands
from ..web.commands import OPTIONS

group = AppGroup("distlock", help=commands.GROUP_HELP)


def _help(paragraphs: Sequence[str]) -> str:
    """The description of a command. ``\\b`` tells click to keep a paragraph's lines."""
    return "\n\n".join(f"\b\n{paragraph}" for paragraph in paragraphs).format(program="flask distlock")


@group.command("list", help=_help(commands.LIST_DESCRIPTION), short_help=commands.LIST_SUMMARY)
@click.option("--search", default="", metavar="WORDS", help=OPTIONS["search"])
@click.option("--json", is_flag=True, help=OPTIONS["json"])
def list_locks(search: str, json: bool) -> None:
    with _exit_codes():
        commands.list_locks(click.echo, search=search, json=json)


@group.command("release", help=_help(commands.RELEASE_DESCRIPTION), short_help=commands.RELEASE_SUMMARY)
@click.argument("name")
@click.option("--store", metavar="ALIAS", help=OPTIONS["store"])
@click.option("--fence", type=int, metavar="N", help=OPTIONS["fence"])
@click.option("--yes", is_flag=True, help=OPTIONS["yes"])
def release(name: str, store: str | None, fence: int | None, yes: bool) -> None:
    with _exit_codes():
        commands.release_lock(click.echo, name, store=store, fence=fence, yes=yes)


@contextmanager
def _exit_codes() -> Iterator[None]:
    try:
        yield
    except commands.CommandFailed as failed:
        click.echo(f"Error: {failed}", err=True)
        click.get_current_context().exit(failed.exit_code)
