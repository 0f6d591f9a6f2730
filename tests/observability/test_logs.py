"""Log records have fields for programs."""

from __future__ import annotations

import ast
import json
import logging
import time
from typing import Any

import pytest

from distlock_web import LeaseLost, distributed_lockable, events, lock, request_scope
from distlock_web.core.registry import registry
from distlock_web.ops.held_locks import force_release, list_all
from tests.support.callers import unrelated
from tests.support.source import FILES, below, shown, tree

TTL = 0.5


def fields(record: logging.LogRecord) -> dict[str, Any]:
    """What a formatter that writes JSON would add to the line."""
    return {name: value for name, value in vars(record).items() if name.startswith("lock_")}


def records(caplog: pytest.LogCaptureFixture, **wanted: object) -> list[logging.LogRecord]:
    return [record for record in caplog.records if fields(record).items() >= wanted.items()]


@distributed_lockable(key="report:{day}", expire=TTL, on_lost="warn")
def report(day: int) -> str:
    time.sleep(2 * TTL)
    return "done"


SAID = {"lock_store": "default", "lock_name": "disLock:report:7", "lock_template": "report:{day}"}


@pytest.mark.timing
def test_a_loss_that_is_only_logged(memory_store: None, caplog: pytest.LogCaptureFixture) -> None:
    assert report(7) == "done"
    [record] = records(caplog, lock_event="lost", lock_reason="expired", **SAID)
    assert record.levelno == logging.WARNING
    assert fields(record)["lock_function"].endswith("report")


def test_who_released_by_force_cannot_forge_a_line(memory_store: None, caplog: pytest.LogCaptureFixture) -> None:
    seen: list[events.Event] = []
    events.subscribe(seen.append, inline=True)
    events.subscribe(events.log, inline=True)
    unrelated("a")
    [row] = list_all(registry()).rows
    force_release(registry(), row, by="ada\nforged")
    assert [event.reason for event in seen if event.kind == "revoked"] == ["ada\N{REPLACEMENT CHARACTER}forged"]
    assert len(caplog.messages) == 2  # in the words of each of the two loggers
    assert [record.getMessage() for record in caplog.records if "\n" in f"{record.getMessage()}{fields(record)}"] == []


def test_a_release_by_force_says_whose_lock_it_was(memory_store: None, caplog: pytest.LogCaptureFixture) -> None:
    with request_scope("r-1"):
        held = lock("report:7").acquire()
    [row] = list_all(registry()).rows
    force_release(registry(), row, by="ada")
    [record] = records(caplog, lock_event="revoked", lock_request_id="r-1")
    assert fields(record)["lock_function"] == fields(record)["lock_template"] == row.holder.function != ""
    with pytest.raises(LeaseLost):
        held.release()


def test_the_fields_can_be_written_as_json_and_hide_nothing_of_a_record(
    memory_store: None, caplog: pytest.LogCaptureFixture
) -> None:
    events.subscribe(events.log, inline=True)
    with caplog.at_level(logging.INFO, "distlock_web.events"), lock("a"):
        pass
    taken, released = caplog.records
    assert taken.getMessage() == "Lock 'disLock:a' in the store 'default': acquired"
    assert (fields(taken)["lock_event"], fields(released)["lock_event"]) == ("acquired", "released")
    assert fields(released)["lock_held"] > 0
    for record in (taken, released):
        assert json.loads(json.dumps(fields(record))) == fields(record)


#: What speaks of no lock: a listener or a receiver that raises, threads of ours, settings.
OF_NO_LOCK = (
    "The receiver %r", "The listener %r", "%r cannot keep up",
    "The watchdog failed", '%s", other', "distlock_web does not know", "DISTLOCK_USER failed",
)  # fmt: skip


def test_every_line_that_speaks_of_a_lock_has_fields() -> None:
    """Core and the backends speak of threads, settings and servers: what a lock is made of they do not know."""
    without, of_no_lock = [], set()
    for file in sorted({*FILES} - {*below("backends"), *below("core"), *below("kit")}):
        for call in (node for node in ast.walk(tree(file)) if isinstance(node, ast.Call)):
            match call.func:
                case ast.Attribute(ast.Name("logger" | "_event_logger"), method) if method != "isEnabledFor":
                    beginnings = [text for text in OF_NO_LOCK if f'"{text}' in ast.unparse(call).replace("'", '"')]
                    of_no_lock.update(beginnings)
                    if not beginnings and "extra" not in {keyword.arg for keyword in call.keywords}:
                        without.append(f"{shown(file)}:{call.lineno}")
    assert without == []
    assert of_no_lock == set(OF_NO_LOCK), "an exception that nobody needs any more"
