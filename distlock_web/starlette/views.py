"""The endpoints of an app, looked at when its first request, or its start, makes its middlewares."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from weakref import WeakSet

from starlette.applications import Starlette

from ..core.registry import Registry
from ..locks.decorator import locks_on, wrapped
from ..locks.once import Once
from ..web.view_checks import check_locks, is_locked_elsewhere, registered_without_lock

_apps: WeakSet[Starlette] = WeakSet()
_METHODS = ("get", "head", "post", "put", "patch", "delete", "options")


def know(app: Starlette) -> None:
    """From now on a decorator above one of its routes is refused where it stands."""
    _apps.add(app)


def check_routes(app: Starlette, registry: Registry | None) -> None:
    """Look at every endpoint of the app. Raises ``ConfigurationError``."""
    for endpoint in _endpoints(app.routes):
        name = repr(getattr(endpoint, "__name__", str(endpoint)))
        if is_locked_elsewhere(endpoint):
            raise registered_without_lock(name, "@app.post or the like")
        for function in functions_of(endpoint):
            check_locks(name, function, registry, "a client would take for success")


def refuse_registered(function: Callable[..., Any]) -> None:
    """Raise ``ConfigurationError`` for a function that is an endpoint already, and would go on to be called so."""
    chain = wrapped(function)
    for app in list(_apps):
        for endpoint in _endpoints(app.routes):
            if any(each is endpoint for each in chain):
                raise registered_without_lock(repr(endpoint.__name__), "@app.post or the like")


def functions_of(endpoint: Any) -> list[Any]:
    """What may be locked of an endpoint: itself, or the methods of a class."""
    if not inspect.isclass(endpoint):
        return [] if endpoint is None else [endpoint]
    return [method for name in _METHODS if (method := getattr(endpoint, name, None)) is not None]


def has_once(scope: Any) -> bool:
    """Whether somebody has to compare the body of this request, as far as it was routed."""
    endpoint = scope.get("endpoint")
    if endpoint is None:  # a middleware reads it
        return True
    functions = functions_of(endpoint)
    return any(isinstance(locked, Once) for function in functions for locked in locks_on(function))


def _endpoints(routes: Iterable[Any]) -> Iterator[Any]:
    for route in routes:
        router = getattr(route, "original_router", route)  # FastAPI's, of include_router
        mounted: Any = getattr(route, "app", None)
        while not isinstance(mounted, Starlette) and hasattr(mounted, "app"):  # below the middlewares of a Mount
            mounted = mounted.app
        if isinstance(mounted, Starlette) and mounted in _apps:
            continue  # it has stores of its own, and looks at its endpoints itself
        if (below := getattr(router, "routes", None)) is not None:  # a Mount's
            yield from _endpoints(below)
        elif (endpoint := getattr(route, "endpoint", None)) is not None:
            yield endpoint
