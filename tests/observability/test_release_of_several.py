"""The locks of one block are all released, whatever a listener does."""

from __future__ import annotations

import pytest

from distlock_web import events, lock
from distlock_web.core.backend import LockInfo
from distlock_web.core.registry import registry
from distlock_web.core.runtime import THREADS, drive
from distlock_web.locks.events import Event

pytestmark = pytest.mark.usefixtures("memory_store")


def held() -> list[LockInfo]:
    return drive(registry().store("default").port(THREADS).inspect())


def said(seen: list[Event]) -> list[tuple[str, str]]:
    return [(event.kind, event.name[-1]) for event in seen if event.kind not in ("acquired", "waited")]


def test_a_signal_in_a_listener_loses_nothing(seen: list[Event]) -> None:
    def interrupt(event: Event) -> None:
        if event.kind == "released":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), lock(["a", "b", "c"]):
        events.subscribe(interrupt, inline=True)
    assert held() == []
    assert said(seen) == [("released", "c"), ("released", "b"), ("released", "a")]
