"""Who holds a lock, for every lock: what took it, what runs, in which thread or task, for which user."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.test import Client, RequestFactory
from django.urls import path
from flask import Flask
from flask import request as flask_request

from distlock_web import ConfigurationError, HolderInfo, distributed_lockable, held_locks, lock
from distlock_web.core import request_id
from distlock_web.core.registry import registry
from distlock_web.django.middleware import RequestIDMiddleware
from distlock_web.flask import DistLock
from distlock_web.ops.held_locks import find_lock, list_all
from distlock_web.testing.harness import Harness
from distlock_web.web import request_ids
from distlock_web.web.lock_presenter import Links, LockPresenter
from tests.support.modes import in_both_modes

SOURCE = Path(__file__).read_text().splitlines()


def who(store: str = "default") -> HolderInfo:
    """Who has the one lock that is held."""
    [row] = list_all(registry()).rows
    return row.holder


def line_of(holder: HolderInfo) -> str:
    module, _, line = holder.function.rpartition(":")
    assert module == __name__
    return SOURCE[int(line) - 1]


# The line -----------------------------------------------------------------------------------------------------------


@in_both_modes
async def test_a_block_is_held_by_its_line(harness: Harness, store: str) -> None:
    async with harness.inside(lock("a")):
        assert line_of(who()).strip() == 'async with harness.inside(lock("a")):'


# What runs ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["/srv/shop/manage.py", "send_invoices", "--to", "secret"], "manage.py send_invoices"),
        (["/usr/bin/celery", "-A", "shop", "worker"], "celery"),
        (["/usr/bin/gunicorn", "shop.wsgi"], "gunicorn"),
        (["nightly.py", "secret"], "nightly.py"),
        (["/usr/lib/python3/celery/__main__.py", "worker"], "celery worker"),
        (["manage.py", "pass=word"], "manage.py"),
        (["-c"], "python"),
        ([""], "python"),
        ([], "python"),
        (["x" * 1000], "x" * 200),
    ],
)
def test_the_program_that_runs(argv: list[str], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name, and what it was told to do where that is known to be no secret."""
    monkeypatch.setattr(sys, "argv", argv)
    request_id._command.cache_clear()
    monkeypatch.setattr(request_id._this_thread, "words", "")
    try:
        assert HolderInfo.loads(HolderInfo.current()).command == said
    finally:
        request_id._command.cache_clear()


def test_the_thread(memory_store: None) -> None:
    found: list[HolderInfo] = []

    def work() -> None:
        with lock("a"):
            found.append(who())

    thread = threading.Thread(target=work, name='worker "7"' + "x" * 100)
    thread.start()
    thread.join()
    assert found[0].worker == ('worker "7"' + "x" * 100)[:60]


def test_the_task(memory_store: None) -> None:
    async def work() -> str:
        async with lock("a"):
            [row] = await asyncio.to_thread(held_locks)
            return row.holder.worker

    async def run() -> str:
        return await asyncio.create_task(work(), name="import-17")

    assert asyncio.run(run()) == "import-17"


# The user -----------------------------------------------------------------------------------------------------------


def name_of_user(request: Any) -> str:
    return str(request.headers["X-User"])


def broken(request: Any) -> str:
    raise LookupError("no session")


@distributed_lockable(key="order")
def pay(request: HttpRequest) -> HttpResponse:
    return HttpResponse(who().user)


urlpatterns = [path("pay/", pay)]


def in_django(user: object, settings: Any) -> str:
    settings.DISTLOCK_USER = user
    settings.ROOT_URLCONF = __name__
    settings.MIDDLEWARE = ["distlock_web.django.middleware.RequestIDMiddleware"]
    return Client().get("/pay/", headers={"X-User": "ada"}).content.decode()


def in_flask(user: object, settings: Any) -> str:
    app = Flask("shop")
    app.config.update(DISTLOCK=settings.DISTLOCK, DISTLOCK_USER=user)
    DistLock(app)

    @app.get("/pay")
    @distributed_lockable(key="order")
    def view() -> str:
        assert flask_request.headers["X-User"] == "ada"
        return who().user

    return app.test_client().get("/pay", headers={"X-User": "ada"}).text


frameworks = pytest.mark.parametrize("ask", [in_django, in_flask])


@frameworks
@pytest.mark.parametrize("user", [name_of_user, f"{__name__}.name_of_user"])
def test_the_user_where_the_project_says_who_that_is(
    ask: Callable[..., str], user: object, memory: None, settings: Any
) -> None:
    assert ask(user, settings) == "ada"


@frameworks
def test_no_user_unless_the_project_wants_it(ask: Callable[..., str], memory: None, settings: Any) -> None:
    assert ask(None, settings) == ""


@frameworks
def test_a_user_that_cannot_be_told_is_no_reason_to_fail(
    ask: Callable[..., str], memory: None, settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    request_ids._told.clear()
    assert ask(broken, settings) == ""
    assert ask(broken, settings) == ""
    assert caplog.text.count("no session") == 1


async def a_coroutine(request: object) -> str:
    return "ada"


@pytest.mark.parametrize(
    "wrong", ["nowhere.at_all", f"{__name__}.SOURCE", "name", 7, a_coroutine, f"{__name__}.a_coroutine"]
)
def test_a_hook_that_is_none(wrong: object, memory: None, settings: Any) -> None:
    with pytest.raises(ConfigurationError, match="DISTLOCK_USER is "):
        in_flask(wrong, settings)
    settings.DISTLOCK_USER = wrong
    with pytest.raises(ConfigurationError, match="DISTLOCK_USER is "):
        RequestIDMiddleware(lambda request: HttpResponse())(RequestFactory().get("/"))


def test_the_user_is_asked_when_a_lock_is_taken_and_not_for_every_request(memory: None, settings: Any) -> None:
    """The middleware stands in front of the one that knows who it is."""
    asked: list[str] = []
    settings.DISTLOCK_USER = lambda request: asked.append(request.user.username) or "x" * 1000

    def view(request: HttpRequest) -> HttpResponse:
        assert asked == []
        request.user = User(username="ada")
        with lock("a"):
            return HttpResponse(who().user)

    response = RequestIDMiddleware(view)(RequestFactory().get("/"))
    assert (asked, len(response.content)) == (["ada"], 200)


# As it is stored ----------------------------------------------------------------------------------------------------


def test_what_an_older_version_has_stored_is_read() -> None:
    old = json.dumps(["r-1", "GET /", "shop.pay", "web-1", 7, 10.0, "abcd0123"])
    assert HolderInfo.loads(old) == HolderInfo("r-1", "GET /", "shop.pay", "web-1", 7, 10.0, "abcd0123")


@pytest.mark.parametrize("renew", [False, True])
def test_it_is_said_whether_the_holder_renews(memory_store: None, renew: bool) -> None:
    """What is left of a lease that is renewed says nothing about when the lock is free."""
    with lock("a", renew=renew):
        row = find_lock(registry(), "a")
    assert row.holder.renews is renew
    assert LockPresenter(row, Links("", "", "")).renewed is renew


def test_what_a_newer_version_says_beyond_is_passed_over() -> None:
    new = [*json.loads(HolderInfo.current("pay", 10.0)), "more", {"and": "more"}]
    assert HolderInfo.loads(json.dumps(new)) == HolderInfo.loads(HolderInfo.current("pay", 10.0))
