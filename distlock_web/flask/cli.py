"""``flask distlock``: what is held, and the release by force. The work is core's; here are words and exit codes."""

from __future__ import annotations

import click
from flask.cli import AppGroup

from ..core.errors import ConfigurationError, DistLockError
from ..core.registry import Registry, registry
from ..web import held_locks
from ..web.held_locks import LockRow

group = AppGroup("distlock", help="Look at the distributed locks of this app, and release one by force.")


class Unreachable(click.ClickException):
    """A store that did not answer: what it holds is not known."""

    exit_code = 3


@group.command("list")
@click.option("--search", default="", metavar="WORDS", help="Only locks with all of these words; see above.")
@click.option("--json", "as_json", is_flag=True, help="A JSON array, for programs; times are seconds.")
def list_locks(search: str, as_json: bool) -> None:
    """Show the locks that are held now, the oldest first, in all stores of the app.

    WORDS are looked for in a lock's name, its request id, the path and function that hold it, and the host.
    LEFT is the time until the lock ends unless its holder renews it; WAITERS is how many wait for it.

    \b
    flask distlock list
    flask distlock list --search "order worker-2"
    flask distlock list --json | jq '.[].name'

    Exit status: 0, also if nothing is held; 2 wrong usage; 3 a store does not answer (the others are shown).
    """
    rows, errors = held_locks.held(_registry(), search)
    if as_json:
        click.echo(held_locks.as_json(rows))
    elif rows:
        click.echo("\n".join(held_locks.as_table(rows)))
    elif not errors:
        click.echo(f"No lock that is held matches {search!r}." if search else "No lock is held.")
    _raise_trouble(errors)


@group.command("release")
@click.argument("name")
@click.option("--fence", type=int, metavar="N", help="Only from the holder with this fence, as `list` shows it.")
@click.option("--store", metavar="ALIAS", help="The store, where several hold a lock of this name.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def release(name: str, fence: int | None, store: str | None, yes: bool) -> None:
    """Take the lock NAME from its holder, and give it to the next in the queue.

    NAME is as `list` shows it, or without the store's prefix. The holder is not stopped: it learns that it lost the
    lock at its next renewal or release, and may go on writing until then. So look first whether it is alive
    (HOST:PID); a lock whose holder is dead ends by itself, after the time LEFT.

    \b
    flask distlock release order:42
    flask distlock release order:42 --fence 1763622000000001 --yes

    Exit status: 0 released; 1 not held, or held by somebody else meanwhile, or not confirmed; 2 wrong usage;
    3 the store does not answer.
    """
    registry = _registry()
    row = _only(registry, name, store)
    if row is None:
        raise click.ClickException(f"The lock {name!r} is not held. `flask distlock list` shows what is.")
    if fence is not None and fence != row.lock.fence:
        raise click.ClickException(
            f"The lock {name!r} is not held with the fence {fence}, but with {row.lock.fence}: nothing was released."
        )
    if row.lock.fence is None:
        raise click.ClickException(f"The store {row.alias!r} gives no fences, so no holder can be told from the next.")
    if not yes:
        click.echo("\n".join(held_locks.as_table([row])))
        click.confirm("Take the lock from this holder?", abort=True)
    try:
        done = held_locks.revoke(registry, row.alias, row.lock.name, row.lock.fence)
    except DistLockError as error:
        raise Unreachable(f"The store {row.alias!r} failed; the lock may be held still. {error}") from error
    if not done:
        raise click.ClickException(f"The holder of {name!r} changed meanwhile: nothing was released.")
    click.echo(f"Released {held_locks.printable(row.lock.name)}.")


def _registry() -> Registry:
    try:
        return registry()
    except ConfigurationError as error:
        raise click.UsageError(str(error)) from error


def _only(registry: Registry, name: str, alias: str | None) -> LockRow | None:
    """The one held lock that is meant; None if there is none."""
    if alias is not None and alias not in registry.stores:
        raise click.BadParameter(f"no store {alias!r}; there is {', '.join(registry.stores)}.", param_hint="--store")
    rows, errors = held_locks.named(registry, name)
    if alias is not None:
        rows = [row for row in rows if row.alias == alias]
        errors = {other: trouble for other, trouble in errors.items() if other == alias}
    _raise_trouble(errors)
    rows = [row for row in rows if row.lock.name == name] or rows  # the whole name wins over one without its prefix
    if len(rows) > 1:
        found = ", ".join(f"{row.lock.name} in {row.alias}" for row in rows)
        raise click.UsageError(f"Several locks are meant: {found}. Say which with --store ALIAS.")
    return rows[0] if rows else None


def _raise_trouble(errors: dict[str, DistLockError]) -> None:
    if errors:
        raise Unreachable("\n".join(f"The store {alias!r} failed: {error}" for alias, error in errors.items()))
