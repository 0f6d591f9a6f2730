"""Which held lock is meant by a name, and the release by force: once, for the admin page and both command lines."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from distlock_web import ConfigurationError, Lease, LeaseLost, lock
from distlock_web.core.registry import Registry, registry
from distlock_web.web.held_locks import (
    AmbiguousName,
    LockNotHeld,
    NoFence,
    OtherFence,
    StoreUnreachable,
    find,
    force_release,
    held,
)

Elsewhere = Callable[..., Lease]


@pytest.fixture
def stores(settings: Any, store_settings: dict[str, Any]) -> Registry:
    """A store ``default`` and, in memory, a store ``other``, both empty."""
    settings.DISTLOCK = {"default": store_settings, "other": {"BACKEND": "memory", "PREFIX": "b:"}}
    return registry()


def test_with_and_without_the_prefix(stores: Registry, elsewhere: Elsewhere) -> None:
    lease = elsewhere("order:7")
    for name in ("order:7", "disLock:order:7"):
        row = find(stores, name)
        assert (row.alias, row.lock.name, row.lock.fence) == ("default", "disLock:order:7", lease.fence)
    assert find(stores, "order:7", "default", lease.fence).lock.fence == lease.fence


def test_what_is_not_held(stores: Registry, elsewhere: Elsewhere) -> None:
    elsewhere("order:7")
    with pytest.raises(LockNotHeld, match=r"The lock 'order:8' is not held\."):
        find(stores, "order:8")
    with pytest.raises(LockNotHeld, match=r"The lock 'order:7' is not held in the store 'other'\."):
        find(stores, "order:7", "other")


def test_another_fence_is_another_holder(stores: Registry, elsewhere: Elsewhere) -> None:
    lease = elsewhere("order:7")
    with pytest.raises(OtherFence, match=rf"with the fence 7, but with {lease.fence}: nothing was released"):
        find(stores, "order:7", fence=7)


def test_a_name_in_several_stores(stores: Registry, elsewhere: Elsewhere) -> None:
    lease = elsewhere("order:7")
    with lock("order:7", store="other"):
        with pytest.raises(AmbiguousName, match="disLock:order:7 in default, b:order:7 in other"):
            find(stores, "order:7")
        assert find(stores, "order:7", "other").alias == "other"
        assert find(stores, "order:7", fence=lease.fence).alias == "default"
        assert find(stores, "b:order:7").alias == "other"


def test_a_whole_name_wins_over_one_without_its_prefix(stores: Registry, elsewhere: Elsewhere) -> None:
    lease, nested = elsewhere("order:7"), elsewhere("disLock:order:7")
    assert find(stores, "disLock:order:7").lock.fence == lease.fence
    assert find(stores, "disLock:order:7", fence=nested.fence).lock.name == "disLock:disLock:order:7"


def test_an_unknown_store(stores: Registry) -> None:
    with pytest.raises(ConfigurationError, match=r"'defualt'.* Did you mean 'default'"):
        find(stores, "order:7", "defualt")


def test_a_store_that_does_not_answer_may_have_the_lock_that_is_meant(
    settings: Any, elsewhere: Elsewhere, unused_tcp_port: int
) -> None:
    settings.DISTLOCK = {
        "default": {"BACKEND": "memory"},
        "down": {"LOCATION": f"redis://127.0.0.1:{unused_tcp_port}/0"},
    }
    elsewhere("order:7")
    with pytest.raises(StoreUnreachable, match="The store 'down' failed: ") as failed:
        find(registry(), "order:7")
    assert list(failed.value.errors) == ["down"]
    assert find(registry(), "order:7", "default").alias == "default"


def test_a_store_without_fences_cannot_tell_holders_apart(
    settings: Any, elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.DISTLOCK = {"default": {"BACKEND": "memory"}}
    elsewhere("order:7")
    (row,) = held(registry()).rows
    unfenced = replace(row.lock, fence=None)

    async def inspect(self: object) -> list[object]:
        return [unfenced]

    port = type(registry().store("default").backend.sync_port())
    monkeypatch.setattr(port, "inspect", inspect)
    with pytest.raises(NoFence, match="'default' gives no fences"):
        find(registry(), "order:7")
    with pytest.raises(OtherFence):
        force_release(registry(), replace(row, lock=unfenced), by="ann")


def test_a_release_by_force_is_logged_with_who_did_it(
    stores: Registry, elsewhere: Elsewhere, caplog: pytest.LogCaptureFixture
) -> None:
    lease = elsewhere("order:7")
    with caplog.at_level(logging.WARNING, "distlock_web"):
        force_release(stores, find(stores, "order:7"), by="ann\n2026 forged")
    (line,) = caplog.messages
    assert line.startswith("Lock disLock:order:7 released by force by ann\N{REPLACEMENT CHARACTER}2026 forged: ")
    assert f"fence {lease.fence}, request " in line
    with pytest.raises(LeaseLost):
        lease.release()


def test_a_successor_keeps_its_lock(stores: Registry, elsewhere: Elsewhere, caplog: pytest.LogCaptureFixture) -> None:
    first = elsewhere("order:7")
    row = find(stores, "order:7")
    first.release()
    second = elsewhere("order:7")
    with pytest.raises(OtherFence, match="changed meanwhile: nothing was released"):
        force_release(stores, row, by="ann")
    second.extend()
    assert caplog.messages == []
