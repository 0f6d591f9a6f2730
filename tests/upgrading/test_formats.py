"""Formats: a newer one is refused with a sentence, and the older one is written until somebody says otherwise."""

from __future__ import annotations

import base64
import json
import sys
from functools import partial
from types import ModuleType
from typing import Any

import pytest
import redis
from sqlalchemy import text

from distlock_web import ConfigurationError, attach, configure, lock, once
from distlock_web.core.formats import BEFORE, NEWEST
from distlock_web.locks.handover import Ticket
from distlock_web.locks.hooks import Asked
from distlock_web.locks.records import LOST, Record
from tests.support.stores.redlock import redlock_url
from tests.support.stores.sql import somebody_elses
from tests.support.stores.zookeeper import zookeeper_client

SENTENCE = f"order:7.* format {NEWEST + 1} by a newer version.* reads formats {BEFORE} and {NEWEST}. Update it"


def refused() -> None:
    for wait in (0, 1):
        with pytest.raises(ConfigurationError, match=SENTENCE):
            lock("order:7", wait=wait).acquire()


@pytest.mark.parametrize("kind", ["string", "hash"])
def test_a_newer_lock_on_redis(redis_store: str, kind: str) -> None:
    with redis.Redis.from_url(redis_store) as client:
        if kind == "string":
            client.set("disLock:order:7", f"distlock/{NEWEST + 1}\n{{}}", px=60_000)
        else:
            client.hset("disLock:order:7", f"distlock/{NEWEST + 1}", "{}")
        refused()
        assert client.exists("disLock:order:7")


def test_a_newer_lock_on_redlock(redlock_nodes: list[Any]) -> None:
    configure({"default": {"LOCATION": redlock_url(redlock_nodes)}})
    for node in redlock_nodes:
        with redis.Redis.from_url(node.url) as client:
            client.set("disLock:order:7", f"distlock/{NEWEST + 1}\n{{}}", px=60_000)
    refused()


def test_a_newer_lock_in_a_database(sqlite_settings: dict[str, Any]) -> None:
    configure({"default": sqlite_settings})
    with lock("order:7"):
        pass
    with somebody_elses(sqlite_settings) as connection:
        connection.execute(text("UPDATE distlock_lease SET state = :state"), {"state": f"format {NEWEST + 1}"})
    refused()


def test_a_newer_lock_in_zookeeper(zookeeper_settings: dict[str, Any], zookeeper_server: Any) -> None:
    configure({"default": zookeeper_settings})
    with lock("order:7"):
        pass
    chroot = "/" + zookeeper_settings["LOCATION"].rpartition("/")[2]
    with zookeeper_client(zookeeper_server.port) as client:
        client.set(f"{chroot}/distlock/disLock:order:7", json.dumps({"format": NEWEST + 1}).encode())
    refused()


@pytest.mark.usefixtures("memory_store")
def test_a_newer_ticket_is_refused_and_one_of_today_is_read_by_before() -> None:
    newer = base64.urlsafe_b64encode(json.dumps(["anything", {"format": NEWEST + 1}]).encode()).decode()
    with pytest.raises(ConfigurationError, match=f"format {NEWEST + 1}"):
        attach(newer)
    ticket = lock("a", renew=True, renew_for=50, hold_at_least=20).acquire().detach(60)
    store, held, expire, renew, prefix, _ = json.loads(base64.urlsafe_b64decode(ticket))  # as f11b646 reads it
    assert (store, held[0][0], expire, renew, prefix) == ("default", "disLock:a", 10, True, "disLock:")
    assert Ticket.loads(ticket).renew_for == pytest.approx(50, rel=0.5)


