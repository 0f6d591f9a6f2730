"""Stores: found by alias, one per process, made anew after a fork."""

from __future__ import annotations

import gc
import re
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from distlock_web import ConfigurationError, configure, lock
from distlock_web.backends.memory import MemoryBackend
from distlock_web.core import integrations, loading
from distlock_web.core import registry as module
from distlock_web.core.registry import Registry, registry
from tests.support.callers import no_thread, threads
from tests.support.forking import Fork, beside_threads, both_forks, in_child
from tests.support.waiting import eventually


@pytest.fixture
def no_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor an app with some, of an earlier test, which is no garbage yet."""
    monkeypatch.setattr(integrations.installed, "why_no_registry", [])
    module._configured = None


@pytest.mark.usefixtures("no_stores")
def test_without_any_setting_the_message_names_all_the_ways() -> None:
    with pytest.raises(ConfigurationError, match=r"DISTLOCK.*settings\.py.*app\.config.*configure.*DISTLOCK_URL"):
        registry()


@pytest.mark.usefixtures("no_stores")
def test_a_test_without_a_store_is_told_of_the_fixture(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match="the fixture distlock_fake"):
        registry()
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    with pytest.raises(ConfigurationError, match=r"DISTLOCK_URL\.$"):
        registry()


def test_the_environment_is_the_last_resort(monkeypatch: pytest.MonkeyPatch) -> None:
    module._configured = None
    monkeypatch.setenv("DISTLOCK_URL", "redis://example:6379/3")
    config = registry().store("default").config
    assert (config.backend, config.location) == ("redis", "redis://example:6379/3")
    configure({"default": {"BACKEND": "memory"}})
    assert registry().store("default").config.backend == "memory"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ModuleNotFoundError("No module", name="nowhere"), r"whose driver is not installed \(nowhere\)"),
        (
            ModuleNotFoundError("No module named 'redis.new'", name="redis.new"),
            rf"for which redis {re.escape(redis.__version__)} is too old or too new \(No module named 'redis\.new'\)",
        ),
        (ImportError("cannot import name 'New' from 'redis.lock'", name="redis.lock"), r"for which redis .*'New'"),
        (ImportError("no word of it", name="_socket"), r"for which the _socket that is installed is too old"),
    ],
)
def test_a_driver_that_is_too_old_is_not_one_that_is_missing(
    monkeypatch: pytest.MonkeyPatch, error: ImportError, said: str
) -> None:
    def fails(name: str) -> None:
        raise error

    monkeypatch.setattr(loading, "import_module", fails)
    configure({"default": {"LOCATION": "redis://127.0.0.1"}})
    with pytest.raises(ConfigurationError, match=rf"is 'redis', {said}.*: pip install \"distlock_web\[redis\]\"\.$"):
        lock("a").acquire()


@pytest.mark.parametrize(
    ("location", "extra"),
    [("postgresql://host/name", "postgresql"), ("mysql://host/name", "mysql"), ("sqlite:///file", "sqlite")],
)
def test_what_an_address_alone_needs_is_named_too(monkeypatch: pytest.MonkeyPatch, location: str, extra: str) -> None:
    """Locks in Django's database do without SQLAlchemy, so it is imported where the store is made."""
    for missing in ("sqlalchemy", "sqlalchemy.engine"):
        monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.delitem(sys.modules, "distlock_web.backends.sql.by_url", raising=False)
    configure({"default": {"LOCATION": location}})
    with pytest.raises(
        ConfigurationError, match=rf"driver is not installed \(sqlalchemy\): pip install \"distlock_web\[{extra}\]\"\.$"
    ):
        lock("a").acquire()


