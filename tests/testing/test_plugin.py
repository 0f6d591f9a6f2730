"""The pytest plugin, as a project uses it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
from flask import Flask

from distlock_web import LockBusy, configure, distributed_lockable, lock, request_scope
from distlock_web.flask import DistLock
from distlock_web.testing import locks_in_memory
from distlock_web.testing.plugin import assert_lock_free, hold_lock

pytest_plugins = ("pytester",)


@distributed_lockable(key="order:{order_id}")
def pay(order_id: int) -> str:
    return "paid"


def test_a_project_that_names_a_server_needs_none(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
        from distlock_web import configure
        pytest_plugins = ["distlock_web.testing.plugin"]
        server = {"LOCATION": "redis://127.0.0.1:1", "PREFIX": "mine:"}
        configure({"default": server, "other": server})
        """
    )
    pytester.makepyfile(
        """
        import pytest
        from distlock_web import LockBusy, lock
        from distlock_web.testing.plugin import hold_lock

        @pytest.mark.parametrize("alias", ["default", "other"])
        def test_it(distlock_fake, alias):
            with lock("a", store=alias) as lease:
                assert lease.name == "mine:a"
            with hold_lock("a", store=alias), pytest.raises(LockBusy):
                lock("a", store=alias).acquire()

        def test_nothing_of_another_test_is_held(distlock_fake):
            assert lock("left").try_acquire()

        def test_nothing_of_another_test_is_held_either(distlock_fake):
            assert lock("left").try_acquire()
        """
    )
    pytester.runpytest_subprocess("-q", "-p", "no:django", "-p", "no:cacheprovider").assert_outcomes(passed=4)


@pytest.mark.usefixtures("memory_store")
def test_an_unrelated_caller_holds_the_lock_while_the_block_runs() -> None:
    with hold_lock("order:1"):
        with pytest.raises(LockBusy):
            pay(1)
        assert pay(2) == "paid"
        with pytest.raises(AssertionError, match=r"disLock:order:1.*held already"), hold_lock("order:1"):
            pass
    assert pay(1) == "paid"


@pytest.mark.usefixtures("memory_store")
def test_free_is_said_only_of_what_is_free() -> None:
    assert_lock_free("order:1")
    with request_scope("r-1"), lock("order:1"):
        assert_lock_free("order:2")
        said = rf"'disLock:order:1' is held, for \d+\.\d s more, by {__name__}:\d+ on \S+ \(pid \d+\), request r-1\.$"
        with pytest.raises(AssertionError, match=said):
            assert_lock_free("order:1")
    with hold_lock("order:1"), pytest.raises(AssertionError, match="by somebody unknown"):
        assert_lock_free("order:1")
    assert_lock_free("order:1")


@pytest.mark.parametrize(
    "setting",
    [
        {"LOCATION": "redis://127.0.0.1:1/0"},
        {"LOCATION": "sqlite:////nowhere/locks.sqlite3", "OPTIONS": {"migrated": True}},
        {"CACHE": "default"},
        {"DATABASE": "default"},
        {"BACKEND": "sql", "DATABASE": "default"},
        {"LOCATION": "redlock://a.invalid,b.invalid,c.invalid", "EXPIRE": 0.1, "WAIT": 1},
        {"LOCATION": "redis+sentinel://a.invalid,b.invalid/mymaster/0", "OPTIONS": {"min_replicas": 1}},
        {"LOCATION": "redis+cluster://a.invalid:7000,b.invalid:7001/"},
        {"LOCATION": "zookeeper://a.invalid:2181/locks"},
        {"BACKEND": "redis", "OPTIONS": {"server": object()}},
        {"BACKEND": "nowhere.to_be.Found"},
    ],
)
def test_wherever_the_locks_of_the_project_are(setting: dict[str, object], request: pytest.FixtureRequest) -> None:
    configure({"default": setting}, resources={"CACHE": unasked, "DATABASE": unasked})
    request.getfixturevalue("distlock_fake")
    with lock("a") as lease:
        assert lease.name == "disLock:a"


def unasked(name: str) -> object:
    raise AssertionError(f"{name!r} was asked for")


