"""Settings: a wrong one is refused by name, and the message says what would be right."""

from __future__ import annotations

import traceback
from datetime import timedelta
from typing import Any

import pytest

from distlock_web import ConfigurationError, attach, configure, current_lease, distributed_lockable, events, lock
from distlock_web.core.config import StoreConfig, parse, read
from distlock_web.core.registry import Registry
from distlock_web.core.setting import Setting, check_count, check_seconds, table

NOT_POSITIVE = [
    *[0, -1, -0.5, float("nan"), float("inf"), float("-inf"), 1e12, 10**400, True, "10", None, [1]],
    *["", "s", "-5s", "5 s", "5S", "1e3s", "5w", "5s1h", "1h1h", "1h30", "inf", "٥s", "0s", "9" * 400 + "h"],
    *[timedelta(0), timedelta(seconds=-1), timedelta.max],
]


def test_what_is_left_out_is_what_the_seeds_had() -> None:
    config = parse({"default": {}})["default"]
    assert (config.prefix, config.expire, config.wait, config.renew) == ("disLock:", 10.0, 0.0, False)
    assert (config.on_busy, config.on_lost, config.on_backend_error) == ("raise", "raise", "raise")


@pytest.mark.parametrize(
    ("setting", "wrong", "right"),
    [
        *[("EXPIRE", wrong, "greater than 0") for wrong in NOT_POSITIVE],
        *[
            ("WAIT", wrong, "0 or more, or None")
            for wrong in NOT_POSITIVE
            if wrong is True or wrong not in (0, None, "0s", timedelta(0))
        ],
        ("RENEW", "yes", "True or False"),
        ("RENEW", 1, "True or False"),
        ("PREFIX", None, "prefix|PREFIX"),
        ("ON_BUSY", "ignore", "'raise', 'skip' or a callable"),
        ("ON_LOST", "skip", "'raise', 'warn', 'cancel' or a callable"),
        ("ON_BACKEND_ERROR", "skip", "'raise', 'open' or a callable"),
        ("OPTIONS", [], "mapping"),
        ("LOCATION", 6379, "string"),
        ("LOCATION", "reddis://h/0", "Did you mean 'redis'"),
        ("LOCATION", "etcd://h", "It may be: redis, .*zookeeper"),
        ("CACHE", 1, "string"),
        ("BACKEND", "redsi", "Did you mean 'redis'"),
        ("BACKEND", 1, "string"),
        *[("BACKEND", wrong, "does not exist") for wrong in (".x", "x.", "a b.c", "..", "memry")],
    ],
)
def test_a_wrong_value_is_refused_by_name(setting: str, wrong: Any, right: str) -> None:
    with pytest.raises(ConfigurationError, match=right) as caught:
        parse({"default": {}, "stock": {setting: wrong}})
    assert "DISTLOCK['stock']" in str(caught.value)
    assert setting in str(caught.value)


TIMES: list[tuple[Any, float]] = [
    (90, 90.0), (timedelta(minutes=5), 300.0), ("24h", 86_400.0), ("90s", 90.0), ("1h30m", 5400.0), ("500ms", 0.5),
    ("7d", 604_800.0), ("1.5h", 5400.0), ("1d2h3m4s5ms", 93_784.005), ("1m1ms", 60.001), ("10m", 600.0),
]  # fmt: skip


@pytest.mark.parametrize(("given", "seconds"), TIMES)
def test_a_time_is_seconds_or_a_timedelta_or_text(given: Any, seconds: float) -> None:
    assert check_seconds(given, "expire") == pytest.approx(seconds, rel=1e-12)
    config = parse({"default": {"EXPIRE": given, "WAIT": given}})["default"]
    assert (config.expire, config.wait) == (check_seconds(given, "expire"),) * 2


def test_a_number_as_text_is_seconds_where_all_is_text() -> None:
    """In a URL and on a command line. In Python "10" may be a slip, so its unit is asked for."""
    assert check_seconds("2.5", "pool_timeout", text=True) == 2.5
    assert check_seconds("2m", "pool_timeout", text=True) == 120.0
    for wrong in ("soon", "nan", "inf", "-1", "1e99", ""):
        with pytest.raises(ConfigurationError, match=r"^pool_timeout is "):
            check_seconds(wrong, "pool_timeout", text=True)


