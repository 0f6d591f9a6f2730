"""``distlock list`` and ``distlock release`` do the same under ``manage.py`` and under ``flask``."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from io import StringIO
from typing import Any, NamedTuple

import pytest
from django.core.management import ManagementUtility
from flask import Flask

from distlock_web import Lease, LeaseLost
from distlock_web.core.registry import registry
from distlock_web.flask import DistLock
from distlock_web.web import commands

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


@pytest.fixture(params=[manage, flask])
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


def test_not_held(run: Callable[..., Outcome], elsewhere: Elsewhere) -> None:
    code, _, errors = run("release", "order:7")
    assert code == 1
    assert "The lock 'order:7' is not held. `distlock list` shows what is." in errors
    lease = elsewhere("order:7")
    code, _, errors = run("release", "order:7", "--fence", "1")
    assert code == 1
    assert f"not held with the fence 1, but with {lease.fence}: nothing was released" in errors
    lease.extend()


@pytest.mark.parametrize("answer", ["n", "", None])
def test_not_confirmed(
    run: Callable[..., Outcome], elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch, answer: str | None
) -> None:
    """At a terminal; None is the end of the input."""

    def read(question: str) -> str:
        if answer is None:
            raise EOFError
        return answer

    lease = elsewhere("order:7")
    monkeypatch.setattr(commands, "interactive", lambda: True)
    monkeypatch.setattr("builtins.input", read)
    code, out, errors = run("release", "order:7")
    assert code == 1
    assert lease.name in out  # so that one sees from whom
    assert "Not confirmed: nothing was released." in errors
    lease.extend()


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["release", "order:7"], "Several locks are meant: disLock:order:7 in default, disLock:order:7 in other."),
        (["release", "order:7", "--store", "defualt"], "Did you mean 'default'?"),
        (["release", "order:7", "--fence", "last"], "'last'"),
        (["release"], "NAME"),
        (["list", "--serach", "x"], "--serach"),
    ],
)
def test_usage(run: Callable[..., Outcome], elsewhere: Elsewhere, args: list[str], says: str) -> None:
    elsewhere("order:7")
    elsewhere("order:7", store="other")
    code, _, errors = run(*args)
    assert code == 2
    assert says in errors


def test_wrong_settings(run: Callable[..., Outcome], settings: Any) -> None:
    settings.DISTLOCK = {"default": {"BACKEND": "memory", "EXPIRE": 0}}
    code, _, errors = run("list")
    assert code == 2
    assert "EXPIRE" in errors


def test_a_store_does_not_answer(run: Callable[..., Outcome], settings: Any, elsewhere: Elsewhere) -> None:
    settings.DISTLOCK = {"default": {"BACKEND": "memory"}, "down": {"LOCATION": "redis://127.0.0.1:1"}}
    lease = elsewhere("order:7")
    code, out, errors = run("list")
    assert code == 3
    assert lease.name in out
    assert "The store 'down' failed: " in errors
    assert run("release", "order:7").code == 3  # the one in the other store may be meant
    lease.extend()


@pytest.mark.parametrize("args", [["list"], ["release", "order:7"]])
def test_a_store_that_cannot_list_is_wrong_usage(
    run: Callable[..., Outcome], settings: Any, monkeypatch: pytest.MonkeyPatch, args: list[str]
) -> None:
    """It answers: 3 would send somebody to look at the network."""
    settings.DISTLOCK = {"default": {"BACKEND": "memory"}}
    backend = registry().store("default").backend
    monkeypatch.setattr(type(backend), "capabilities", replace(backend.capabilities, listing=False))
    code, out, errors = run(*args)
    assert (code, out) == (2, "")
    assert "'default' cannot show who holds its locks" in errors
    settings.DISTLOCK = {"default": {"BACKEND": "memory"}, "down": {"LOCATION": "redis://127.0.0.1:1"}}
    assert run(*args).code == 3


@pytest.mark.parametrize("command", ["list", "release"])
def test_one_help(command: str) -> None:
    django, click = (_words(run(command, "--help").out) for run in (manage, flask))
    descriptions = {"list": commands.LIST_DESCRIPTION, "release": commands.RELEASE_DESCRIPTION}
    for paragraph in descriptions[command]:
        assert _words(paragraph.format(program="python manage.py distlock")) in django
        assert _words(paragraph.format(program="flask distlock")) in click
    for option in {"list": ("search", "json"), "release": ("store", "fence", "yes")}[command]:
        assert _words(commands.OPTIONS[option]) in django
        assert _words(commands.OPTIONS[option]) in click


def _words(text: str) -> str:
    return " ".join(text.split())
