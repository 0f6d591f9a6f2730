"""Listeners that end with their test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from distlock_web import events


@pytest.fixture(autouse=True)
def _nobody_listens(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No test hears of another's locks, and none leaves a thread behind that waits for events."""
    monkeypatch.setattr(events, "IDLE_TIMEOUT", 0.02)
    assert events.listeners == ()
    yield
    for listener in list(events._by_subscriber):
        events.unsubscribe(listener)


@pytest.fixture
def seen() -> list[events.Event]:
    """What has happened so far, told at once."""
    found: list[events.Event] = []
    events.subscribe(found.append, inline=True)
    return found
