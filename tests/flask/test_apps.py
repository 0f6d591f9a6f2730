"""Several apps in one process, each with its own stores; and what is refused at the start."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import redis
from flask import Flask

from distlock_web import ConfigurationError, configure, distributed_lockable, lock
from distlock_web.core import registry
from distlock_web.flask import DistLock
from tests.support.waiting import eventually

MEMORY = {"default": {"BACKEND": "memory"}}


@distributed_lockable(key="order:{order_id}", expire=10)
def pay(order_id: int) -> str:
    """One view, on several apps."""
    from distlock_web import current_lease

    lease = current_lease()
    assert lease is not None
    return lease.name


def test_one_extension_serves_many_apps_and_keeps_nothing(make_app: Callable[..., Flask]) -> None:
    distlock = DistLock()
    apps = []
    for name in ("one", "two"):
        app = Flask(name)
        app.config["DISTLOCK"] = {"default": {"BACKEND": "memory", "PREFIX": f"{name}:"}}
        distlock.init_app(app)
        app.add_url_rule("/<int:order_id>", view_func=pay)
        apps.append(app)
    assert vars(distlock) == {}
    assert [app.test_client().get("/7").text for app in apps] == ["one:order:7", "two:order:7"]


@pytest.mark.parametrize("used_after_its_end", [False, True])
def test_an_app_that_nobody_has_any_more_leaves_no_connection(
    redis_url: str, redis_client: redis.Redis, used_after_its_end: bool
) -> None:
    """As in tests that make an app each: it was left to the garbage collector, with a ResourceWarning now and then."""

    def connections() -> set[str]:
        return {client["id"] for client in redis_client.client_list()}

    def serve() -> None:
        app = Flask("shop")
        app.config["DISTLOCK"] = {"default": {"LOCATION": redis_url}}
        DistLock(app)
        app.add_url_rule("/<int:order_id>", view_func=pay)
        assert app.test_client().get("/7").status_code == 200
        if used_after_its_end:
            app.extensions["distlock"].registry.close()
            assert app.test_client().get("/7").status_code == 200
        assert connections() - before

    before = connections()
    serve()
    gc.collect()
    eventually(lambda: not connections() - before, "they are closed")


def test_apps_with_the_same_prefix_exclude_each_other_only_in_the_same_store(redis_url: str) -> None:
    def made(name: str, settings: dict[str, Any]) -> Flask:
        app = Flask(name)
        app.config["DISTLOCK"] = {"default": settings}
        DistLock(app)
        app.add_url_rule("/<int:order_id>", view_func=pay)
        return app

    shared = {"LOCATION": redis_url}
    one, two, other = made("one", shared), made("two", shared), made("other", {"BACKEND": "memory"})
    with one.app_context():
        lease = lock("order:7", expire=30).acquire()
    # Another app's lease of the same name is another lock chain: never re-entered, even from one thread.
    assert two.test_client().get("/7").status_code == 409
    assert other.test_client().get("/7").status_code == 200
    lease.release()
    assert two.test_client().get("/7").status_code == 200
    for app in (one, two, other):
        app.extensions["distlock"].registry.close()


def test_an_app_without_the_setting_has_the_stores_of_the_process() -> None:
    configure({"default": {"BACKEND": "memory", "PREFIX": "process:"}})
    app = Flask("shop")
    DistLock(app)
    app.add_url_rule("/<int:order_id>", view_func=pay)
    assert app.test_client().get("/7").text == "process:order:7"
    with Flask("bare").app_context():
        assert pay(8) == "process:order:8"


def test_an_app_without_the_setting_has_the_store_of_the_environment(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_configured", None)
    app = Flask("shop")
    DistLock(app)
    app.add_url_rule("/<int:order_id>", view_func=pay)
    monkeypatch.setenv("DISTLOCK_URL", redis_url)
    assert app.test_client().get("/7").text == "disLock:order:7"


def test_a_wrong_address_of_the_environment_stops_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_configured", None)
    monkeypatch.setenv("DISTLOCK_URL", "redsi://127.0.0.1/0")
    with pytest.raises(ConfigurationError, match="redsi"):
        DistLock(Flask("shop"))


def test_outside_of_an_app_its_stores_are_not_meant(make_app: Callable[..., Flask]) -> None:
    configure({"default": {"BACKEND": "memory", "PREFIX": "process:"}})
    app = make_app("shop", PREFIX="app:")
    with app.app_context():
        assert pay(7) == "app:order:7"
    assert pay(7) == "process:order:7"


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ({}, "DISTLOCK is empty; it has to be a mapping"),
        ({"default": {"BACKEND": "memory", "EXPIER": 1}}, "Did you mean 'EXPIRE'"),
        ({"default": {"BACKEND": "memry"}}, "Did you mean 'memory'"),
        ({"default": {"CACHE": "default"}}, "this is no Django project"),
        ({**MEMORY, "second": {"BACKEND": "redis", "OPTIONS": {"max_conections": 3}}}, "max_conections"),
    ],
)
def test_a_wrong_setting_stops_the_start(setting: object, says: str) -> None:
    app = Flask("shop")
    app.config["DISTLOCK"] = setting
    with pytest.raises(ConfigurationError, match=says):
        DistLock(app)
    assert "distlock" not in app.extensions


def test_a_thread_without_an_app_context_is_told_of_it(make_app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DISTLOCK_URL", raising=False)
    registry.unconfigure()
    app = make_app("shop")
    with pytest.raises(ConfigurationError, match=r"app .*'shop'.*, and no app context is here: use `with app.app_con"):
        lock("a").acquire()
    with app.app_context(), lock("a"):
        pass


def test_a_setting_of_the_projects_own_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    app = Flask("shop")
    app.config.update(DISTLOCK=MEMORY, DISTLOCK_URL="redis://127.0.0.1:6379/0")
    DistLock(app)
    assert caplog.messages == [], "DISTLOCK is made of it"
    other = Flask("other")
    other.config.update(DISTLOCK=MEMORY, DISTLOCK_DASHBOARD_TITLE="Locks")
    DistLock(other)
    (line,) = caplog.messages
    assert "'DISTLOCK_DASHBOARD_TITLE', which distlock_web does not read" in line


def test_a_setting_that_does_not_exist_is_not_ignored() -> None:
    app = Flask("shop")
    app.config.update(DISTLOCK=MEMORY, DISTLOCK_REQUEST_ID_HEDAER="X-Id")
    with pytest.raises(ConfigurationError, match="Did you mean 'DISTLOCK_REQUEST_ID_HEADER'"):
        DistLock(app)


def test_a_setting_without_the_extension_is_not_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_configured", None)
    app = Flask("shop")
    app.config["DISTLOCK"] = MEMORY
    with app.app_context(), pytest.raises(ConfigurationError, match="but no DistLock\\(app\\) reads it"), lock("a"):
        pass


def test_a_setting_that_comes_too_late_is_not_ignored(memory_store: None) -> None:
    app = Flask("shop")
    DistLock(app)
    app.config["DISTLOCK"] = MEMORY
    with app.app_context(), pytest.raises(ConfigurationError, match="was set after DistLock's init_app"):
        pay(7)


def test_twice_is_refused() -> None:
    app = Flask("shop")
    app.config["DISTLOCK"] = MEMORY
    distlock = DistLock(app)
    with pytest.raises(ConfigurationError, match="DistLock was installed in 'shop' already"):
        distlock.init_app(app)
