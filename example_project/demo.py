"""The whole demo on one machine, from nothing: ``python -m example_project.demo``.

Starts a Redis, a Django site and a Flask app, lets buyers rush at them without and with the lock, prints what came of
it, and goes on serving the shop page until Ctrl-C. Everything that was started is stopped again.

Environment: ``SERVE=0`` ends after the table, with exit code 0 only if the lock kept the shop from overselling and its
absence did not. ``DISTLOCK_URL`` names the store of the locks, in place of a Redis of our own: redis://,
redis+sentinel://, redis+cluster://, redlock://, mysql://, postgresql://, sqlite:// or zookeeper://.
"""

from __future__ import annotations

import argparse
import os
import re
import secrets
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

try:
    import django
    import flask  # noqa: F401 - here only to be missed early
    import gunicorn  # noqa: F401
    import redis  # noqa: F401
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.table import Table
except ModuleNotFoundError as missing:
    sys.exit(f"The demo needs {missing.name}. `make demo` installs it; by hand: pip install {missing.name}")

from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command

from distlock_web import DistLockError, lock
from distlock_web.testing.servers import RedisServer, ServerMissing

from .drill import BUYERS, DELIVERED, Outcome, rush
from .processes import Gunicorn, ServerFailed, Stopped, listen, stop_when_told, undisturbed

APPLICATIONS = {
    "Django": "example_project.shop_django.wsgi:application",
    "Flask": "example_project.shop_flask:create_app()",
}

#: A title, whether the view is locked, and how often each buyer clicks.
RUSHES = (("without the lock", False, 1), ("with the lock", True, 1), ("three clicks", True, 3))

console = Console(highlight=False)


def main() -> int:
    arguments = _arguments()
    stop_when_told()
    try:
        with ExitStack() as started:
            return run(started, arguments)
    except (ServerFailed, DistLockError, ImproperlyConfigured) as error:
        print(f"The demo has failed. {error}", file=sys.stderr)
        return 1
    except Stopped:
        return 130


def run(started: ExitStack, arguments: argparse.Namespace) -> int:
    folder = Path(started.enter_context(tempfile.TemporaryDirectory(prefix="distlock-demo-")))
    with undisturbed():
        locks_url = os.environ.get("DISTLOCK_URL") or own_redis(started)
    sockets = {"Django": listen(arguments.port), "Flask": listen(arguments.flask_port)}
    shops = {name: "http://{}:{}".format(*sock.getsockname()) for name, sock in sockets.items()}
    os.environ.update(
        DISTLOCK_URL=locks_url,
        SHOP_DATABASE=str(folder / "shop.sqlite3"),
        DJANGO_SETTINGS_MODULE="example_project.shop_django.settings",
    )
    prepare_database()
    log, servers = folder / "gunicorn.log", []
    for name, sock in sockets.items():
        with undisturbed():
            servers.append(Gunicorn(APPLICATIONS[name], sock, log, os.environ))
            started.callback(servers[-1].stop)
    for server in servers:
        server.wait_until_ready()
    addresses = {"Locks": re.sub("//.*@", "//", locks_url), **shops, "Log": str(log)}
    console.print(*(f"{name:6}  {address}\n" for name, address in addresses.items()), sep="", soft_wrap=True)

    outcomes = drill(shops)
    report(outcomes)
    without, *locked = outcomes.values()
    passed = all(each.exact for each in locked) and without.oversold > 0 and not without.failed
    if os.environ.get("SERVE", "1") != "0":
        serve(servers, shops["Django"])
    return 0 if passed else 1


def own_redis(started: ExitStack) -> str:
    """Start a Redis of our own; gives its URL."""
    try:
        return started.enter_context(RedisServer()).url
    except ServerMissing:
        raise ServerFailed(
            "There is no Redis: install redis-server, or name a store of yours: "
            "DISTLOCK_URL=redis://host:6379/0, sqlite:////tmp/locks.sqlite3, …"
        ) from None
    except RuntimeError as error:
        raise ServerFailed(str(error)) from error


def prepare_database() -> None:
    """The tables, a user for the admin, and a look whether the locks' store answers."""
    django.setup()
    call_command("migrate", verbosity=0)
    from django.contrib.auth.models import User

    User.objects.create_superuser("admin", password="admin")
    with lock(f"demo:{secrets.token_hex(4)}"):
        pass


def drill(shops: dict[str, str]) -> dict[str, Outcome]:
    """The same rush: without the lock, with it, and with buyers who click three times for one order."""
    from .environment import KEEPS_RECORDS
    from .shop_django.models import Stock

    console.print(f"{BUYERS} buyers want {DELIVERED} items, all at once, half of them in each shop.\n")
    outcomes = {}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console) as progress:
        for title, locked, clicks in RUSHES[: 3 if KEEPS_RECORDS else 2]:
            stock, answers = Stock.deliver(DELIVERED), []
            bar = progress.add_task(f"{title:16}", total=BUYERS)
            for answer in rush(shops, stock.item, locked=locked, clicks=clicks):
                answers.append(answer)
                progress.advance(bar)
            outcomes[title] = stock.outcome(answers)
    return outcomes


def report(outcomes: dict[str, Outcome]) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("")
    for heading in ("stock", "sold", "left", "oversold", "busy", "failed", "p50", "p99"):
        table.add_column(heading, justify="right")
    for title, outcome in outcomes.items():
        counts = (outcome.delivered, outcome.sold, outcome.remaining, outcome.oversold, outcome.busy, outcome.failed)
        times = (f"{outcome.percentile(percent) * 1000:.0f} ms" for percent in (50, 99))
        table.add_row(title, *map(str, counts), *times, style="red" if outcome.oversold else "green")
    console.print()
    console.print(table)
    console.print(
        "\nWith the lock the buyers queue: one pays at a time. Their times contain that wait.\n", soft_wrap=True
    )
    for title, outcome in outcomes.items():
        if outcome.repeated:
            console.print(f"{title}: {outcome.sold} orders. {outcome.repeated} clicks got an earlier click's answer.\n")


def serve(servers: list[Gunicorn], url: str) -> None:
    """Leave everything running until Ctrl-C."""
    try:
        console.print(
            f"Shop    {url}/\nAdmin   {url}/admin/  (admin / admin)\nCtrl-C stops everything.", soft_wrap=True
        )
        while True:
            for server in servers:
                server.check()
            time.sleep(0.2)
    except Stopped:
        return


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m example_project.demo", description="A flash sale, without and with the lock."
    )
    parser.add_argument("--port", type=int, default=0, help="of the Django shop (default: any free one)")
    parser.add_argument("--flask-port", type=int, default=0, help="of the Flask shop (default: any free one)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
