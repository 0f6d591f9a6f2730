"""What happened, in order: the verbs sent to the store, the transaction's statements, and the view's own words."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.core.checks import CheckMessage, run_checks
from django.db import connection, connections
from django.test import Client
from django.urls import path

from distlock_web.core.registry import registry
from distlock_web.testing.fault_injector import FaultInjector
from tests.support.databases import Database, django_alias

View = Callable[..., Any]


@pytest.fixture
def store(store_settings: dict[str, Any], settings: Any) -> None:
    """The default store, empty: one of each kind."""
    settings.DISTLOCK = {"default": store_settings}


@pytest.fixture
def injector() -> FaultInjector:
    """On the way to the default store; ask for the store first."""
    return FaultInjector(registry().store("default"))


@pytest.fixture
def real_transactions(make_database: Callable[..., Database], django_db_blocker: Any) -> Iterator[None]:
    """A default database in a file, without a TestCase's transaction."""
    with django_db_blocker.unblock(), django_alias("default", make_database("sqlite"), Group):
        yield


class _Transactions(logging.Handler):
    """Django's own log of its statements, of which only those that begin and end transactions are kept."""

    def __init__(self, history: list[str]) -> None:
        super().__init__()
        self._history = history

    def emit(self, record: logging.LogRecord) -> None:
        words = str(record.sql).split()  # type: ignore[attr-defined]
        if words[0] in ("BEGIN", "COMMIT", "ROLLBACK"):
            self._history.append(words[0])


@pytest.fixture
def history(
    store: None, injector: FaultInjector, real_transactions: None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[str]]:
    """All of it in one list, on a real transaction. What is in one thread, each step answered before the next, is
    in the order in which it was done."""
    history: list[str] = []
    injector.calls = history
    handler = _Transactions(history)
    logger = logging.getLogger("django.db.backends")
    logger.addHandler(handler)
    level = logger.level
    logger.setLevel(logging.DEBUG)  # not the attribute: a logger remembers for which levels it was off
    monkeypatch.setattr(connections["default"], "force_debug_cursor", True)
    yield history
    logger.setLevel(level)
    logger.removeHandler(handler)


@pytest.fixture(params=[True, False], ids=["atomic", "not atomic"])
def atomic_requests(real_transactions: None, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", request.param)
    return bool(request.param)


@pytest.fixture
def serve(settings: Any) -> Callable[[View], None]:
    """The project has one view."""

    def serve(view: View) -> None:
        urls = ModuleType("urls")
        urls.urlpatterns = [path("view", view)]  # type: ignore[attr-defined]
        settings.ROOT_URLCONF = urls

    return serve


@pytest.fixture
def get(serve: Callable[[View], None]) -> Callable[..., Any]:
    """Ask a view through the whole of Django: ``get(view)``. An exception of the view is the client's."""

    def get(view: View, *, raises: bool = True, query: str = "") -> Any:
        serve(view)
        return Client(raise_request_exception=raises).get(f"/view{query}")

    return get


@pytest.fixture
def other(real_transactions: None, make_database: Callable[..., Database]) -> Iterator[str]:
    """Another database than the default one, with a table of groups."""
    with django_alias("other", make_database("sqlite"), Group) as alias:
        yield alias


@pytest.fixture
def checked(serve: Callable[[View], None]) -> Callable[..., list[CheckMessage]]:
    """What ``manage.py check`` says of a view."""

    def checked(view: View) -> list[CheckMessage]:
        serve(view)
        return [found for found in run_checks() if (found.id or "").startswith("distlock_web")]

    return checked
