"""``distlock``, ``manage.py distlock`` and ``flask distlock`` do the same, with the same help and exit codes."""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from django.core.management import ManagementUtility
from flask import Flask

import distlock_web
from distlock_web import ConfigurationError, Lease, LeaseLost, configure, lock
from distlock_web.cli import held, help_texts, main
from distlock_web.core.registry import registry
from distlock_web.core.request_id import Origin, swap_origin
from distlock_web.flask import DistLock

Elsewhere = Callable[..., Lease]


class Outcome(NamedTuple):
    code: int
    out: str
    errors: str


def manage(*args: str) -> Outcome:
    """``python manage.py distlock …``, as from a shell."""
    out, errors = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(errors):
        try:
            ManagementUtility(["manage.py", "distlock", *args]).execute()
        except SystemExit as ended:
            return Outcome(int(ended.code or 0), out.getvalue(), errors.getvalue())
    return Outcome(0, out.getvalue(), errors.getvalue())


def flask(*args: str) -> Outcome:
    """``flask distlock …``, of an app that uses the process's stores."""
    app = Flask("shop")
    DistLock(app)
    result = app.test_cli_runner().invoke(args=["distlock", *args])
    return Outcome(result.exit_code, result.stdout, result.stderr)


def console(*args: str) -> Outcome:
    """``distlock …``, as from a shell."""
    out, errors = StringIO(), StringIO()
    with pytest.MonkeyPatch.context() as patched, redirect_stdout(out), redirect_stderr(errors):
        patched.setattr("sys.argv", ["distlock", *args])
        with pytest.raises(SystemExit) as ended:
            main.console()
    return Outcome(int(ended.value.code or 0), out.getvalue(), errors.getvalue())


@pytest.fixture(params=[console, manage, flask])
def run(request: pytest.FixtureRequest, settings: Any) -> Callable[..., Outcome]:
    settings.DISTLOCK = {"default": {"BACKEND": "memory"}, "other": {"BACKEND": "memory"}}
    return request.param


def test_done(run: Callable[..., Outcome], elsewhere: Elsewhere, caplog: pytest.LogCaptureFixture) -> None:
    assert run("list") == (0, "No lock is held.\n", "")
    lease = elsewhere("order:7")
    assert lease.name in run("list", "--search", "order").out
    assert run("list", "--search", "stock").out == "No lock that is held matches 'stock'.\n"
    with caplog.at_level(logging.WARNING, "distlock_web"):
        released = run("release", "order:7", "--store", "default", "--fence", str(lease.fence), "--yes")
    assert released == (0, f"Released disLock:order:7 (fence {lease.fence}).\n", "")
    assert "disLock:order:7 released by force by " in caplog.text
    with pytest.raises(LeaseLost):
        lease.release()


def test_who_holds_it(run: Callable[..., Outcome]) -> None:
    swap_origin(Origin.new("seven", "POST /pay/7", user=lambda: "ann"))
    with lock("order:7", expire=60) as lease, lock("größe\x1b[2J\u202e\r\n") as other:
        swap_origin(None)
        headings, *lines = run("list").out.splitlines()
        (row,) = json.loads(run("list", "--json", "--search", "order").out)
        shown = dict(re.split(r":\s+", line, maxsplit=1) for line in run("show", "order:7").out.splitlines())
        fields = json.loads(run("show", "order:7", "--json").out)
    line = next(line for line in lines if lease.name in line)
    for heading, cell in (
        ("STATE", "held "),
        ("HELD BY", "POST /pay/7 "),
        ("FENCE", f"{lease.fence} "),
        ("REQUEST ID", "seven"),
    ):
        assert line[headings.index(heading) :].startswith(cell)
    assert len(lines) == 2  # what clients send steers no terminal
    assert not set("".join(lines)) & set("\x1b\r\u202e")
    assert (row["store"], row["name"], row["fence"], row["state"]) == ("default", lease.name, lease.fence, "held")
    assert (row["path"], row["request_id"], row["waiters"]) == ("POST /pay/7", "seven", 0)
    assert 0 < row["remaining"] <= 60
    assert (shown["lock"], shown["fence"], shown["user"]) == (lease.name, str(lease.fence), "ann")
    assert shown["program"] == f"{fields['command']} {fields['worker']}"
    assert (fields["user"], fields["worker"], fields["queue"]) == ("ann", "MainThread", [])
    assert other.state == "released"


