"""``distributed_lockable`` on views: of every kind, in memory and on Redis, one request after another."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from flask import Flask, Response, current_app
from flask.views import MethodView, View

from distlock_web import (
    BackendUnavailable,
    ConfigurationError,
    LockBusy,
    configure,
    current_lease,
    distributed_lockable,
)
from distlock_web.core import registry
from tests.support.waiting import eventually

Gate = Any


def _name() -> str:
    lease = current_lease()
    assert lease is not None
    return lease.name


def test_an_async_view_waits_for_its_turn_in_a_loop_of_its_own(app: Flask, gate: Gate) -> None:
    @app.post("/pay")
    @distributed_lockable(key="order", expire=30, wait=20, renew=True)
    async def pay() -> str:
        if not gate.entered.is_set():
            await asyncio.to_thread(gate.pass_through)
        return _name()

    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(app.test_client().post, "/pay")
        assert gate.entered.wait(20)
        others = [pool.submit(app.test_client().post, "/pay") for _ in range(3)]
        eventually(lambda: [line.waiters for line in _held(app)] == [3], "three are waiting")
        gate.opened.set()
    assert [each.result().text for each in (first, *others)] == ["disLock:order"] * 4
    assert _held(app) == []


# A body that is made while it is sent ---------------------------------------------------------------------------------


def _rows() -> Iterator[str]:
    app: Any = current_app._get_current_object()  # type: ignore[attr-defined]

    def rows() -> Iterator[str]:
        yield " ".join(sorted(lock.name for lock in _held(app)))

    return rows()


class Export(View):
    def dispatch_request(self) -> Any:
        return _rows()


class ByItsDecorators(Export):
    decorators = (distributed_lockable(key="inner"),)  # type: ignore[assignment]


class ByItsMethod(MethodView):
    @distributed_lockable(key="outer")
    @distributed_lockable(key="inner")
    def get(self) -> Any:
        return _rows()


@distributed_lockable(key="outer")
@distributed_lockable(key="inner")
def stacked() -> Any:
    return _rows()


@distributed_lockable(key="outer")
@distributed_lockable(key="inner")
async def astacked() -> Any:
    return _rows()


@functools.wraps(stacked)
def logged_in() -> Any:
    return stacked()


BODIES: dict[str, tuple[Any, list[str]]] = {
    "two decorators": (stacked, ["inner", "outer"]),
    "two decorators, async": (astacked, ["inner", "outer"]),
    "behind another decorator": (logged_in, ["inner", "outer"]),
    "a class": (distributed_lockable(key="inner")(Export.as_view("x")), ["inner"]),
    "a class, by its decorators": (ByItsDecorators.as_view("x"), ["inner"]),
    "a method, by two decorators": (ByItsMethod.as_view("x"), ["inner", "outer"]),
}


@pytest.mark.parametrize("kind", BODIES)
def test_every_lock_of_a_view_is_held_until_its_body_is_sent(app: Flask, kind: str) -> None:
    view, keys = BODIES[kind]
    app.add_url_rule("/", "export", view)
    with app.test_client() as client:
        assert client.get("/").text.split() == [f"disLock:{key}" for key in keys]
    assert _held(app) == []


def test_a_generator_of_a_function_that_is_no_view_is_refused(app: Flask) -> None:
    """Nobody sends it, so its body would run without the lock."""
    app.add_url_rule("/", "export", lambda: "".join(stacked()))
    app.testing = True
    with pytest.raises(
        ConfigurationError, match=r"stacked returned a generator, whose body would run without the lock"
    ):
        app.test_client().get("/")
    assert _held(app) == []


def test_a_body_is_sent_under_a_lock_that_each_request_makes_anew(app: Flask) -> None:
    """As ``method_decorators`` of Flask-RESTful do."""

    class Exported(MethodView):
        def dispatch_request(self, **kwargs: Any) -> Any:
            return distributed_lockable(key="inner")(self.get)()

        def get(self) -> Any:
            return _rows()

    app.add_url_rule("/", view_func=Exported.as_view("export"))
    assert app.test_client().get("/").text == "disLock:inner"


# A view that is skipped ----------------------------------------------------------------------------------------------


skip: Any = distributed_lockable(key="order", on_busy="skip")  # a type checker refuses it, too


@skip
def skipping() -> str:
    return "ok"


@distributed_lockable(key="order")
def undecided() -> str:
    return "ok"


class Skipping(MethodView):
    def get(self) -> str:
        return "ok"

    post = staticmethod(skipping)


class SkippingAtAll(View):
    dispatch_request = staticmethod(skipping)


REMEDY = r'The view .* has on_busy="skip".*Say on_busy="raise" \(a 409 with Retry-After\)'


def test_a_view_that_would_be_skipped_is_refused_when_it_is_registered(app: Flask) -> None:
    with pytest.raises(ConfigurationError, match=REMEDY):
        app.add_url_rule("/", "pay", skipping)
    with pytest.raises(ConfigurationError, match=r"'order' \(post\)"):
        app.add_url_rule("/order", view_func=Skipping.as_view("order"))
    with pytest.raises(ConfigurationError, match=r"'page' \(dispatch_request\)"):
        app.add_url_rule("/page", view_func=SkippingAtAll.as_view("page"))
    assert "pay" not in app.view_functions


def test_also_if_the_store_says_it_or_the_view_was_there_before_the_extension(make_app: Callable[..., Flask]) -> None:
    with pytest.raises(ConfigurationError, match=REMEDY):
        make_app(ON_BUSY="skip").add_url_rule("/", "pay", undecided)

    from distlock_web.flask import DistLock

    early = Flask("early")
    early.add_url_rule("/", "pay", skipping)
    with pytest.raises(ConfigurationError, match=REMEDY):
        DistLock(early)


def test_also_if_it_is_a_store_of_the_process_that_says_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from distlock_web.flask import DistLock

    monkeypatch.setattr(registry, "_configured", None)
    configure({"default": {"BACKEND": "memory", "ON_BUSY": "skip"}})
    app = Flask("shop")
    DistLock(app)
    with pytest.raises(ConfigurationError, match=REMEDY):
        app.add_url_rule("/", "pay", undecided)


@pytest.mark.parametrize("url", ["", "memory://"])
def test_stores_of_the_process_may_be_configured_after_the_views(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    from distlock_web.flask import DistLock

    monkeypatch.setattr(registry, "_configured", None)
    monkeypatch.setenv("DISTLOCK_URL", url)
    app = Flask("shop")
    DistLock(app)
    app.add_url_rule("/", "pay", distributed_lockable(key="a", store="slow")(lambda: "paid"))
    configure({"default": {"BACKEND": "memory"}, "slow": {"BACKEND": "memory"}})
    assert app.test_client().get("/").text == "paid"


# Refusals ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def refusing(app: Flask) -> Flask:
    """An app with a view that finds its lock busy, and one that finds the store unreachable."""

    @app.get("/busy")
    def busy() -> str:
        raise LockBusy("Somebody else holds the lock 'disLock:secret'.", name="disLock:secret", retry_after=2.2)

    @app.get("/away")
    def away() -> str:
        raise BackendUnavailable("redis://:password@10.0.0.1 refused the connection.")

    return app


class TestTheAppsOwnHandlerWins:
    def after(self, app: Flask) -> None:
        @app.errorhandler(LockBusy)
        def handler(error: LockBusy) -> tuple[str, int]:
            return f"mine: {error.name}", 423

    def test_registered_before_the_extension(self) -> None:
        from distlock_web.flask import DistLock

        app = Flask("shop")
        self.after(app)
        DistLock(app)

        @app.get("/busy")
        def busy() -> str:
            raise LockBusy(name="x")

        assert app.test_client().get("/busy").status_code == 423

    @pytest.mark.parametrize("asynchronous", [False, True])
    def test_for_all_errors_of_locks(self, refusing: Flask, asynchronous: bool) -> None:
        from distlock_web import DistLockError

        def handler(error: DistLockError) -> Response:
            return Response(type(error).__name__, 418)

        async def ahandler(error: DistLockError) -> Response:
            return handler(error)

        refusing.register_error_handler(DistLockError, ahandler if asynchronous else handler)
        assert refusing.test_client().get("/busy").text == "LockBusy"
        assert refusing.test_client().get("/away").status_code == 418

    def test_but_a_catch_all_for_bugs_does_not_turn_a_busy_lock_into_one(self, refusing: Flask) -> None:
        refusing.register_error_handler(Exception, lambda error: ("a bug", 500))
        assert refusing.test_client().get("/busy").status_code == 409


# -----------------------------------------------------------------------------------------------------------------


def _held(app: Flask) -> list[Any]:
    from distlock_web.core.runtime import THREADS, drive

    return drive(app.extensions["distlock"].registry.store("default").port(THREADS).inspect())
