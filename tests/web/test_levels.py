"""A policy is said at the decorator, else for the alias, else for the project."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from flask import Flask

from distlock_web import (
    ConfigurationError,
    Lease,
    LockBusy,
    distributed_lockable,
    lock,
)
from distlock_web.flask import DistLock

Elsewhere = Callable[..., Lease]


def alias_answer(error: Exception, *args: Any) -> tuple[str, str, tuple[Any, ...]]:
    return "alias", type(error).__name__, args


def project_answer(error: Exception, *args: Any) -> tuple[str, str, tuple[Any, ...]]:
    return "project", type(error).__name__, args


HERE = __name__
PROJECT, ALIAS = f"{HERE}.project_answer", f"{HERE}.alias_answer"


def locked(**options: Any) -> Callable[[int], Any]:
    return distributed_lockable(key="order", **options)(lambda number: "done")


def test_busy_at_every_level(settings: Any, elsewhere: Elsewhere) -> None:
    memory = {"BACKEND": "memory"}
    settings.DISTLOCK_ON_BUSY = PROJECT
    settings.DISTLOCK = {
        "default": memory,
        "other": {**memory, "ON_BUSY": ALIAS},
        "loud": {**memory, "ON_BUSY": "raise"},
    }
    for alias in ("default", "other", "loud"):
        with lock("order", store=alias) as lease:
            lease.detach()
    assert locked()(7) == ("project", "LockBusy", (7,))
    assert locked(store="other")(7) == ("alias", "LockBusy", (7,))
    assert locked(store="other", on_busy=lambda error, number: number)(7) == 7
    assert locked(on_busy="skip")(7) is None
    for loud in (locked(store="loud"), locked(on_busy="raise")):
        with pytest.raises(LockBusy):
            loud(7)


def test_a_wrong_one_stops_a_flask_app() -> None:
    app = Flask("shop")
    app.config.update(DISTLOCK={"default": {"BACKEND": "memory"}}, DISTLOCK_ON_BUSY=f"{HERE}.missing")
    with pytest.raises(ConfigurationError, match="has no attribute 'missing'"):
        DistLock(app)


def test_a_project_without_stores_of_its_own(settings: Any) -> None:
    settings.DISTLOCK = None
    settings.DISTLOCK_ON_LOST = "warn"
    with pytest.raises(ConfigurationError, match="DISTLOCK_ON_LOST is for the stores of DISTLOCK, which is not set"):
        lock("order").acquire()


def test_a_flask_app_has_its_own() -> None:
    app = Flask("shop")
    app.config.update(DISTLOCK={"default": {"BACKEND": "memory"}}, DISTLOCK_ON_BUSY=PROJECT)
    DistLock(app)
    with app.app_context():
        lock("order").acquire().detach()
        assert locked()(7) == ("project", "LockBusy", (7,))