@pytest.mark.usefixtures("memory_store")
def test_every_entry_point_takes_every_form_of_a_time() -> None:
    minutes = timedelta(minutes=5)
    with lock("a", expire="10m", wait="1s", renew=True, renew_for=timedelta(hours=1), hold_at_least="1ms") as lease:
        assert 550 < lease.remaining < 600
        lease.extend("20m")
        assert 1150 < lease.remaining < 1200
        assert not lease.lost.wait("1ms")
        assert not lease.lost.wait(timedelta(milliseconds=1))

    @distributed_lockable(key="b", expire=minutes, wait=timedelta(0), hold_at_least=timedelta(0))
    def locked() -> float:
        lease = current_lease()
        assert lease is not None
        return lease.remaining

    assert 250 < locked() < 300
    ticket = lock("c").acquire().detach(transit="1m30s")
    with attach(ticket, expire=minutes) as lease:
        assert 250 < lease.remaining < 300
    with lock("d") as lease:
        assert not lease.lost.wait(-1)  # as Python's own events take it
        for wrong in ("soon", "5"):
            with pytest.raises(ConfigurationError, match=rf"^transit is '{wrong}'; it has to be a number.*'1h30m'"):
                lease.detach(transit=wrong)
            for wait in (lease.lost.wait, events.flush):
                with pytest.raises(ConfigurationError, match=r"^timeout is"):
                    wait(wrong)


@pytest.mark.parametrize(
    ("given", "extra"),
    [
        ({}, "redis"),
        ({"BACKEND": "redlock"}, "redis"),
        ({"LOCATION": "redis+cluster://h"}, "redis"),
        ({"LOCATION": "mariadb+pymysql://h/x"}, "mysql"),
        ({"LOCATION": "postgres://h/x"}, "postgresql"),
        ({"LOCATION": "sqlite:///x"}, "sqlite"),
        ({"DATABASE": "default"}, "sql"),
        ({"LOCATION": "zookeeper://h"}, "zookeeper"),
    ],
)
def test_what_to_install_is_the_extra_with_the_driver(given: dict[str, str], extra: str) -> None:
    assert parse({"default": given})["default"].extra == extra


def test_a_backend_of_ones_own_may_have_any_url() -> None:
    given = {"BACKEND": "mystore.Backend", "LOCATION": "etcd://h"}
    assert parse({"default": given})["default"].location == "etcd://h"


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        (None, "mapping"),
        ("redis://localhost", "mapping"),
        ({}, "mapping"),
        ({"stock": {}}, "no entry \"default\", only 'stock'"),
        ({"default": "redis://localhost"}, "mapping of settings"),
        ({"default": {}, 5: {}}, "DISTLOCK\\[5\\]"),
        ({"default": {"EXPIRES": 5}}, "'EXPIRES', which does not exist. Did you mean 'EXPIRE'"),
        ({"default": {"expire": 5}}, "Did you mean 'EXPIRE'"),
        ({"default": {"XYZZY": 5}}, "It may be: BACKEND, LOCATION"),
        ({"default": {"LOCATION": "redis://x", "CACHE": "default"}}, "both LOCATION and CACHE"),
    ],
)
def test_a_wrong_mapping_is_refused(mapping: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        parse(mapping)


def test_every_mistake_is_told_with_the_first() -> None:
    with pytest.raises(ConfigurationError, match="EXPIRE") as refused:
        parse({"default": {"EXPIRE": 0, "WAITT": 3}, "stock": {"LOCATION": "etcd://h"}})
    first, second = refused.value.__notes__
    assert "Did you mean 'WAIT'" in first
    assert "DISTLOCK['stock']" in second


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"BACKEND": "no.such.module.Backend"}, "no.such.module.Backend"),
        ({"BACKEND": "distlock_web.backends.memory.NoSuch"}, "NoSuch"),
        ({"BACKEND": "memory", "OPTIONS": {"size": 5}}, "has OPTIONS, which the backend 'memory' does not use"),
    ],
)
def test_a_backend_that_cannot_be_made_is_explained_when_it_is_first_used(settings: Any, message: str) -> None:
    store = Registry({"default": settings}).store("default")
    with pytest.raises(ConfigurationError, match=message):
        _ = store.backend


