"""Django's and blinker's signals of what happens to locks."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.dispatch import receiver
from flask import Flask

from distlock_web import LeaseLost, LockBusy, distributed_lockable, events, lock
from distlock_web.django import signals as django_signals
from distlock_web.flask import DistLock
from distlock_web.flask import signals as flask_signals
from distlock_web.locks.events import Event
from tests.support.callers import unrelated
from tests.support.revoking import revoke_the_lock

both = pytest.mark.parametrize("signals", [django_signals, flask_signals], ids=["django", "flask"])
pytestmark = pytest.mark.usefixtures("memory_store")


@pytest.fixture(autouse=True)
def _nobody_is_connected() -> Iterator[None]:
    yield
    for signal in django_signals._signals.values():
        signal.receivers = []
        signal.sender_receivers_cache.clear()
    for named in flask_signals._signals.values():
        named._clear_state()


class Receiver:
    def __init__(self) -> None:
        self.told: list[tuple[object, Event]] = []

    def __call__(self, sender: object, event: Event, **kwargs: Any) -> None:
        self.told.append((sender, event))

    @property
    def kinds(self) -> list[str]:
        return [event.kind for _, event in self.told]


@both
def test_nobody_is_listened_for_until_somebody_connects(signals: Any) -> None:
    assert events.listeners == ()
    signals.lock_lost.connect(receiver := Receiver())
    assert len(events.listeners) == 1
    signals.lock_busy.connect(receiver)
    assert len(events.listeners) == 1


@both
def test_each_event_has_its_signal(signals: Any) -> None:
    assert set(signals._signals) == set(events.Kind.__args__)  # type: ignore[attr-defined]
    for kind, signal in signals._signals.items():
        assert signal is getattr(signals, f"lock_{kind}")


@both
def test_a_receiver_is_told_of_what_it_is_connected_to(signals: Any) -> None:
    acquired, busy, lost, released = (Receiver() for _ in range(4))
    signals.lock_acquired.connect(acquired)
    signals.lock_busy.connect(busy)
    signals.lock_lost.connect(lost)
    signals.lock_released.connect(released)
    with lock("a"):
        pass
    with pytest.raises(LeaseLost), lock("a"):
        revoke_the_lock()
    held = unrelated("a")
    with pytest.raises(LockBusy):
        lock("a").acquire()
    held.release()
    assert acquired.kinds == ["acquired"] * 3
    assert busy.kinds == ["busy"]
    assert lost.kinds == ["lost"]
    assert released.kinds == ["released"] * 2


@both
def test_a_receiver_that_fails_breaks_neither_the_lock_nor_the_others(
    signals: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(sender: object, **kwargs: Any) -> None:
        raise LookupError("of the receiver")

    after = Receiver()
    signals.lock_acquired.connect(fail)
    signals.lock_acquired.connect(after)
    with caplog.at_level(logging.ERROR), lock("a"):
        pass
    assert after.kinds == ["acquired"]
    assert "of the receiver" in caplog.text


def test_django_sends_the_class_of_the_event() -> None:
    told: list[object] = []

    @receiver(django_signals.lock_acquired, sender=Event)
    def hear(sender: object, event: Event, **kwargs: Any) -> None:
        told.append(sender)

    with lock("a"):
        pass
    assert told == [Event]


def test_flask_sends_the_app_that_runs() -> None:
    shop, blog = Flask("shop"), Flask("blog")
    of_shop, of_all = Receiver(), Receiver()
    flask_signals.lock_acquired.connect(of_shop, sender=shop)
    flask_signals.lock_acquired.connect(of_all)
    for app in (shop, blog):
        DistLock(app)
        app.add_url_rule("/", view_func=distributed_lockable(key="a")(lambda: "done"))
        assert app.test_client().get("/").text == "done"
    with lock("a"):
        pass
    assert [sender for sender, _ in of_shop.told] == [shop]
    assert [sender for sender, _ in of_all.told] == [shop, blog, None]


def test_a_receiver_that_is_gone_is_not_told() -> None:
    told: list[Event] = []

    def connect() -> Callable[..., None]:
        def hear(sender: object, event: Event) -> None:
            told.append(event)

        return flask_signals.lock_acquired.connect(hear)

    connect()
    gc.collect()
    with lock("a"):
        pass
    assert told == []