@pytest.mark.parametrize("answer", ["y", "n", "", None])
def test_at_a_terminal_release_asks(
    run: Callable[..., Outcome], elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch, answer: str | None
) -> None:
    """None is the end of the input."""

    def read(question: str) -> str:
        if answer is None:
            raise EOFError
        return answer

    lease = elsewhere("order:7")
    monkeypatch.setattr(held, "interactive", lambda: True)
    monkeypatch.setattr("builtins.input", read)
    code, out, errors = run("release", "order:7")
    assert lease.name in out  # so that one sees from whom
    if answer == "y":
        assert (code, errors) == (0, "")
        with pytest.raises(LeaseLost):
            lease.extend()
    else:
        assert code == 1
        assert "Not confirmed: nothing was released." in errors
        lease.extend()


def test_without_a_terminal_a_release_needs_a_yes(run: Callable[..., Outcome], elsewhere: Elsewhere) -> None:
    lease = elsewhere("order:7")
    code, _, errors = run("release", "order:7", "--fence", str(lease.fence))
    assert code == 64
    assert "Nothing was released: there is no terminal to ask at. Use --yes." in errors
    lease.extend()


def test_a_holder_that_changes_while_we_ask_keeps_its_lock(
    run: Callable[..., Outcome], elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = elsewhere("order:7")
    successors: list[Lease] = []

    def confirmed(question: str) -> bool:
        lease.release()
        successors.append(elsewhere("order:7"))
        return True

    monkeypatch.setattr(held, "interactive", lambda: True)
    monkeypatch.setattr(held, "confirmed", confirmed)
    code, _, errors = run("release", "order:7")
    assert code == 1
    assert "changed meanwhile: nothing was released" in errors
    successors[0].extend()


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["release", "order:7"], "Several locks are meant: disLock:order:7 in default, disLock:order:7 in other."),
        (["release", "order:7", "--store", "defualt"], "Did you mean 'default'?"),
        (["release", "order:7", "--fence", "last"], "'last'"),
        (["release"], "NAME"),
        (["show", "\udcff"], "is not UTF-8 text"),  # bytes that are no UTF-8
        (["list", "--serach", "x"], "--serach"),
    ],
)
def test_usage(run: Callable[..., Outcome], elsewhere: Elsewhere, args: list[str], says: str) -> None:
    elsewhere("order:7")
    other = elsewhere("order:7", store="other")
    assert run("list").out.splitlines()[0].startswith("STORE    LOCK")
    code, _, errors = run(*args)
    assert code == 64
    assert says in errors
    other.extend()


def test_a_store_does_not_answer(run: Callable[..., Outcome], settings: Any, elsewhere: Elsewhere) -> None:
    settings.DISTLOCK = {"default": {"BACKEND": "memory"}, "down": {"LOCATION": "redis://127.0.0.1:1"}}
    lease = elsewhere("order:7")
    code, out, errors = run("list")
    assert code == 69
    assert lease.name in out
    assert "The store 'down' failed: " in errors
    code, out, _ = run("list", "--json")
    assert (code, len(json.loads(out))) == (69, 1)
    assert run("release", "order:7").code == 69  # the one in the other store may be meant
    lease.extend()


@pytest.mark.parametrize("command", help_texts.DESCRIPTIONS)
def test_one_help(command: str) -> None:
    programs = {console: "distlock", manage: "python manage.py distlock", flask: "flask distlock"}
    shown = {program: run(command, "--help") for run, program in programs.items()}
    assert [outcome.code for outcome in shown.values()] == [0, 0, 0]
    # Beside --url and --config, which a framework's settings take the place of.
    for program, outcome in shown.items():
        assert help_texts.DESCRIPTIONS[command].format(program=program) in outcome.out
        assert ("--url" in outcome.out) == (program == "distlock")
        assert "75  run: somebody else has the lock" in outcome.out