def test_a_cache_is_refused_at_once_where_there_is_no_django() -> None:
    with pytest.raises(ConfigurationError, match=r"cache of Django.*LOCATION"):
        Registry({"default": {"BACKEND": "memory", "CACHE": "default"}})


@pytest.mark.parametrize(
    ("option", "wrong"),
    [
        *[("expire", wrong) for wrong in (0, -1, float("nan"), float("inf"), "10", True)],
        *[("wait", wrong) for wrong in (-1, float("nan"), float("inf"), "5", True)],
        *[("renew_for", wrong) for wrong in (0, -1, float("nan"), "5", True)],
        *[("hold_at_least", wrong) for wrong in (-1, float("nan"), "5", True)],
        ("renew", 1), ("renew", "no"), ("on_lost", "skip"), ("prefix", 5),
    ],
)  # fmt: skip
def test_every_option_at_every_entry_point_is_refused_by_name(option: str, wrong: Any) -> None:
    options: dict[str, Any] = {option: wrong}
    for entry_point in (lambda: lock("a", **options), lambda: distributed_lockable(**options)):
        with pytest.raises(ConfigurationError, match=f"^{option} is {wrong!r}"):
            entry_point()


def test_the_stores_settings_are_the_defaults_of_its_locks() -> None:
    configure({"default": {"BACKEND": "memory"}, "slow": {"BACKEND": "memory", "PREFIX": "s:", "EXPIRE": 77}})
    with lock("a", store="slow") as lease:
        assert lease.name == "s:a"
        assert 70 < lease.remaining < 77
    with lock("a", store="slow", prefix="", expire=5) as lease:
        assert lease.name == "a"
        assert lease.remaining < 5


@pytest.mark.usefixtures("memory_store")
def test_attach_checks_its_numbers_too() -> None:
    lease = lock("a").acquire()
    ticket = lease.detach()
    for expire in (0, -1, float("nan"), True):
        with pytest.raises(ConfigurationError, match="expire"):
            attach(ticket, expire=expire)
    attach(ticket).release()


PASSWORD = "s3cret"


@pytest.mark.parametrize(
    ("backend", "location"),
    [
        (None, f"redis://:{PASSWORD}@host:port/0"),
        (None, f"redis://:pa/{PASSWORD}@host:6379/0"),  # not encoded: the parser takes a part of it for the port
        (None, f"redis://user:{PASSWORD}#@host:6379/0"),
        (None, f"redis://:{PASSWORD}/0"),
        (None, f"redis://host:port/0?password={PASSWORD}"),
        (None, f"htpp://:{PASSWORD}@host/0"),
        (None, f":{PASSWORD}@host:6379"),
        (None, f"redis+cluster://:{PASSWORD}@h1:7000/3"),
        (None, f"redis+cluster://:{PASSWORD}@/"),
        (None, f"redis+cluster://:{PASSWORD}/@h1:7000,h2:7000"),
        (None, f"redis+sentinel://:{PASSWORD}@host:26379/name?socket_timeout=x"),
        (None, f"redis+sentinel://:{PASSWORD}/@host:26379/name"),
        (None, f"redlock://:{PASSWORD}@h1:port,h2,h3/0"),
        ("redlock", f"x//:{PASSWORD}@h1,h2,h3/0"),
        (None, f"zookeeper://user:{PASSWORD}/@host:2181"),
        (None, f"postgresql://user:{PASSWORD}@host:port/shop"),
        ("memory", f"redis://:{PASSWORD}@host/0"),
    ],
)
def test_no_message_has_the_password_of_a_url(backend: str | None, location: str) -> None:
    given = {"LOCATION": location} | ({"BACKEND": backend} if backend else {})
    with pytest.raises(ConfigurationError) as refused:
        _ = Registry({"default": given}).stores["default"].backend
    told = "".join(traceback.format_exception(refused.value))
    assert PASSWORD not in told.replace(location, "")  # the traceback has this file's lines, and no value
    assert PASSWORD not in str(refused.value)


URL = f"redis://user:{PASSWORD}@host/0"


