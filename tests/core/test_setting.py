"""All that can be set, row by row: the default is right, a slip is named, and messages name what there is."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from typing import Any

import pytest

from distlock_web import ConfigurationError, distributed_lockable, lock, once
from distlock_web.core.config import SETTINGS, STORES, StoreConfig, parse
from distlock_web.core.registry import Registry
from distlock_web.core.setting import Setting, Settings
from distlock_web.locks.call_options import CALL_OPTIONS, CallOptions
from distlock_web.locks.decorator import OPTIONS as FUNCTION_OPTIONS
from distlock_web.locks.decorator import FunctionOptions
from distlock_web.locks.once import OPTIONS as ONCE_OPTIONS
from distlock_web.locks.once import OnceOptions
from distlock_web.locks.options import OPTIONS as LOCK_OPTIONS
from distlock_web.locks.options import LockOptions
from distlock_web.web.settings import PROJECT_SETTINGS, unknown_settings
from tests.support.source import FILES

#: A ``LOCATION`` under which a store takes all of its options.
LOCATIONS = {
    "redis": "rediss+sentinel://127.0.0.1/mymaster",
    "redis-cluster": "rediss+cluster://127.0.0.1",
    "redlock": "redlock+rediss://10.0.0.1,10.0.0.2,10.0.0.3",
    "sql": "sqlite:////no/such/file",
    "zookeeper": "zookeeper://127.0.0.1",
}


def options_of(store: str) -> Settings:
    module, _, name = StoreConfig("", store).path.rpartition(".")
    found: Settings = getattr(import_module(module), name).options
    return found


def every_row() -> Iterator[Any]:
    tables = {"DISTLOCK": SETTINGS, "project": PROJECT_SETTINGS, "lock": LOCK_OPTIONS}
    tables |= {"decorator": FUNCTION_OPTIONS, "once": ONCE_OPTIONS}
    tables |= {store: options_of(store) for store in LOCATIONS}
    for where, rows in tables.items():
        for name, row in rows.items():
            yield pytest.param(name, row, id=f"{where}-{name}")


def test_every_store_with_options_is_tried_here() -> None:
    assert set(LOCATIONS) == {*STORES} - {"memory"}


@pytest.mark.parametrize(("name", "row"), list(every_row()))
def test_a_row_has_its_name_a_meaning_and_a_default_that_is_right(name: str, row: Setting) -> None:
    assert row.name == name
    assert row.meaning
    if row.default is not None:
        assert row.check(row.default, name) == row.default


def test_the_options_are_those_of_the_types() -> None:
    for rows, kind in (
        (LOCK_OPTIONS, LockOptions),
        (CALL_OPTIONS, CallOptions),
        (FUNCTION_OPTIONS, FunctionOptions),
        (ONCE_OPTIONS, OnceOptions),
    ):
        assert list(rows) == list(kind.__annotations__)
    assert {name.lower() for name in SETTINGS} == set(StoreConfig.__dataclass_fields__) - {"alias", "resource"}


def slips() -> Iterator[Any]:
    for store in LOCATIONS:
        for name in options_of(store):
            if name != "server":  # which only fakeredis has
                yield pytest.param(store, name, id=f"{store}-{name}")


@pytest.mark.parametrize(("store", "name"), list(slips()))
def test_a_slip_in_the_options_of_a_store_is_named_with_what_was_meant(store: str, name: str) -> None:
    given = {"LOCATION": LOCATIONS[store], "OPTIONS": {f"{name}_": 1}}
    with pytest.raises(ConfigurationError, match=rf"has '{name}_', which does not exist\. Did you mean '{name}'\?"):
        _ = Registry({"default": given}).stores["default"].backend


@pytest.mark.parametrize("name", [*SETTINGS])
def test_a_slip_in_the_settings_of_a_store_is_named_with_what_was_meant(name: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"'{name}_', which does not exist\. Did you mean '{name}'\?"):
        parse({"default": {f"{name}_": 1}})


@pytest.mark.parametrize("name", [*PROJECT_SETTINGS])
def test_a_slip_in_the_settings_of_a_project_is_named_with_what_was_meant(name: str) -> None:
    [slip], others = unknown_settings([f"{name}_"], "settings.py has")
    assert str(slip).endswith(f"'{name}_', which does not exist. Did you mean {name!r}?")
    assert others == []


def options() -> Iterator[Any]:
    taken: dict[str, tuple[Callable[..., object], Settings]] = {
        "lock": (partial(lock, "a"), LOCK_OPTIONS),
        "distributed_lockable": (distributed_lockable, FUNCTION_OPTIONS),
        "once": (once, ONCE_OPTIONS),
    }
    for function, (call, rows) in taken.items():
        for name in rows:
            yield pytest.param(call, name, id=f"{function}-{name}")


@pytest.mark.parametrize(("call", "name"), list(options()))
def test_a_slip_in_an_option_is_named_with_what_was_meant(call: Callable[..., object], name: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"'{name}_', which does not exist\. Did you mean '{name}'\?"):
        call(**{f"{name}_": 1})


def test_messages_name_no_option_that_there_is_not() -> None:
    known = {name for store in LOCATIONS for name in options_of(store)} | {*LOCK_OPTIONS, *ONCE_OPTIONS}
    named = {
        (path.name, name)
        for path in FILES
        for name in re.findall(r"""OPTIONS(?:\[['"]|: |: \{+")(\w+)""", path.read_text("utf-8"))
    }
    assert {("faults.py", "connect_args"), ("diagnose.py", "min_replicas")} <= named
    assert [(file, name) for file, name in sorted(named) if name not in known] == []


def test_messages_name_no_setting_that_there_is_not() -> None:
    said = re.compile(r"""(?:where\}\[|setting\()["']([A-Z_]+)["']""")
    named = {name for path in FILES for name in said.findall(path.read_text("utf-8"))}
    assert {"LOCATION", "OPTIONS", "PREFIX"} <= named <= {*SETTINGS, *PROJECT_SETTINGS}
