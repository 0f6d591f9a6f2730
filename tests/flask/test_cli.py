"""``flask distlock list|release``: what it says, and how it ends."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import pytest
from click.testing import Result
from flask import Flask

from distlock_web import BackendUnavailable, Lease, LeaseLost, NotHeld, lock
from distlock_web.cli import held as command
from distlock_web.core import registry
from distlock_web.core.request_id import Origin, swap_origin
from distlock_web.flask import DistLock
from tests.support.origins import begin_request, end_request


@pytest.fixture
def held(app: Flask) -> Iterator[Lease]:
    """The lock order:42, held by a request that is still running."""
    begin_request("seven", "POST /pay/42")
    with app.app_context():
        lease = lock("order:42", expire=60).acquire()
    end_request()
    yield lease
    with suppress(LeaseLost, NotHeld):  # the test may have revoked or released it
        lease.release()


def run(app: Flask, *args: str, input: str | None = None) -> Result:  # noqa: A002 - click's own name
    result = app.test_cli_runner().invoke(args=["distlock", *args], input=input)
    assert "Traceback" not in result.output
    return result


# list ----------------------------------------------------------------------------------------------------------------


def test_nothing_is_held(app: Flask) -> None:
    result = run(app, "list")
    assert (result.exit_code, result.stdout) == (0, "No lock is held.\n")
    assert json.loads(run(app, "list", "--json").stdout) == []


def test_the_table_is_aligned(app: Flask, held: Lease) -> None:
    with app.app_context(), lock("a"):
        result = run(app, "list")
    assert result.exit_code == 0
    headings, *lines = result.stdout.splitlines()
    column = headings.index
    line = {line.split()[0]: line for line in lines}  # both were taken in one millisecond: in any order
    assert line["disLock:order:42"][column("REQUEST ID") :].startswith("seven ")
    assert line["disLock:order:42"][column("HELD BY") :].startswith("POST /pay/42 ")
    assert line["disLock:order:42"][column("FENCE") :].split() == [str(held.fence), "0"]
    assert line["disLock:a"][column("REQUEST ID") :].startswith("- ")


def test_search(app: Flask, held: Lease) -> None:
    with app.app_context(), lock("a"):
        assert len(run(app, "list", "--search", "order SEVEN").stdout.splitlines()) == 2
        assert run(app, "list", "--search", "order eight").stdout == "No lock that is held matches 'order eight'.\n"


def test_json(app: Flask, held: Lease) -> None:
    (row,) = json.loads(run(app, "list", "--json", "--search", "42").stdout)
    assert (row["name"], row["store"], row["request_id"]) == ("disLock:order:42", "default", "seven")
    assert (row["path"], row["fence"], row["waiters"]) == ("POST /pay/42", held.fence, 0)
    assert 0 < row["remaining"] <= 60


def test_what_a_client_sent_cannot_steer_the_terminal(app: Flask) -> None:
    begin_request("seven", "GET /\x1b[2J\u202e")
    with app.app_context(), lock("x\x1b[31m\r\n"):
        end_request()
        result = run(app, "list")
    assert not set(result.stdout) & {"\x1b", "\r", "\u202e"}
    assert len(result.stdout.splitlines()) == 2


# release -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody sits in front of it and can be asked."""
    monkeypatch.setattr(command, "interactive", lambda: True)


# show ----------------------------------------------------------------------------------------------------------------


def test_show_says_all_that_is_known_of_the_holder(app: Flask) -> None:
    swap_origin(Origin.new("seven", "POST /pay/42", user=lambda: "ann"))
    with app.app_context(), lock("order:42", expire=60) as lease:
        shown = dict(re.split(r":\s+", line, maxsplit=1) for line in run(app, "show", "order:42").stdout.splitlines())
        fields = json.loads(run(app, "show", "order:42", "--json").stdout)
    end_request()
    assert (shown["lock"], shown["fence"], shown["user"]) == ("disLock:order:42", str(lease.fence), "ann")
    assert shown["held by"].startswith("POST /pay/42 ")
    assert shown["program"].endswith(" MainThread")
    assert (fields["user"], fields["worker"], fields["queue"]) == ("ann", "MainThread", [])
    assert fields["command"] == shown["program"].removesuffix(" MainThread")


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize("name", ["disLock:order:42", "order:42"])
def test_release_asks_and_revokes_the_holders_lock(app: Flask, held: Lease, name: str) -> None:
    result = run(app, "release", name, input="y\n")
    assert result.exit_code == 0
    assert "POST /pay/42" in result.stdout  # so that one sees from whom
    assert result.stdout.endswith(f"Released disLock:order:42 (fence {held.fence}).\n")
    with app.app_context():
        assert lock("order:42").try_acquire()
    with pytest.raises(LeaseLost):
        held.release()


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize("answer", ["n\n", "\n", ""])
def test_without_a_yes_nothing_happens(app: Flask, held: Lease, answer: str) -> None:
    result = run(app, "release", "order:42", input=answer)
    assert result.exit_code == 1
    assert "Not confirmed: nothing was released." in result.stderr
    held.extend()  # still ours, or it raises


def test_without_a_terminal_a_release_needs_a_yes(app: Flask, held: Lease) -> None:
    result = run(app, "release", "order:42", "--fence", str(held.fence))
    assert result.exit_code == 64
    assert "Nothing was released: there is no terminal to ask at. --yes releases it." in result.stderr
    held.extend()


@pytest.mark.usefixtures("terminal")
def test_yes_does_not_ask(app: Flask, held: Lease) -> None:
    result = run(app, "release", "order:42", "--yes", "--fence", str(held.fence), "--store", "default")
    assert (result.exit_code, result.stdout) == (0, f"Released disLock:order:42 (fence {held.fence}).\n")