@pytest.mark.parametrize(
    "mapping",
    [
        *[
            {"default": wrong}
            for wrong in (
                {"LOCATION": [f"redis://:{PASSWORD}@host/0"]},
                {"LOCATION": {"host": "127.0.0.1", "password": PASSWORD}},
                {"DATABASE": {"NAME": "shop", "PASSWORD": PASSWORD}},
                {"BACKEND": f"redis://:{PASSWORD}@host/0"},
                {"CACHE": ("default", PASSWORD)},
                {"EXPIRE": {"password": PASSWORD}},
                {"PREFIX": ["disLock:", PASSWORD]},
                {"RENEW": {"password": PASSWORD}},
                {"ON_BUSY": {"password": PASSWORD}},
                {"ON_BUSY": URL},
                {"ON_LOST": f"redis://user:{PASSWORD}.more@10.0.0.1/0"},
                {"ON_BACKEND_ERROR": f".{PASSWORD}@host"},
                {URL: "redis"},
                {("LOCATION", PASSWORD): URL},
            )
        ],
        *[{"default": {"BACKEND": backend, "OPTIONS": {URL: 1}}} for backend in ("memory", "redis", "zookeeper")],
        {URL: {}},
        {URL: {"EXPIRES": 1}},
        {"default": {}, URL: {"EXPIRE": 0}},
        {"default": {}, ("stock", PASSWORD): {}},
    ],
)
def test_what_is_in_the_wrong_place_is_not_repeated(mapping: dict[Any, Any]) -> None:
    """These messages are shown: on the page of locks, in logs, by ``manage.py check``."""
    configs, mistakes = read(mapping)
    told = [str(mistake) for mistake in mistakes] + [config.alias for config in configs.values()]
    if not mistakes:
        with pytest.raises(ConfigurationError) as refused:
            _ = Registry(mapping).stores["default"].backend
        told.append(str(refused.value))
    assert PASSWORD not in " ".join(told)


def test_an_alias_is_no_url() -> None:
    with pytest.raises(
        ConfigurationError, match=r"DISTLOCK\['redis://\*\*\*@host/0'\]: the alias of a store has to be a name"
    ):
        parse({"default": {}, URL: {}})
    with pytest.raises(ConfigurationError, match=r"DISTLOCK has no store 'redis://\*\*\*@host/0'"):
        Registry({"default": {}}).store(URL)
    assert parse({"default": {}, "shop@eu": {}})["shop@eu"].alias == "shop@eu"


def test_what_is_wrong_with_a_url_is_said_still() -> None:
    def wrong(location: str) -> str:
        with pytest.raises(ConfigurationError) as refused:
            _ = Registry({"default": {"LOCATION": location}}).stores["default"].backend
        return str(refused.value)

    assert "'redis://***@host:port/0'" in wrong(f"redis://:{PASSWORD}@host:port/0")
    assert "percent-encoded" in wrong(f"redis://:{PASSWORD}/x@host:6379/0")
    assert "names the database 'locks', but the databases of Redis are numbers" in wrong(
        f"redis://:{PASSWORD}@host/locks"
    )


def test_settings_that_are_shown_by_a_debugger_hide_the_password() -> None:
    store = Registry({"default": {"LOCATION": f"redis://:{PASSWORD}@host/0"}}).stores["default"]
    assert PASSWORD not in repr(store.config)


def test_a_store_reads_its_options_and_says_what_is_wrong() -> None:
    rows = table(
        Setting("timeout", check_seconds, 2.0, "seconds for an answer"),
        Setting("size", check_count, 10, "of the pool"),
    )

    def read_of(**options: Any) -> dict[str, Any]:
        return StoreConfig("slow", location="etcd://me:secret@10.0.0.1:x", options=options).read_options(rows)

    assert read_of(timeout="90s") == {"timeout": 90, "size": 10}
    with pytest.raises(ConfigurationError, match=r"DISTLOCK\['slow'\]\[\"OPTIONS\"\] has 'timeuot'.* mean 'timeout'"):
        read_of(timeuot=1)
    with pytest.raises(
        ConfigurationError, match=r"\[\"OPTIONS\"\]\['size'\] is 0; it has to be a whole number, 1 or more"
    ):
        read_of(size=0)
    config = StoreConfig("slow", location="etcd://me:secret@10.0.0.1:x")
    assert str(config.wrong_location("a URL such as etcd://10.0.0.1:2379")) == (
        "DISTLOCK['slow'][\"LOCATION\"] is 'etcd://***@10.0.0.1:x'; it has to be a URL such as etcd://10.0.0.1:2379."
    )