@pytest.mark.parametrize("form", [BEFORE, NEWEST])
@pytest.mark.parametrize(
    "result",
    [LOST, None, {"n": [1]}, {"": ["Decimal", "9.90"]}, {"": ["tuple", [1]]}],
    ids=["lost", "none", "plain", "decimal", "tuple"],
)
@pytest.mark.parametrize(
    "kept", [None, {"value": 1}, {"value": 1, "before": {"body": "1"}}], ids=["none", "value", "both"]
)
def test_a_record_is_the_same_in_both_formats(form: int, result: Any, kept: dict[str, Any] | None) -> None:
    asked = Asked("now", "then")
    text = Record(asked, kept, result).dumps(form)
    read = Record.loads(text, "disLock:a")
    assert (read.is_for(asked), read.is_for(Asked("other", "then"))) == (True, False)
    assert read.result == result
    assert (read.kept or {}).get("value") == (kept or {}).get("value")
    said = json.loads(text)
    if form == BEFORE:  # what f11b646 reads: it has to be there
        assert (said["asked"], "format" in said) == ("then", False)
        assert said["result"] == (result if isinstance(result, dict) and "n" in result else None)
        assert (said["kept"] or {}).get("body") == ((kept or {}).get("before") or {}).get("body")
    else:
        assert (said["format"], said["asked"]) == (NEWEST, "now")
        assert "before" not in (said["kept"] or {})


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The records that are read."""
    read: list[str] = []
    loads = Record.loads

    def seen(text: str, name: str) -> Record:
        read.append(text)
        return loads(text, name)

    monkeypatch.setattr(Record, "loads", seen)
    return read


@pytest.mark.parametrize("form", [None, BEFORE, NEWEST])
def test_the_older_format_is_written_until_somebody_says_otherwise(form: int | None, stored: list[str]) -> None:
    configure({"default": {"BACKEND": "memory", **({} if form is None else {"FORMAT": form})}})

    @once(key="a", keep=60, result=True)
    def run() -> tuple[int, ...]:
        return (7,)

    assert [run(), run()] == [(7,), (7,)]
    (text,) = stored
    assert json.loads(text).get("format", BEFORE) == (form or BEFORE)


def test_a_newer_record_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=f"'disLock:a'.*format {NEWEST + 1}"):
        Record.loads(json.dumps({"format": NEWEST + 1}), "disLock:a")


@pytest.mark.parametrize("given", [0, NEWEST + 1, "2", True, 1.0])
def test_a_format_that_there_is_not_is_refused(given: Any) -> None:
    with pytest.raises(ConfigurationError, match="FORMAT"):
        configure({"default": {"BACKEND": "memory", "FORMAT": given}})


class Job:
    def __call__(self) -> str:
        return "done"

    def run(self) -> str:
        return "done"


class Nightly(Job):
    pass


def job() -> str:
    return "done"


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (job, "job"),
        (Job(), "Job(...)"),
        (partial(job), "job(...)"),
        (partial(Nightly()), "Nightly(...)(...)"),
        (partial(Nightly().run), "Nightly.run"),  # as Django's method_decorator hands it over
    ],
)
@pytest.mark.parametrize("module", ["__main__", "__mp_main__", "shop"])
def test_a_function_of_the_program_has_the_name_that_it_had(
    memory_store: None, monkeypatch: pytest.MonkeyPatch, stored: list[str], module: str, function: Any, name: str
) -> None:
    """Of the version before its record was ``__main__.job``'s, and a repeated call was told of another function.

    Of an object that can be called there was none: each call raised ``AttributeError``.
    """
    for defined in (job, Job, Nightly):
        monkeypatch.setattr(defined, "__module__", module)
    program = ModuleType(module)
    program.__file__ = "/srv/jobs.py"
    monkeypatch.setitem(sys.modules, module, program)
    locked = once(key="nightly", keep=60)(function)
    assert [locked(), locked()] == ["done", None]
    [record] = map(json.loads, stored)
    assert record["asked"] == f"{module}.{name}"
    assert record["beside"]["asked"] == f"{'shop' if module == 'shop' else 'jobs'}.{name}"
