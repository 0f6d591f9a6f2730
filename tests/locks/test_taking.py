"""What a store is asked for one lock, how often, and who else is told of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from distlock_web import BackendUnavailable, Lease, LockBusy, lock
from distlock_web.backends.memory import MemoryPort
from distlock_web.core.backend import Busy, Claim, Granted
from distlock_web.core.errors import NotSent
from distlock_web.core.registry import registry
from distlock_web.locks import watchdog
from distlock_web.locks.lease import scope_of
from distlock_web.locks.once import once
from distlock_web.locks.scope import Scope
from tests.support.callers import unrelated
from tests.support.waiting import LONG

pytestmark = pytest.mark.usefixtures("memory_store")


class Asked:
    """What the store in memory is asked: each of ``errors`` comes in the place of an answer to ``acquire``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *errors: type[BackendUnavailable]) -> None:
        self.claims, self.waits, self.cancelled = list[Claim](), list[float | None](), list[Claim]()
        left, acquire, cancel = [*errors], MemoryPort.acquire, MemoryPort.cancel

        async def asked(port: MemoryPort, claim: Claim, wait: float | None) -> Granted | Busy:
            self.claims.append(claim)
            self.waits.append(wait)
            if left:
                raise left.pop(0)("The test fails it.")
            return await acquire(port, claim, wait)

        async def cancelled(port: MemoryPort, claim: Claim) -> None:
            self.cancelled.append(claim)
            await cancel(port, claim)

        monkeypatch.setattr(MemoryPort, "acquire", asked)
        monkeypatch.setattr(MemoryPort, "cancel", cancelled)


def test_a_claim_says_by_which_store_object_it_was_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the beginning of their tokens servers know whom they wake."""
    asked = Asked(monkeypatch)
    with lock("a"):
        pass
    assert [claim.token.startswith(registry().store("default").ident) for claim in asked.claims] == [True]


def test_a_claim_of_once_says_that_a_record_may_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(monkeypatch)
    with lock("a"):
        pass
    once(key="job", keep=LONG)(lambda: None)()
    assert [claim.once for claim in asked.claims] == [False, True]


@pytest.mark.parametrize("wait", [0, LONG])
def test_what_is_asked_again_is_the_same(wait: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who does not wait stood in the queue, and nobody took it out."""
    asked = Asked(monkeypatch, BackendUnavailable)
    with lock("a", wait=wait):
        pass
    assert asked.waits == [wait, wait]
    assert len({*asked.claims}) == 1


@pytest.mark.parametrize(
    ("errors", "cancels"),
    [([NotSent], 0), ([BackendUnavailable, BackendUnavailable], 1), ([BackendUnavailable, NotSent], 1)],
)
def test_what_was_not_sent_is_not_cancelled(
    errors: list[type[BackendUnavailable]], cancels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Asked(monkeypatch, *errors)
    with pytest.raises(BackendUnavailable):
        lock("a").acquire()
    assert len(asked.cancelled) == cancels
    assert len(asked.claims) == len(errors)


def test_a_wait_for_the_first_lock_of_a_block_passes_by_the_watchdog(monkeypatch: pytest.MonkeyPatch) -> None:
    renewed = list[int]()
    renewing = watchdog.renewing
    monkeypatch.setattr(watchdog, "renewing", lambda holds: renewed.append(len(holds)) or renewing(holds))
    unrelated("z")
    for names in (["z"], ["a", "z"]):
        with pytest.raises(LockBusy):
            lock(names, wait=0.01).acquire()
    assert renewed == [1]


def on_lost(_: Lease) -> None: ...


@pytest.mark.parametrize(
    ("options", "looks"),
    [
        ({}, False),
        ({"on_lost": "raise"}, False),
        ({"on_lost": "warn"}, False),
        ({"on_lost": "warn", "renew": True}, True),
        ({"renew": True}, True),
        ({"on_lost": on_lost}, True),
    ],
)
def test_the_watchdog_looks_after_what_is_renewed_or_has_somebody_to_tell(
    options: dict[str, Any], looks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is told at the end of its block needs no thread."""
    after: list[Scope] = []
    register: Callable[[Scope], None] = watchdog.register

    def noted(scope: Scope) -> None:
        after.append(scope)
        register(scope)

    monkeypatch.setattr(watchdog, "register", noted)
    with lock("a", **options) as lease:
        assert after == ([scope_of(lease)] if looks else [])