@pytest.mark.parametrize("program", [console, manage, flask])
def test_the_help_of_all_lists_the_commands_and_the_exit_codes(program: Callable[..., Outcome]) -> None:
    code, out, _ = program("--help")
    assert code == 0
    for command, summary in help_texts.SUMMARIES.items():
        assert re.search(rf"^ +{command} +{summary[:40]}", out, re.M)
    assert "75  run: somebody else has the lock" in out


def test_run_passes_the_exit_code_on(run: Callable[..., Outcome]) -> None:
    assert run("run", "--key", "x", "--", "sh", "-c", "exit 7").code == 7
    assert run("run", "--key", "x", "--").code == 64


def test_run_prepares_no_server_that_needs_no_tables(
    run: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asked every node of a Redlock before the lock, and one wrong node of many kept every command from running."""

    def refuse(self: object) -> str:
        raise ConfigurationError("One of the nodes votes with others.")

    monkeypatch.setattr(type(registry().store("default").backend), "prepare", refuse, raising=False)
    assert run("run", "--key", "x", "--", "true").code == 0


def test_run_makes_no_tables_where_that_is_forbidden(tmp_path: Path) -> None:
    """Its user may have no right to, and somebody else keeps the schema."""
    store = {"LOCATION": f"sqlite:///{tmp_path}/locks.db", "OPTIONS": {"create": False}}
    configure({"default": store})
    ended = console("run", "--key", "x", "--", "true")
    assert ended.code == 64
    assert 'run "distlock init"' in ended.errors
    assert console("init").code == 0
    assert console("run", "--key", "x", "--", "true").code == 0


def test_two_apps_have_their_own_commands() -> None:
    apps = [Flask(name) for name in ("one", "two")]
    for app in apps:
        app.config["DISTLOCK"] = {"default": {"BACKEND": "memory"}}
        DistLock(app)
    with apps[0].app_context():
        lease = lock("x", expire=60).acquire()
    codes = [
        app.test_cli_runner().invoke(args=["distlock", "release", "x", "--yes"]).exit_code for app in reversed(apps)
    ]
    assert codes == [1, 0]
    with pytest.raises(LeaseLost):
        lease.release()


# Where the stores of `distlock` are ----------------------------------------------------------------------------------


def test_config_names_a_mapping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.joinpath("shop_locks.py").write_text('DISTLOCK = {"default": {"BACKEND": "memory"}}\nOTHER = 3\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])
    assert console("--config", "shop_locks:DISTLOCK", "list") == (0, "No lock is held.\n", "")
    assert console("list", "--config", "shop_locks") == (0, "No lock is held.\n", "")
    assert "is not a mapping of stores, but of type int" in console("list", "--config", "shop_locks:OTHER").errors
    assert "no_such_module" in console("list", "--config", "no_such_module:DISTLOCK").errors
    assert console("list", "--config", "shop_locks", "--url", "redis://127.0.0.1").code == 64


def test_url_in_front_of_the_command_and_behind_it(redis_url: str, elsewhere: Elsewhere) -> None:
    assert console("list", "--url", redis_url).out == "No lock is held.\n"
    lease = elsewhere("order:7")
    assert lease.name in console("--url", redis_url, "list").out


def test_version() -> None:
    assert console("--version").out == f"distlock {distlock_web.__version__}\n"


def test_not_held(run: Callable[..., Outcome], elsewhere: Elsewhere) -> None:
    code, out, errors = run("release", "order:7")
    assert (code, out) == (1, "")
    assert "The lock 'order:7' is not held. `" in errors
    assert "distlock list` shows what is." in errors
    lease = elsewhere("order:7")
    code, _, errors = run("release", "order:7", "--fence", "1")
    assert code == 1
    assert f"not held with the fence 1, but with {lease.fence}: nothing was released" in errors
    lease.extend()
