"""What is wrong with a locked view, found when it is registered or decorated, at no cost per request.

It must not be skipped: its None would be a 500. With ``once`` it needs a key. And it must be what Flask calls:
``@app.route`` registers the function that it is given, and a ``distributed_lockable`` above it makes another one, which
nobody calls.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any
from weakref import WeakSet

from flask import Flask, current_app, has_request_context, request
from flask.typing import RouteCallable

from ..core.errors import ConfigurationError
from ..core.registry import Registry
from ..core.runtime import TASKS, THREADS
from ..locks.decorator import LockedFunction, is_below, locks_on, undecorated, wrapped
from ..locks.once import Once
from .state import KEY

_apps: WeakSet[Flask] = WeakSet()


def check_views(app: Flask, registry: Registry | None) -> None:
    """Look at every view of the app, those that it has and those to come. Raises ``ConfigurationError``."""
    app.view_functions = CheckedViews(app.view_functions, registry)
    _apps.add(app)


def apps_with_stores() -> list[Flask]:
    """The apps of the process that have stores of their own."""
    return [app for app in list(_apps) if app.extensions[KEY].registry is not None]


def refuse_registered(function: Callable[..., Any]) -> None:
    """Raise ``ConfigurationError`` for a function that is a view already, and would go on to be called without a lock.

    Found in the apps that have the extension; with blueprints, and routes from before ``init_app``, it is
    :class:`CheckedViews` that looks.
    """
    chain = wrapped(function)
    for app in list(_apps):
        for endpoint, view in list(app.view_functions.items()):
            if any(each is view for each in chain):
                raise _registered_without_lock(endpoint)


class CheckedViews(dict[str, RouteCallable]):
    """An app's ``view_functions``, each looked at as it comes in."""

    def __init__(self, views: dict[str, RouteCallable], registry: Registry | None) -> None:
        super().__init__()
        self._registry = registry
        for endpoint, view in views.items():
            self[endpoint] = view

    def __setitem__(self, endpoint: str, view: RouteCallable) -> None:
        if _is_locked_elsewhere(view):
            raise _registered_without_lock(endpoint)
        for name, locked in locked_functions(endpoint, view):
            if isinstance(locked, Once) and not locked.has_key:
                raise ConfigurationError(
                    f"The view {name}: once needs a key that says which requests are the same, such as "
                    f'key="pay:{{request.headers[Idempotency-Key]}}", or all other requests get a 422.'
                )
            self._check_store(name, locked)
            if self._on_busy(locked) == "skip":
                raise ConfigurationError(
                    f'The view {name} has on_busy="skip": skipped, it would return None, which Flask answers with a '
                    f'500. Say on_busy="raise" (a 409 with Retry-After), or give a function that makes the response: '
                    f"on_busy=lambda error, *args, **kwargs: (...)."
                )
        super().__setitem__(endpoint, view)

    def _check_store(self, name: str, locked: LockedFunction) -> None:
        """What only some stores can do."""
        if self._registry is None or not locked.options.wants_more:
            return
        store = self._registry.store(locked.options.store)
        try:
            locked.options.check(store, TASKS if locked.asynchronous else THREADS)
        except ConfigurationError as error:
            raise ConfigurationError(f"The view {name}: {error}") from error

    def _on_busy(self, locked: LockedFunction) -> Any:
        if locked.on_busy is not None or self._registry is None:
            return locked.on_busy
        return self._registry.store(locked.options.store).config.on_busy


def locked_functions(endpoint: str, view: Callable[..., Any]) -> Iterator[tuple[str, LockedFunction]]:
    """The locks on a view, or on the methods of a class-based one, each once."""
    seen: set[LockedFunction] = set()
    for name, function in functions_of(endpoint, view).items():
        for locked in locks_on(function):  # one lock may be below another
            if locked not in seen:
                seen.add(locked)
                yield name, locked


def functions_of(endpoint: str, view: Callable[..., Any] | None) -> dict[str, Any]:
    """What may be locked of a view, by what people call it: itself, and the methods of a class-based one."""
    functions: dict[str, Any] = {repr(endpoint): view}
    view_class = getattr(view, "view_class", None)
    for name in ("dispatch_request", *sorted(map(str.lower, getattr(view_class, "methods", None) or ()))):
        functions[f"{endpoint!r} ({name})"] = getattr(view_class, name, None)
    return functions


def functions_of_request() -> list[Any]:
    """The same of the view that this request was routed to."""
    endpoint = request.endpoint or ""
    return list(functions_of(endpoint, current_app.view_functions.get(endpoint)).values())


def is_view(locked: object) -> bool:
    """Whether the locked function is the view of this request."""
    if not (has_request_context() and isinstance(locked, LockedFunction)):
        return False
    # Not by ``__distlock__``: only the outermost of several is seen, and none where each request decorates anew.
    return any(undecorated(function) is locked.function for function in functions_of_request())


def is_hidden_view(locked: Any) -> bool:
    """Whether it is that below a decorator without ``functools.wraps``, which hides it.

    What such a one is around has a key of the request, and no ``result=True``: else it is a function that the view
    calls, whose value is nobody's response.
    """
    if not has_request_context() or "request" not in locked.keys.variables or getattr(locked, "keeps_result", False):
        return False
    return any(is_below(function, locked.function) for function in functions_of_request())


def _is_locked_elsewhere(view: Any) -> bool:
    """Whether the view's name, in its module, means the view under a lock, while this is the one without."""
    module = sys.modules.get(getattr(view, "__module__", None) or "")
    named = vars(module).get(getattr(view, "__name__", "")) if module else None
    if not isinstance(named, FunctionType) or not hasattr(named, "__distlock__"):
        return False
    return not hasattr(view, "__distlock__") and any(each is view for each in wrapped(named))


def _registered_without_lock(endpoint: str) -> ConfigurationError:
    return ConfigurationError(
        f"The decorator of a lock, distributed_lockable or once, stands above the route of the view {endpoint!r}, "
        f"which Flask would call without the lock: put it below @app.route, next to the function. To lock a view of "
        f"somebody else's that is registered already, take it out first: app.view_functions[{endpoint!r}] = "
        f"distributed_lockable(...)(app.view_functions.pop({endpoint!r}))."
    )