LOADED_BY_ITSELF = """
import sys
from importlib.metadata import entry_points

(plugin,) = [each for each in entry_points(group="pytest11") if each.value == "distlock_web.testing.plugin"]
plugin.load()
heavy = {"django", "flask", "redis", "sqlalchemy", "werkzeug", "asgiref"} & sys.modules.keys()
assert not heavy, heavy
"""


def test_pytest_finds_the_plugin_and_loading_it_imports_no_framework_and_no_driver() -> None:
    """It is loaded in every project that has distlock_web installed, in those that do not use it as well."""
    subprocess.run([sys.executable, "-c", LOADED_BY_ITSELF], check=True, timeout=60)


def test_a_framework_that_is_imported_within_a_test_stays_for_the_session(pytester: pytest.Pytester) -> None:
    """Its integration was taken away with the fake: the app had the wrong prefix, and later no store."""
    pytester.makepyfile(
        shop="""
        from flask import Flask
        from distlock_web import distributed_lockable
        from distlock_web.flask import DistLock

        def create_app():
            app = Flask(__name__)
            app.config["DISTLOCK"] = {"default": {"BACKEND": "memory", "PREFIX": "shop:"}}
            DistLock(app)

            @app.post("/pay/<int:order_id>")
            @distributed_lockable(key="order:{order_id}")
            def pay(order_id):
                return "paid"

            return app
        """,
        test_shop="""
        from distlock_web import lock

        def app():
            from shop import create_app
            return create_app()

        def test_in_memory(distlock_fake):
            assert app().test_client().post("/pay/1").text == "paid"
            with app().app_context(), lock("a") as lease:
                assert lease.name == "shop:a"

        def test_with_the_apps_own_store():
            assert app().test_client().post("/pay/1").text == "paid"
        """,
    )
    options = ("-q", "-p", "no:django", "-p", "no:cacheprovider", "-p", "no:randomly")
    pytester.runpytest_subprocess(*options).assert_outcomes(passed=2)


@pytest.fixture
def nested(distlock_fake: None) -> Iterator[None]:
    """A fixture for every test, and a test that has locks in memory of its own."""
    with locks_in_memory():
        yield


@pytest.mark.parametrize("fake", ["distlock_fake", "nested"])
def test_what_is_held_before_a_request_has_the_settings_of_the_app_from_then_on(
    fake: str, request: pytest.FixtureRequest
) -> None:
    """The store that was made outside of the app, with our defaults, stayed: another configuration was tested."""
    request.getfixturevalue(fake)
    skipping, refusing = (app_that(on_busy) for on_busy in ("skip", "raise"))
    with hold_lock("order:7", prefix="skip:"), hold_lock("order:7", prefix="raise:"):
        assert skipping.test_client().get("/7").text == "skipped"
        assert refusing.test_client().get("/7").status_code == 409, "another app, of other settings"
        assert skipping.test_client().get("/7").text == "skipped"
    assert skipping.test_client().get("/7").text == "paid"


@pytest.mark.parametrize("fake", ["distlock_fake", "nested"])
def test_every_lock_has_the_settings_that_are_in_force_when_it_is_taken(
    fake: str, request: pytest.FixtureRequest
) -> None:
    """Those of the first one stayed: of another app, of no app, or of before ``override_settings``."""
    request.getfixturevalue(fake)

    def taken() -> str:
        with lock("a") as lease:
            return lease.name

    names = [taken()]
    for app in (app_that("skip"), app_that("raise")):
        with app.app_context():
            names.append(taken())
    for prefix in ("new:", "newer:"):
        configure({"default": {"LOCATION": "redis://127.0.0.1:1", "PREFIX": prefix}})
        names.append(taken())
    assert names == ["disLock:a", "skip:a", "raise:a", "new:a", "newer:a"]


def app_that(on_busy: str) -> Flask:
    app = Flask("shop")
    store = {"LOCATION": "redis://127.0.0.1:1", "ON_BUSY": on_busy, "PREFIX": f"{on_busy}:"}
    app.config["DISTLOCK"] = {"default": store}
    DistLock(app)
    app.add_url_rule("/<int:order_id>", view_func=lambda order_id: pay(order_id) or "skipped")
    return app