@pytest.mark.parametrize("url", ["redsi://example", "redis://example:port/0"])
def test_a_wrong_url_of_the_environment_is_blamed_on_its_variable(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module._configured = None
    monkeypatch.setenv("DISTLOCK_URL", url)
    with pytest.raises(ConfigurationError, match=r"^DISTLOCK_URL "):
        lock("a").acquire()


def test_a_class_that_is_no_store_is_refused_when_it_is_loaded() -> None:
    """It would fail where somebody asks for what the base class answers: in a thread that renews, for one."""
    configure({"default": {"BACKEND": f"{Path.__module__}.Path"}})
    with pytest.raises(ConfigurationError, match=r"\.Path is no store: .* distlock_web\.core\.backend\.Backend"):
        lock("a").acquire()


@pytest.mark.parametrize("scheme", ["redis", "redis+sentinel", "redis+cluster", "redlock", "zookeeper"])
@pytest.mark.parametrize(
    "password",
    [
        "gehe/imis?wort", "1234/imis?wort", "12,34,56/imis?wort=", "12,34/imis", "1234/0?imis", "1234?imis",
        "1234#imis", "12,34,56?imis#wort", "1234#imis?wort=", "12,34#gehe/imis?wort=",
    ],
)  # fmt: skip
def test_no_part_of_a_password_is_shown_that_should_have_been_encoded(scheme: str, password: str) -> None:
    """A URL ends its hosts at the first / ? or #: what stands in front would be taken for a host, and named."""
    configure({"default": {"LOCATION": f"{scheme}://user:{password}@host/name"}})
    with pytest.raises(ConfigurationError, match="%2F") as caught:
        lock("a").acquire()
    assert not re.search("gehe|imis|wort|12,?34", "".join(traceback.format_exception(caught.value)))


PARAMETERS = ["client_name=web@host1", "password=p@ss", "file_of_shop=/x@y/&client_name=a@b/1"]


@pytest.mark.parametrize("query", PARAMETERS)
@pytest.mark.parametrize(
    "place",
    [
        *(
            place.format(credentials)
            for place in (
                "unix://{}/run/redis@1.sock",
                "redis://{}h/0",
                "rediss+sentinel://{}h1,h2/name",
                "redlock://{}h1,h2,h3/0",
            )
            for credentials in ("", ":pw@", "user:p%40@")
        ),
        "redis://:pw@h:1/0",
        "redlock://user:p%40@h1:1,h2:1,h3:1/0",
    ],
)
def test_a_parameter_may_have_an_at_sign(place: str, query: str) -> None:
    """It ends no password: that stands in front, or there is no colon with which one begins."""
    configure({"default": {"LOCATION": f"{place}?{query}"}})
    assert registry().store("default").backend


@pytest.mark.parametrize("query", PARAMETERS)
@pytest.mark.parametrize("place", ["redis://h:1/0", "redlock://h1:1,h2,h3/0", "rediss+cluster://:pw@h1:1,h2/"])
def test_an_at_sign_that_may_end_a_password_has_to_be_encoded(place: str, query: str) -> None:
    """Of a user ``h`` whose password begins with a 1; or whose password has an @ of its own."""
    configure({"default": {"LOCATION": f"{place}?{query}"}})
    with pytest.raises(ConfigurationError, match="an @ as %40"):
        lock("a").acquire()
    configure({"default": {"LOCATION": f"{place}?{query.replace('@', '%40')}"}})
    assert registry().store("default").backend


def test_an_unknown_alias_is_named_with_the_one_that_was_meant() -> None:
    configure({"default": {"BACKEND": "memory"}, "stock": {"BACKEND": "memory"}})
    with pytest.raises(ConfigurationError, match=r"'stok'.*Did you mean 'stock'"):
        lock("a", store="stok").acquire()


def test_settings_that_are_wrong_are_refused_until_good_ones_come() -> None:
    """The stores before them, or those of DISTLOCK_URL, would go on in silence."""
    configure({"default": {"BACKEND": "memory"}})
    module.configure_failed(ConfigurationError("EXPIRE is -1."))
    for _ in range(2):
        with pytest.raises(ConfigurationError, match=r"^EXPIRE is -1\.$"):
            lock("a").acquire()
    configure({"default": {"BACKEND": "memory"}})
    lock("a").acquire().release()


def test_many_threads_at_once_make_one_backend() -> None:
    store = Registry({"default": {"BACKEND": "memory"}}).store("default")
    barrier, found = threading.Barrier(8), []

    def use() -> None:
        barrier.wait()
        found.append(store.backend)

    threads = [threading.Thread(target=use) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, found))) == 1


