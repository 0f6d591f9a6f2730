"""OpenTelemetry spans and metrics of all locks: ``distlock_web.opentelemetry.install()``, once in each process.

Only the API is needed here; what becomes of spans and metrics is the SDK's business, as the project configures it.

    lock wait {template}     a try that did not find the lock free: the time in the queue, none if it did not wait
    lock hold {template}     from the lock to its end; an error where it was lost
    lock failure {template}  the store failed: an error

They are children of the span that is current where the lock is taken, and never become the current one: spans that are
made under a lock keep the parent that they would have without it.

Metrics: ``distlock.held``, ``distlock.acquired``, ``distlock.busy``, ``distlock.lost``, ``distlock.errors``,
``distlock.let_through``, ``distlock.unsent``, ``distlock.wait`` and ``distlock.hold`` (histograms, in seconds), by
store and template; never by a lock's name, which stands in the spans alone.
"""

from __future__ import annotations

import atexit
from typing import Any, NamedTuple

from opentelemetry import context, metrics, trace
from opentelemetry.context import Context
from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import Span, Status, StatusCode, TracerProvider

from .core.setting import Duration, check_timeout
from .locks import events
from .locks.events import Background, Event
from .locks.live_leases import BoundedTemplates, LiveLeases

__all__ = ["MAX_TEMPLATES", "Instrumentor", "Telemetry", "install"]

MAX_TEMPLATES = 100


def install(
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
    max_templates: int = MAX_TEMPLATES,
) -> Telemetry:
    """Trace and count all locks of this process from now on. Providers that are left out are the global ones.

    Called again, it changes nothing.
    """
    global _installed
    if _installed is None:
        _installed = Telemetry(tracer_provider, meter_provider, max_templates)
        events.subscribe(_installed.listen, inline=True)
        atexit.register(_installed.flush)  # after the providers were made: so before they are shut down
    return _installed


class Instrumentor:
    """What ``opentelemetry-instrument`` finds by its entry point: no line of the program is needed."""

    def instrument(self, **options: Any) -> None:
        """:func:`install`, with ``tracer_provider`` and ``meter_provider`` if they are given."""
        install(options.get("tracer_provider"), options.get("meter_provider"))

    def uninstrument(self, **options: Any) -> None:
        if _installed is not None:
            _installed.uninstall()


class Held(NamedTuple):
    """What was begun with a lease."""

    span: Span
    labels: dict[str, str]


class Telemetry:
    """Spans and metrics of locks, made by :func:`install`."""

    def __init__(
        self, tracer_provider: TracerProvider | None, meter_provider: MeterProvider | None, max_templates: int
    ) -> None:
        self._tracer = trace.get_tracer("distlock_web", tracer_provider=tracer_provider)
        meter = metrics.get_meter("distlock_web", meter_provider=meter_provider)
        self._held = meter.create_up_down_counter("distlock.held", description="Leases that are held.")
        self._counters = {
            "acquired": meter.create_counter("distlock.acquired", description="Locks taken."),
            "busy": meter.create_counter("distlock.busy", description="Locks refused: somebody else had them."),
            "lost": meter.create_counter("distlock.lost", description="Leases lost."),
            "error": meter.create_counter("distlock.errors", description="Failures of the store."),
            "let_through": meter.create_counter("distlock.let_through", description="Calls without their lock."),
            "unsent": meter.create_counter("distlock.unsent", description="Tasks not sent: queued, or running."),
        }
        self._wait = meter.create_histogram("distlock.wait", "s", "How long a try has waited.")
        self._hold = meter.create_histogram("distlock.hold", "s", "How long locks were held.")
        self._template = BoundedTemplates(max_templates)
        self._leases: LiveLeases[Held] = LiveLeases(forgotten=self._forgotten, inherited=self._inherited)
        # The SDK's own locks are not reentrant, and a lock may be released while garbage is collected, anywhere.
        self._aside = Background(self._record)

    def listen(self, event: Event) -> None:
        """Take note of an event, and of the span that runs."""
        self._aside(event, context.get_current())

    def flush(self, timeout: Duration = 1.0) -> None:
        """Wait until what has happened so far has been handed to the SDK, before that is flushed or shut down."""
        self._aside.flush(check_timeout(timeout))

    def uninstall(self) -> None:
        global _installed
        events.unsubscribe(self.listen)
        atexit.unregister(self.flush)
        _installed = None

    def _record(self, event: Event, around: Context) -> None:
        """One event, and the context in which it happened. In one thread."""
        self._leases.look()
        if event.kind == "revoked":  # its holder tells of the loss; the code that revokes it knows no template
            return
        labels = {"store": event.store, "template": self._template(event)}
        if event.kind in self._counters:
            reason = {"reason": event.reason} if event.kind in ("lost", "error") else {}
            self._counters[event.kind].add(1, labels | reason, around)
        if event.kind in ("acquired", "busy"):
            self._wait.record(event.waited, labels, around)
            if event.waited or event.kind == "busy":
                self._span("wait", event, labels, around, event.at - event.waited).end(_ns(event.at))
        if event.kind == "acquired":
            self._held.add(1, labels, around)
            self._leases.begin(event, Held(self._span("hold", event, labels, around, event.at), labels))
        elif event.kind == "renewed":
            self._leases.renew(event)
        elif event.kind in ("released", "lost"):
            self._hold.record(event.held or 0.0, labels, around)
            self._end(event)
        elif event.kind == "error":
            span = self._span("failure", event, labels, around, event.at)
            span.set_status(Status(StatusCode.ERROR, event.detail))
            span.end(_ns(event.at))

    def _span(self, what: str, event: Event, labels: dict[str, str], around: Context, since: float) -> Span:
        attributes = {
            "distlock.store": event.store,
            "distlock.name": event.name,
            "distlock.template": event.template,
            "distlock.outcome": event.kind,
            "distlock.request_id": event.request_id,
        }
        if event.fence is not None:
            attributes["distlock.fence"] = str(event.fence)  # as text: some viewers round large numbers
        if event.other is not None:
            attributes["distlock.holder"] = event.other.describe()
        return self._tracer.start_span(
            f"lock {what} {labels['template']}", around, attributes=attributes, start_time=_ns(since)
        )

    def _end(self, event: Event) -> None:
        begun = self._leases.end(event)
        if begun is None:
            return
        self._held.add(-1, begun.labels)
        begun.span.set_attribute("distlock.outcome", event.kind)
        if event.reason:
            begun.span.set_attribute("distlock.reason", event.reason)
        if event.kind == "lost":
            begun.span.set_status(Status(StatusCode.ERROR, f"lost: {event.reason}"))
        begun.span.end(_ns(event.at))

    def _forgotten(self, begun: Held) -> None:
        self._held.add(-1, begun.labels)
        begun.span.set_attribute("distlock.outcome", "forgotten")
        begun.span.end()

    def _inherited(self, begun: Held) -> None:
        self._held.add(-1, begun.labels)  # the span is the parent's to end


def _ns(seconds: float) -> int:
    return int(seconds * 1_000_000_000)


_installed: Telemetry | None = None
