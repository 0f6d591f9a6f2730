"""Prometheus metrics of all locks: ``distlock_web.prometheus.install()``, once in each process, before or after a fork.

    distlock_held                     gauge       leases that this process holds
    distlock_acquired_total           counter     locks taken
    distlock_busy_total               counter     locks refused, because another caller had them
    distlock_contended_total          counter     tries that did not find the lock free, refused or not
    distlock_wait_seconds             histogram   how long a try has waited, refused or not; 0 where it was free
    distlock_hold_seconds             histogram   how long locks were held
    distlock_renewed_total            counter     leases extended
    distlock_lost_total               counter     leases lost, by ``reason``
    distlock_let_through_total        counter     calls that ran without their lock (``on_backend_error="open"``)
    distlock_revoked_total            counter     locks released by force, by ``store`` alone
    distlock_unsent_total             counter     tasks that ``unique`` has not sent
    distlock_errors_total             counter     failures of the store, by ``store`` and ``operation``

Labels are ``store``, the alias, and ``template``: what names are made of (``order:{order_id}``, or the line of a
``lock(...)``), never a name itself. Beyond ``max_templates`` of a store the template is ``other``.

With ``PROMETHEUS_MULTIPROC_DIR`` the processes of a server share their metrics, as prometheus_client describes it.
"""

from __future__ import annotations

from collections import Counter as Tally
from typing import TypeAlias

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.metrics import MetricWrapperBase

from .locks import events
from .locks.events import Event
from .locks.live_leases import BoundedTemplates, LiveLeases

__all__ = ["HOLD_BUCKETS", "MAX_TEMPLATES", "WAIT_BUCKETS", "Metrics", "install"]

MAX_TEMPLATES = 100
WAIT_BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
HOLD_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)

_LABELS = ("store", "template")

Labels: TypeAlias = tuple[str, str]


def install(registry: CollectorRegistry = REGISTRY, max_templates: int = MAX_TEMPLATES) -> Metrics:
    """Count all locks of this process from now on, in this registry. Called again, it changes nothing."""
    metrics = _installed.get(registry)
    if metrics is None:
        metrics = _installed[registry] = Metrics(registry, max_templates)
        events.subscribe(metrics)
    return metrics


class Metrics:
    """The metrics in one registry: a listener to the events of locks, made by :func:`install`."""

    def __init__(self, registry: CollectorRegistry, max_templates: int) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, labels or _LABELS, registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(name, text, _LABELS, registry=registry, buckets=buckets)

        self._registry = registry
        self._template = BoundedTemplates(max_templates)
        self._shown: set[Labels] = set()
        self._held: Tally[Labels] = Tally()
        self._leases: LiveLeases[Labels] = LiveLeases(forgotten=self._end, inherited=self._end)
        self.held = Gauge(
            "distlock_held", "Leases that are held.", _LABELS, registry=registry, multiprocess_mode="livesum"
        )
        self.acquired = counter("distlock_acquired", "Locks taken.")
        self.busy = counter("distlock_busy", "Locks refused: somebody else had them.")
        self.contended = counter("distlock_contended", "Tries that did not find the lock free.")
        self.wait = histogram("distlock_wait_seconds", "How long a try has waited.", WAIT_BUCKETS)
        self.hold = histogram("distlock_hold_seconds", "How long locks were held.", HOLD_BUCKETS)
        self.renewed = counter("distlock_renewed", "Leases extended.")
        self.lost = counter("distlock_lost", "Leases lost.", *_LABELS, "reason")
        self.let_through = counter("distlock_let_through", "Calls that ran without their lock.")
        self.unsent = counter("distlock_unsent", "Tasks not sent: they are queued, or running.")
        self.revoked = counter("distlock_revoked", "Locks released by force.", "store")
        self.errors = counter("distlock_errors", "Failures of the store.", "store", "operation")

    def uninstall(self) -> None:
        """Count no more, and take the metrics out of the registry."""
        events.unsubscribe(self)
        _installed.pop(self._registry, None)
        for metric in vars(self).values():
            if isinstance(metric, MetricWrapperBase):
                self._registry.unregister(metric)

    def __call__(self, event: Event) -> None:
        """Count one event. In one thread: what it changes are plain numbers."""
        self._leases.look()
        if event.kind == "revoked":  # the code that does it knows no template
            self.revoked.labels(event.store).inc()
            return
        labels = (event.store, self._template(event))
        if labels not in self._shown:
            self._shown.add(labels)
            self._show(labels)
        getattr(self, f"_count_{event.kind}")(event, labels)

    def _show(self, labels: Labels) -> None:
        """Show what rarely happens from the beginning: in a number that begins with 1 Prometheus sees no increase."""
        for metric in (self.busy, self.contended, self.let_through, self.unsent):
            metric.labels(*labels)
        for reason in ("expired", "taken", "revoked", "unreachable"):
            self.lost.labels(*labels, reason)
        self.revoked.labels(labels[0])
        for operation in ("acquire", "release", "renew", "extend", "transfer"):
            self.errors.labels(labels[0], operation)

    def _count_acquired(self, event: Event, labels: Labels) -> None:
        self.acquired.labels(*labels).inc()
        self.wait.labels(*labels).observe(event.waited)
        self._leases.begin(event, labels)
        self._begin(labels)

    def _count_waited(self, event: Event, labels: Labels) -> None:
        self.contended.labels(*labels).inc()

    def _count_busy(self, event: Event, labels: Labels) -> None:
        self.busy.labels(*labels).inc()
        self.wait.labels(*labels).observe(event.waited)
        if not event.waited:  # else it was counted where it had waited
            self.contended.labels(*labels).inc()

    def _count_renewed(self, event: Event, labels: Labels) -> None:
        self.renewed.labels(*labels).inc()
        self._leases.renew(event)

    def _count_released(self, event: Event, labels: Labels) -> None:
        self.hold.labels(*labels).observe(event.held or 0.0)
        if (begun := self._leases.end(event)) is not None:
            self._end(begun)

    def _count_lost(self, event: Event, labels: Labels) -> None:
        self.lost.labels(*labels, event.reason).inc()
        self._count_released(event, labels)

    def _count_let_through(self, event: Event, labels: Labels) -> None:
        self.let_through.labels(*labels).inc()

    def _count_unsent(self, event: Event, labels: Labels) -> None:
        self.unsent.labels(*labels).inc()

    def _count_error(self, event: Event, labels: Labels) -> None:
        self.errors.labels(event.store, event.reason).inc()

    # The gauge is set, never incremented: whether a forked child finds its parent's number in it depends on whether
    # prometheus_client runs with PROMETHEUS_MULTIPROC_DIR.

    def _begin(self, labels: Labels) -> None:
        self._held[labels] += 1
        self.held.labels(*labels).set(self._held[labels])

    def _end(self, labels: Labels) -> None:
        self._held[labels] -= 1
        self.held.labels(*labels).set(self._held[labels])


_installed: dict[CollectorRegistry, Metrics] = {}
