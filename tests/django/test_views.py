"""``method_decorator`` and functions that give a coroutine; every kind of view is in tests/web/test_methods.py."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from django.utils.decorators import method_decorator

from distlock_web import ConfigurationError, current_lease, distributed_lockable
from distlock_web.ops.held_locks import held_locks

pytestmark = pytest.mark.usefixtures("memory")


def test_among_other_decorators_the_method_keeps_its_arguments() -> None:
    taken: list[str] = []

    def passing(view: Any) -> Any:
        @functools.wraps(view)
        def inner(*args: Any, **kwargs: Any) -> Any:
            return view(*args, **kwargs)

        return inner

    locked = distributed_lockable(key="order:{request}:{order_id}", expire=10)

    class Shop:
        @method_decorator([locked, passing, never_cache_like])
        def first(self, request: str, order_id: int) -> None:
            taken.extend(current_lease().names)

        @method_decorator(passing)
        @method_decorator(locked)
        def last(self, request: str, order_id: int) -> None:
            taken.extend(current_lease().names)

    def call(method: Any) -> None:
        method("r", 7)  # by position: the names have to come from the method itself

    call(Shop().first)
    call(Shop().last)
    assert taken == ["disLock:order:r:7"] * 2


def never_cache_like(view: Any) -> Any:
    @functools.wraps(view)
    def inner(request: Any, *args: Any, **kwargs: Any) -> Any:
        return view(request, *args, **kwargs)

    return inner


def test_a_coroutine_that_would_run_without_the_lock_is_refused() -> None:
    async def work() -> None: ...

    with pytest.raises(ConfigurationError, match="decorate the async function itself"):
        distributed_lockable(key="a")(lambda: work())()  # type: ignore[unused-coroutine]
    assert held_locks() == []
