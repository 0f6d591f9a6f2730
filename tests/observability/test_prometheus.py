"""Prometheus metrics, read by the parser of a Prometheus client."""

from __future__ import annotations

import contextvars
import os
import threading
from collections.abc import Callable, Iterator

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from distlock_web import BackendUnavailable, Lease, LeaseLost, LockBusy, configure, distributed_lockable, events, lock
from distlock_web.core.registry import registry as stores
from distlock_web.core.runtime import now
from distlock_web.locks import live_leases
from distlock_web.ops.held_locks import force_release, list_all
from distlock_web.prometheus import install
from distlock_web.testing.fault_injector import FaultInjector
from tests.support.callers import unrelated
from tests.support.waiting import PATIENCE, eventually

Numbers = dict[tuple[str, ...], float]


class Scraper:
    """What Prometheus would see."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry

    def __call__(self, name: str) -> Numbers:
        """The samples of this name, by the values of their labels, in the order of the labels' names."""
        events.flush(PATIENCE)
        text = generate_latest(self.registry).decode()
        return {
            tuple(value for _, value in sorted(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name
        }

    def changed(self, name: str) -> Numbers:
        """The same without those that are 0."""
        return {labels: value for labels, value in self(name).items() if value}

    def one(self, name: str) -> float:
        return sum(self(name).values())


@pytest.fixture
def scrape(store: str) -> Iterator[Scraper]:
    registry = CollectorRegistry()
    metrics = install(registry)
    yield Scraper(registry)
    metrics.uninstall()


@distributed_lockable(key="order:{number}", expire=10)
def pay(number: int) -> None:
    pass


def test_locks_are_counted_by_template_and_never_by_name(scrape: Scraper) -> None:
    for number in range(5):
        pay(number)
    where = ("default", "order:{number}")
    assert scrape("distlock_acquired_total") == {where: 5}
    assert scrape("distlock_wait_seconds_count") == scrape("distlock_hold_seconds_count") == {where: 5}
    assert scrape("distlock_wait_seconds_sum") == {where: 0}
    assert scrape("distlock_held") == {where: 0}
    assert "order:3" not in generate_latest(scrape.registry).decode()


def test_what_is_refused_and_what_is_contended(scrape: Scraper) -> None:
    held = unrelated("a")
    for wait in (0, 0.02):
        with pytest.raises(LockBusy):
            lock("a", wait=wait).acquire()
    assert scrape.one("distlock_busy_total") == 2
    assert scrape.one("distlock_contended_total") == 2
    waiter = threading.Thread(target=contextvars.Context().run, args=(lock("a", wait=PATIENCE).acquire,))
    waiter.start()
    eventually(lambda: list_all(stores()).rows[0].lock.waiters, "somebody waits")
    held.release()
    waiter.join()
    assert scrape.one("distlock_contended_total") == 3
    assert scrape.one("distlock_busy_total") == 2
    assert scrape.one("distlock_wait_seconds_count") == 4  # each try once
    assert scrape.one("distlock_wait_seconds_sum") > 0


def test_what_is_lost_and_why(scrape: Scraper) -> None:
    with pytest.raises(LeaseLost), lock("a"):
        [row] = list_all(stores()).rows
        force_release(stores(), row, by="ada")
    assert {labels[0] for labels in scrape.changed("distlock_lost_total")} == {"revoked"}
    assert scrape("distlock_revoked_total") == {("default",): 1}
    assert scrape.one("distlock_held") == 0
    assert scrape.one("distlock_hold_seconds_count") == 1


def test_a_store_that_fails(scrape: Scraper) -> None:
    injector = FaultInjector(stores().store("default"))
    injector.cut()
    with pytest.raises(BackendUnavailable):
        lock("a").acquire()
    distributed_lockable(key="b", on_backend_error="open")(lambda: None)()
    assert scrape.changed("distlock_errors_total") == {("acquire", "default"): 2}
    assert scrape.changed("distlock_let_through_total") == {("default", "b"): 1}


def test_what_rarely_happens_is_shown_before_it_does(scrape: Scraper) -> None:
    """Prometheus sees no increase in a counter that begins with 1: the first loss would alert nobody."""
    pay(1)
    where = ("default", "order:{number}")
    for name in ("busy", "contended", "let_through"):
        assert scrape(f"distlock_{name}_total") == {where: 0}
    reasons = ("expired", "taken", "revoked", "unreachable")
    assert scrape("distlock_lost_total") == {(reason, *where): 0 for reason in reasons}
    operations = ("acquire", "release", "renew", "extend", "transfer")
    assert scrape("distlock_errors_total") == {(operation, "default"): 0 for operation in operations}
    assert scrape("distlock_revoked_total") == {("default",): 0}


def test_a_lease_that_is_forgotten_is_held_to_its_time(scrape: Scraper, monkeypatch: pytest.MonkeyPatch) -> None:
    time = now()
    monkeypatch.setattr(live_leases, "now", lambda: time)
    unrelated("a", expire=100)
    assert scrape.one("distlock_held") == 1
    time += 99
    pay(1)
    assert scrape.one("distlock_held") == 1
    time += 2
    pay(1)
    assert scrape.one("distlock_held") == 0


def by_hand(lease: Lease) -> None:
    lease.extend(100)
    lease.extend(10)  # at least: what is left stays


def by_re_entry(lease: Lease) -> None:
    with lock("a", expire=100):
        pass


@pytest.mark.parametrize("extend", [by_hand, by_re_entry])
def test_a_lease_is_held_for_as_long_as_it_was_extended(
    scrape: Scraper, monkeypatch: pytest.MonkeyPatch, extend: Callable[[Lease], None]
) -> None:
    """Not for as long as it was taken: the gauge fell to 0 under a lock that was held."""
    time = now()
    monkeypatch.setattr(live_leases, "now", lambda: time)
    with lock("a", expire=10) as lease:
        extend(lease)
        events.flush(PATIENCE)
        time += 90
        pay(1)
        assert scrape.one("distlock_held") == 1
        time += 11
        pay(1)
        assert scrape.one("distlock_held") == 0


def test_to_install_twice_is_to_install(memory_store: None) -> None:
    registry = CollectorRegistry()
    metrics = install(registry)
    assert install(registry) is metrics
    pay(1)
    assert Scraper(registry).one("distlock_acquired_total") == 1
    metrics.uninstall()
    assert generate_latest(registry) == b""
    again = install(registry)
    assert again is not metrics
    again.uninstall()


@pytest.mark.slow
def test_a_forked_child_holds_nothing(memory_store: None) -> None:
    registry = CollectorRegistry()
    metrics = install(registry)
    read, write = os.pipe()
    with lock("a"):
        Scraper(registry).one("distlock_held")
        pid = os.fork()
        if pid == 0:
            try:
                configure({"default": {"BACKEND": "memory"}})
                contextvars.Context().run(pay, 1)
                os.write(write, str(Scraper(registry).one("distlock_held")).encode())
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
        assert Scraper(registry).one("distlock_held") == 1
    metrics.uninstall()
    os.close(write)
    assert os.read(read, 100) == b"0.0"
    os.close(read)
