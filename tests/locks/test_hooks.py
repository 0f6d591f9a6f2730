"""Integrations: installed once, in any order."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from distlock_web import ConfigurationError, Lease, distributed_lockable
from distlock_web.core import integrations
from distlock_web.locks import hooks

pytestmark = pytest.mark.usefixtures("memory_store")


class Transactions:
    """Of a database library that is in its context, out of it, or has none."""

    def __init__(self, context: hooks.Context) -> None:
        self._context = context

    def mark(self, wrapper: Callable[..., Any], database: object) -> None: ...

    def context(self) -> hooks.Context:
        return self._context

    def refuse_open(self, function_name: str, database: object) -> None: ...

    def run(self, function_name: str, call: Callable[[], Any], lease: Lease, database: object) -> Any:
        return self._context, call()

    def run_open(self, function: Callable[..., Any], call: Callable[[], Any], database: object) -> Any:
        return self._context, call()


class Offering(hooks.Integration):
    def __init__(self, context: hooks.Context) -> None:
        self._context = context

    def transactions(self, database: object) -> Transactions | None:
        return Transactions(self._context) if database is None else None


@pytest.fixture(autouse=True)
def _nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(integrations, "installed", integrations.Installed())


@pytest.mark.parametrize("order", list(itertools.permutations(["inside", "none", "outside"])))
def test_whose_transaction_is_meant_does_not_depend_on_who_came_first(order: tuple[hooks.Context, ...]) -> None:
    for context in order:
        hooks.install(Offering(context))

    @distributed_lockable(key="a", until="commit")
    def change() -> str:
        return "changed"

    assert change() == ("inside", "changed")


def test_what_nobody_knows_is_refused_with_the_remedy() -> None:
    hooks.install(Offering("inside"))
    with pytest.raises(ConfigurationError, match=r"distlock_web\.django.*INSTALLED_APPS"):
        distributed_lockable(key="a", until="commit", database="a session")(lambda: None)


def test_installed_twice_it_is_asked_once_and_only_for_what_it_offers() -> None:
    class Stores(Offering):
        def app_registry(self) -> None: ...

    integration = Stores("none")
    for _ in range(2):
        hooks.install(integration)
    installed = integrations.installed
    assert (len(installed.registries), installed.open_transactions) == (1, [])
    assert installed.answering == {"app_registry": [integration], "transactions": [integration]}