def test_stores_of_two_aliases_share_nothing() -> None:
    configure({"default": {"BACKEND": "memory"}, "stock": {"BACKEND": "memory"}})
    with lock("a") as lease, lock("a", store="stock") as other:
        assert (lease.depth, other.depth) == (1, 1)


# A store that nobody has any more -----------------------------------------------------------------------------------


def no_garbage() -> None:
    """Return when the stores that earlier tests forgot are closed, or a patch of ours would close them."""
    gc.collect()
    eventually(lambda: threads("distlock-close") == 0, "they are closed")


def dropped(monkeypatch: pytest.MonkeyPatch, close: Callable[[MemoryBackend], None]) -> None:
    """Use a store, and forget it."""
    no_garbage()
    monkeypatch.setattr(MemoryBackend, "close", close)
    _ = Registry({"default": {"BACKEND": "memory"}}).store("default").backend
    gc.collect()


def test_a_store_that_nobody_has_any_more_is_closed_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Garbage is collected anywhere, and a server may take its time."""
    closed: list[str] = []
    dropped(monkeypatch, lambda backend: closed.append(threading.current_thread().name))
    eventually(lambda: set(closed) == {"distlock-close"}, "it is closed")  # perhaps others with it


def test_what_its_end_raises_is_logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def fail(backend: MemoryBackend) -> None:
        raise LookupError("a driver's own")

    with monkeypatch.context() as patched:  # not for the stores that this test's own end closes
        dropped(patched, fail)
        eventually(lambda: "a driver's own" in caplog.text, "it is logged")


def test_without_a_thread_its_end_is_logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    no_garbage()
    with no_thread("distlock-close"):
        dropped(monkeypatch, lambda backend: None)
    assert "can't start new thread" in caplog.text


@beside_threads
@both_forks
def test_fork_while_another_thread_makes_the_backend(fork: Fork) -> None:
    """gunicorn --preload, Celery prefork: a child must not inherit a mutex that nobody will open."""
    store = configure({"default": {"BACKEND": "memory"}}).store("default")
    with module._first_use:
        in_child(lambda: store.backend, fork)


@beside_threads
def test_fork_while_another_thread_imports_the_backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The child inherited the lock of a module that was being imported, and waited for it for ever."""
    (tmp_path / "slow_to_import.py").write_text(
        "import time\ntime.sleep(0.5)\nfrom distlock_web.backends.memory import MemoryBackend\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    store = configure({"default": {"BACKEND": "slow_to_import.MemoryBackend"}}).store("default")
    first = threading.Thread(target=lambda: store.backend)
    first.start()
    eventually(lambda: "slow_to_import" in sys.modules, "it is being imported")
    try:
        in_child(lambda: store.backend)
    finally:
        first.join()
        del sys.modules["slow_to_import"]


@beside_threads
@both_forks
def test_a_fork_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch, fork: Fork) -> None:
    monkeypatch.setattr(module, "MAX_FORK_DELAY", 0.05)
    store = configure({"default": {"BACKEND": "memory"}}).store("default")
    inside, over = threading.Event(), threading.Event()

    def make() -> None:
        with module._first_use:
            inside.set()
            over.wait()

    thread = threading.Thread(target=make)
    thread.start()
    inside.wait()
    try:
        in_child(lambda: store.backend, fork)
    finally:
        over.set()
        thread.join()
    assert store.backend is not None
