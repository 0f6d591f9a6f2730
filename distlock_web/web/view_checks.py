"""What is wrong with a locked view, found when it is registered, at no cost per request.

It must not be skipped: its None would be an answer. With ``once`` it needs a key. And it must be what the framework
calls: a route registers the function that it is given, and a ``distributed_lockable`` above it makes another one, which
is never called.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any

from ..core.errors import ConfigurationError
from ..core.registry import Registry, configured
from ..core.runtime import TASKS, THREADS
from ..locks.call import LockedFunction, locks_on
from ..locks.wrapping import wrapped


def check_locks(name: str, view: Callable[..., Any], registry: Registry | None, skipped: str) -> None:
    """:func:`check_view` of each lock on a view, below whatever other decorators."""
    for locked in locks_on(view):
        check_view(name, locked, registry, skipped)


def check_view(name: str, locked: LockedFunction, registry: Registry | None, skipped: str) -> None:
    """Raise ``ConfigurationError``. ``registry``: the app's own stores; ``skipped``: what becomes of a None.

    Without stores of its own the app has those of the process. They may be configured, or replaced, until its first
    request: what they have not, or cannot do, is no mistake yet.
    """
    if locked.once is not None and not locked.once.has_key:
        raise ConfigurationError(
            f"The view {name}: once needs a key that says which requests are the same, such as "
            f'key="pay:{{request.headers[Idempotency-Key]}}", or all other requests get a 422.'
        )
    on_busy = locked.on_busy
    if registry is None:
        of_process = configured()
        store = None if of_process is None else of_process.stores.get(locked.options.store)
    else:
        store = registry.store(locked.options.store)
        if locked.options.wants_more:  # what only some stores can do
            try:
                locked.options.check(store, TASKS if locked.asynchronous else THREADS)
            except ConfigurationError as error:
                raise ConfigurationError(f"The view {name}: {error}") from error
    if on_busy is None and store is not None:
        on_busy = store.config.on_busy
    if on_busy == "skip":
        raise ConfigurationError(
            f'The view {name} has on_busy="skip": skipped, it would return None, which {skipped}. Say on_busy="raise" '
            f"(a 409 with Retry-After), or give a function that makes the response: "
            f"on_busy=lambda error, *args, **kwargs: (...)."
        )


def is_locked_elsewhere(view: Any) -> bool:
    """Whether the view's name, in its module, means the view under a lock, while this is the one without."""
    module = sys.modules.get(getattr(view, "__module__", None) or "")
    named = vars(module).get(getattr(view, "__name__", "")) if module else None
    if not isinstance(named, FunctionType) or not hasattr(named, "__distlock__"):
        return False
    return not hasattr(view, "__distlock__") and any(each is view for each in wrapped(named))


def registered_without_lock(view: str, route: str, remedy: str = "") -> ConfigurationError:
    """For a view of which the route has the function below the lock."""
    return ConfigurationError(
        f"The decorator of a lock, distributed_lockable or once, stands above the route of the view {view}, "
        f"which the framework would call without the lock: put it below {route}, next to the function.{remedy}"
    )
