"""Spans and metrics as an OpenTelemetry SDK gets them, in memory."""

from __future__ import annotations

import contextvars
import threading
import tomllib
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode, Tracer

from distlock_web import BackendUnavailable, LeaseLost, LockBusy, distributed_lockable, lock, request_scope
from distlock_web.core.registry import registry
from distlock_web.core.request_id import Origin, swap_origin
from distlock_web.core.runtime import now
from distlock_web.locks import live_leases
from distlock_web.opentelemetry import Telemetry, install
from distlock_web.ops.held_locks import list_all
from distlock_web.testing.fault_injector import FaultInjector
from tests.support.callers import unrelated
from tests.support.revoking import revoke_the_lock
from tests.support.source import PROJECT
from tests.support.waiting import PATIENCE, eventually

pytestmark = pytest.mark.usefixtures("memory_store")


class Collected:
    def __init__(self) -> None:
        self._spans, self._reader = InMemorySpanExporter(), InMemoryMetricReader()
        self._tracers, self._meters = TracerProvider(), MeterProvider([self._reader])
        self._tracers.add_span_processor(SimpleSpanProcessor(self._spans))
        self.tracer: Tracer = self._tracers.get_tracer("the program")
        self.telemetry: Telemetry = install(self._tracers, self._meters, max_templates=3)

    def spans(self, name: str = "") -> list[ReadableSpan]:
        self.telemetry.flush(PATIENCE)
        return [span for span in self._spans.get_finished_spans() if span.name.startswith(name)]

    def points(self, name: str) -> list[Any]:
        self.telemetry.flush(PATIENCE)
        data = self._reader.get_metrics_data()
        metrics = [m for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics] if data else []
        return [point for metric in metrics if metric.name == name for point in metric.data.data_points]

    def close(self) -> None:
        self.telemetry.uninstall()
        self._tracers.shutdown()
        self._meters.shutdown()


def said(span: ReadableSpan) -> dict[str, Any]:
    assert span.attributes is not None
    return dict(span.attributes)


def seconds(span: ReadableSpan) -> float:
    assert span.start_time is not None
    assert span.end_time is not None
    return (span.end_time - span.start_time) / 1e9


@pytest.fixture
def otel() -> Iterator[Collected]:
    collected = Collected()
    yield collected
    collected.close()


@distributed_lockable(key="order:{number}")
def pay(number: int) -> None:
    pass


def test_a_lock_is_a_span_below_the_one_that_runs(otel: Collected) -> None:
    with otel.tracer.start_as_current_span("GET /pay") as request, request_scope("r-1"):
        pay(7)
    [span] = otel.spans("lock")
    assert span.name == "lock hold order:{number}"
    assert span.parent is not None
    assert span.parent.span_id == request.get_span_context().span_id
    assert said(span) | {"distlock.fence": ""} == {
        "distlock.store": "default",
        "distlock.name": "disLock:order:7",
        "distlock.template": "order:{number}",
        "distlock.outcome": "released",
        "distlock.request_id": "r-1",
        "distlock.fence": "",
    }
    assert seconds(span) > 0
    assert span.status.status_code is StatusCode.UNSET


def test_a_wait_is_a_span_before_it(otel: Collected) -> None:
    held = unrelated("a")
    waiter = threading.Thread(target=contextvars.Context().run, args=(lambda: lock("a", wait=PATIENCE).acquire(),))
    waiter.start()
    eventually(lambda: list_all(registry()).rows[0].lock.waiters, "somebody waits")
    held.release()
    waiter.join()
    [wait] = otel.spans("lock wait")
    assert said(wait)["distlock.outcome"] == "acquired"
    assert seconds(wait) > 0


@pytest.mark.parametrize("wait", [0, 0.02])
def test_a_refusal_says_who_had_it(otel: Collected, wait: float) -> None:
    held = contextvars.copy_context()
    held.run(lambda: swap_origin(Origin("first", "nightly", "0" * 24)))
    lease = held.run(lock("a").acquire)
    with pytest.raises(LockBusy):
        lock("a", wait=wait).acquire()
    [span] = otel.spans("lock wait")
    assert said(span)["distlock.outcome"] == "busy"
    assert str(said(span)["distlock.holder"]).endswith(", request first")
    assert (seconds(span) > 0.001) == bool(wait)
    [point] = otel.points("distlock.busy")
    assert point.value == 1
    held.run(lease.release)


def test_a_loss_is_an_error(otel: Collected) -> None:
    with pytest.raises(LeaseLost), lock("a"):
        revoke_the_lock()
    [span] = otel.spans("lock hold")
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "lost: revoked")
    [point] = otel.points("distlock.lost")
    assert point.attributes["reason"] == "revoked"


def test_a_store_that_fails_is_an_error(otel: Collected) -> None:
    FaultInjector(registry().store("default")).cut()
    with pytest.raises(BackendUnavailable):
        lock("a").acquire()
    [span] = otel.spans("lock failure")
    assert span.status.status_code is StatusCode.ERROR
    [point] = otel.points("distlock.errors")
    assert point.attributes["reason"] == "acquire"


def test_the_metrics_never_name_a_lock_and_their_templates_are_bounded(otel: Collected) -> None:
    for number in range(20):
        pay(number)
        distributed_lockable(key=f"export-{number}")(lambda: None)()
    points = otel.points("distlock.acquired")
    assert {point.attributes["template"]: point.value for point in points} == {
        "order:{number}": 20,
        "export-0": 1,
        "export-1": 1,
        "other": 18,
    }
    for name in ("distlock.wait", "distlock.hold"):
        assert sum(point.count for point in otel.points(name)) == 40
    assert {span.name for span in otel.spans("lock hold")} == {
        "lock hold order:{number}",
        "lock hold export-0",
        "lock hold export-1",
        "lock hold other",
    }


def test_a_lease_that_is_forgotten_ends_with_its_time(otel: Collected, monkeypatch: pytest.MonkeyPatch) -> None:
    time = now()
    monkeypatch.setattr(live_leases, "now", lambda: time)
    unrelated("a", expire=100)
    assert otel.spans("lock hold") == []
    assert sum(point.value for point in otel.points("distlock.held")) == 1
    time += 101
    pay(1)
    [forgotten] = [span for span in otel.spans("lock hold") if said(span)["distlock.name"] == "disLock:a"]
    assert said(forgotten)["distlock.outcome"] == "forgotten"
    assert sum(point.value for point in otel.points("distlock.held")) == 0


def test_opentelemetrys_own_command_finds_it() -> None:
    """``opentelemetry-instrument`` loads the entry point, calls it, and then ``instrument``."""
    entry = tomllib.loads((PROJECT / "pyproject.toml").read_text("utf-8"))["project"]["entry-points"]
    [(name, value)] = entry["opentelemetry_instrumentor"].items()
    instrumentor = EntryPoint(name, value, "opentelemetry_instrumentor").load()()
    exporter, tracers = InMemorySpanExporter(), TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    instrumentor.instrument(tracer_provider=tracers, raise_exception_on_conflict=True)
    try:
        with lock("order:7"):
            pass
        install().flush(PATIENCE)
        assert next(span.name for span in exporter.get_finished_spans()).startswith("lock hold ")
    finally:
        instrumentor.uninstrument()
    instrumentor.uninstrument()
    with lock("order:7"):
        pass
    assert len(exporter.get_finished_spans()) == 1
