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


no_callable = "text"
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


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("shout", "DISTLOCK_ON_BUSY is 'shout'; it has to be 'raise', 'skip' or a callable"),
        (7, "DISTLOCK_ON_BUSY is 7"),
        ("no.such.module", "DISTLOCK_ON_BUSY is 'no.such.module', which cannot be imported (No module named 'no')"),
        (f"{HERE}.missing", "has no attribute 'missing'"),
        (f"{HERE}.no_callable", "which is not callable"),
    ],
)
def test_a_wrong_one_is_named(settings: Any, given: Any, said: str) -> None:
    settings.DISTLOCK_ON_BUSY = given
    with pytest.raises(ConfigurationError) as caught:
        lock("order").acquire()
    assert said in str(caught.value)
    app = Flask("shop")
    app.config.update(DISTLOCK={"default": {"BACKEND": "memory"}}, DISTLOCK_ON_BUSY=given)
    with pytest.raises(ConfigurationError) as caught:
        DistLock(app)
    assert said in str(caught.value)


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
