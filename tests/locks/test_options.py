"""Options: one list of them, and what a store cannot do is refused before anything is sent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from distlock_web import ConfigurationError, configure, distributed_lockable, lock
from distlock_web.backends.memory import MemoryPort
from distlock_web.core.backend import Busy, Claim, Granted
from distlock_web.core.registry import Store
from distlock_web.locks.fencing import fence_of
from distlock_web.locks.options import OPTIONS


@pytest.mark.parametrize(
    ("name", "meant"), [("expier", "expire"), ("waits", "wait"), ("hold_atleast", "hold_at_least"), ("stor", "store")]
)
def test_an_option_that_does_not_exist_is_named_with_the_one_that_was_meant(name: str, meant: str) -> None:
    options: dict[str, Any] = {name: 3}
    calls: dict[str, Callable[[], object]] = {
        "lock": lambda: lock("a", **options),
        "distributed_lockable": lambda: distributed_lockable(**options),
    }
    for function, call in calls.items():
        with pytest.raises(ConfigurationError) as caught:
            call()
        assert str(caught.value) == (
            f"{function} has the option {name!r}, which does not exist. Did you mean {meant!r}?"
        )


@pytest.mark.parametrize(
    ("name", "meant"),
    [("timeout", ["expire=", "wait="]), ("blocking_timeout", ["wait="]), ("auto_renewal", ["renew=True"])],
)
def test_the_word_of_another_library_is_answered_with_ours(name: str, meant: list[str]) -> None:
    options: dict[str, Any] = {name: 3}
    for call in (lambda: lock("a", **options), lambda: distributed_lockable(**options)):
        with pytest.raises(ConfigurationError, match=f"the option '{name}', which does not exist") as caught:
            call()
        assert [word for word in meant if word not in str(caught.value)] == []


@pytest.mark.parametrize("function", [lock, distributed_lockable])
def test_its_help_names_the_options_in_the_order_of_their_table(function: Callable[..., object]) -> None:
    assert f"``{', '.join(OPTIONS)}``" in " ".join((function.__doc__ or "").split())


untyped_lock: Any = lock


@pytest.mark.usefixtures("memory_store")
@pytest.mark.parametrize(
    ("call", "meant"),
    [
        (lambda taken: taken.acquire(blocking=False), "wait=0"),
        (lambda taken: taken.acquire(False), "try_acquire"),
        (lambda taken: taken.acquire(timeout=3), "wait=10"),
        (lambda taken: taken.acquire(expire=3), r"stand in lock\(...\)"),
        (lambda taken: taken.acquire(nonsense=3), r"stand in lock\(...\)"),
        (lambda taken: taken.acquire().extend(additional_time=5), r"extend\(5\)"),
        (lambda taken: taken.acquire().extend(5, replace_ttl=True), r"stand in lock\(...\)"),
        (lambda taken: untyped_lock("client", "a"), r"lock\(\[a, b\]\).*the store is that of the settings"),
        (lambda taken: untyped_lock("a", 10), "options by name: not 10"),
        (lambda taken: taken(print), r"@distributed_lockable\(key='a'\)"),
        (lambda taken: distributed_lockable(taken), "a key="),
    ],
)
def test_a_call_as_other_libraries_have_it_is_answered_with_ours(call: Callable[[Any], object], meant: str) -> None:
    taken: Any = lock("a")
    with pytest.raises(ConfigurationError, match=meant):
        call(taken)


async def test_the_asyncio_twins_name_our_words_too(memory_store: None) -> None:
    twins: Any = lock("a")
    with pytest.raises(ConfigurationError, match="wait=0"):
        await twins.aacquire(blocking=False)
    lease: Any = await twins.aacquire()
    with pytest.raises(ConfigurationError, match=r"extend\(5\)"):
        await lease.aextend(additional_time=5)
    await lease.arelease()


def test_a_lock_says_that_the_lease_is_released() -> None:
    a_lock: Any = lock("a")
    with pytest.raises(AttributeError, match=r"lease = lock\(\.\.\.\)\.acquire\(\), then lease\.release; or with lock"):
        a_lock.release()
    assert not hasattr(a_lock, "extend")
    with pytest.raises(AttributeError, match=r"A Lock has no 'unlock'\.$"):
        _ = a_lock.unlock


def without(store: Store, **lacking: bool) -> None:
    store.backend.capabilities = replace(store.backend.capabilities, **lacking)


@pytest.mark.parametrize("given", [0, -1, 1.5, True, "2"])
def test_how_many_may_wait_is_a_whole_number_above_0(given: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"max_waiters is .*; it has to be a whole number, 1 or more"):
        lock("a", wait=None, max_waiters=given)


def test_max_waiters_is_refused_without_a_wait_and_where_the_store_cannot_count() -> None:
    registry = configure({"default": {"BACKEND": "memory"}})
    with pytest.raises(ConfigurationError, match="it needs a wait"):
        lock("a", max_waiters=1).acquire()
    without(registry.store("default"), bounded_queue=False)
    with pytest.raises(ConfigurationError, match="'default' cannot limit its queue"):
        lock("a", wait=5, max_waiters=1).acquire()


def test_a_fence_is_refused_where_the_store_gives_none(monkeypatch: pytest.MonkeyPatch) -> None:
    acquire = MemoryPort.acquire

    async def without_fence(port: MemoryPort, claim: Claim, wait: float | None) -> Granted | Busy:
        answer = await acquire(port, claim, wait)
        return answer._replace(fence=None) if isinstance(answer, Granted) else answer

    monkeypatch.setattr(MemoryPort, "acquire", without_fence)
    configure({"default": {"BACKEND": "memory"}})
    with lock("a") as lease, pytest.raises(ConfigurationError, match="has no fences"):
        fence_of(lease)


@pytest.mark.parametrize("options", [{"limit": 3}, {"shared": True}])
def test_a_fence_of_one_among_several_holders_is_refused(options: dict[str, Any]) -> None:
    """The other holders' fences are as good, and a row would refuse those that are smaller."""
    configure({"default": {"BACKEND": "memory"}})
    with lock("a", **options) as lease, pytest.raises(ConfigurationError, match="several holders"):
        fence_of(lease)