def test_a_lock_that_is_not_held(app: Flask) -> None:
    result = run(app, "release", "order:43", "--yes")
    assert result.exit_code == 1
    assert "Error: The lock 'order:43' is not held. `flask distlock list` shows what is." in result.stderr


def test_another_fence_is_another_holder(app: Flask, held: Lease) -> None:
    result = run(app, "release", "order:42", "--yes", "--fence", "7")
    assert result.exit_code == 1
    assert "nothing was released" in result.stderr
    held.extend()


@pytest.mark.usefixtures("terminal")
def test_a_holder_that_changes_while_we_ask_keeps_its_lock(
    app: Flask, held: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    successors: list[Lease | None] = []

    def ask(*args: object, **kwargs: object) -> bool:
        held.release()
        successors.append(lock("order:42", expire=60).try_acquire())
        return True

    monkeypatch.setattr(command, "confirmed", ask)
    result = run(app, "release", "order:42")
    assert result.exit_code == 1
    assert "changed meanwhile: nothing was released" in result.stderr
    (successor,) = successors
    assert successor is not None
    successor.release()  # raises if it was lost


def test_the_name_in_several_stores_needs_the_store(store_settings: Mapping[str, Any]) -> None:
    app = Flask("shop")
    app.config["DISTLOCK"] = {
        "default": {**store_settings, "PREFIX": "a:"},
        "other": {"BACKEND": "memory", "PREFIX": "b:"},
    }
    DistLock(app)
    with app.app_context(), lock("x"):
        lease = lock("x", store="other", expire=60).acquire()
        assert run(app, "list").stdout.splitlines()[0].startswith("STORE    LOCK")
        result = run(app, "release", "x", "--yes")
        assert result.exit_code == 64
        assert (
            "Several locks are meant: a:x in default, b:x in other. Give the whole name and the store. (--store ALIAS)"
            in result.stderr
        )
        assert run(app, "release", "x", "--yes", "--store", "other").exit_code == 0
        with pytest.raises(LeaseLost):
            lease.release()
    app.extensions["distlock"].registry.close()


def test_the_whole_name_means_one_lock(app: Flask, held: Lease) -> None:
    with app.app_context():
        nested = lock("disLock:order:42").acquire()
        assert run(app, "release", "disLock:order:42", "--yes").exit_code == 0
        nested.release()
    with pytest.raises(LeaseLost):
        held.release()


# Wrong usage, and a store that is unreachable ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["release"], "required: NAME"),
        (["release", "x", "--fence", "last"], "invalid int value: 'last'"),
        (["release", "x", "--store", "defualt"], "no store 'defualt', which does not exist. Did you mean 'default'?"),
        (["list", "--serach", "x"], "unrecognized arguments: --serach x"),
    ],
)
def test_wrong_usage(app: Flask, args: list[str], says: str) -> None:
    result = run(app, *args)
    assert result.exit_code == 64
    assert says in result.stderr


def test_no_store_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_configured", None)  # a Django of the same test process may have set it
    app = Flask("shop")
    DistLock(app)
    result = run(app, "list")
    assert result.exit_code == 64
    assert "set DISTLOCK" in result.stderr


@pytest.fixture
def half_away(unused_tcp_port: int) -> Iterator[Flask]:
    """An app with a store that nobody serves, and one that works."""
    app = Flask("shop")
    app.config["DISTLOCK"] = {
        "default": {"BACKEND": "memory"},
        "away": {"LOCATION": f"redis://127.0.0.1:{unused_tcp_port}/0"},
    }
    DistLock(app)
    yield app
    app.extensions["distlock"].registry.close()


def test_a_store_that_is_unreachable_does_not_hide_the_others(half_away: Flask) -> None:
    with half_away.app_context(), lock("x"):
        result = run(half_away, "list")
        assert result.exit_code == 69
        assert "disLock:x" in result.stdout
        assert "The store 'away' failed: " in result.stderr
        as_json = run(half_away, "list", "--json")
        assert as_json.exit_code == 69
        assert len(json.loads(as_json.stdout)) == 1
        # Whether 'away' has an x as well cannot be known: nothing is done on a guess.
        assert run(half_away, "release", "x", "--yes").exit_code == 69
        assert run(half_away, "release", "x", "--yes", "--store", "away").exit_code == 69
        lease = lock("y", expire=60).acquire()
        assert run(half_away, "release", "y", "--yes", "--store", "default").exit_code == 0
        assert lease.remaining


def test_a_store_that_fails_at_the_last_moment(app: Flask, held: Lease, monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(*args: object) -> bool:
        raise BackendUnavailable("gone")

    port = app.extensions["distlock"].registry.store("default").backend.sync_port()
    monkeypatch.setattr(type(port), "revoke", away)
    result = run(app, "release", "order:42", "--yes")
    assert result.exit_code == 69
    assert "the lock may be held still: gone" in result.stderr


@pytest.mark.parametrize("command", [["list"], ["release"]])
def test_help_teaches(app: Flask, command: list[str]) -> None:
    result = run(app, *command, "--help")
    assert result.exit_code == 0
    assert "  flask distlock " + command[0] in result.stdout
    assert "Exit status: 0" in result.stdout


def test_two_apps_have_their_own_commands(make_app: Callable[..., Flask]) -> None:
    one, two = make_app("one", PREFIX="one:"), make_app("two", PREFIX="two:")
    with one.app_context():
        lease = lock("x", expire=60).acquire()
    assert run(two, "release", "x", "--yes").exit_code == 1
    assert run(one, "release", "x", "--yes").exit_code == 0
    with pytest.raises(LeaseLost):
        lease.release()
