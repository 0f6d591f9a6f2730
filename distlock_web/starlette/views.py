"""The endpoints of an app, looked at when its first request, or its start, makes its middlewares."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import FunctionType, MethodType
from typing import Any
from weakref import WeakKeyDictionary, WeakSet, ref

from starlette.applications import Starlette
from starlette.routing import Match

from ..core.registry import Registry
from ..locks.call import locks_on
from ..locks.wrapping import closed_over, wrapped
from ..web.view_checks import check_locks, is_locked_elsewhere, registered_without_lock

_apps: WeakSet[Starlette] = WeakSet()
_mounted_in: WeakKeyDictionary[Starlette, ref[Starlette]] = WeakKeyDictionary()
#: Whether an endpoint has ``once``: not to look through all that it closes over at each request.
_with_once: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()
_METHODS = ("get", "head", "post", "put", "patch", "delete", "options")


def know(app: Starlette) -> None:
    """From now on a decorator above one of its routes is refused where it stands."""
    _apps.add(app)


def check_routes(app: Starlette, registry: Registry | None) -> None:
    """Look at every endpoint of the app. Raises ``ConfigurationError``."""
    for endpoint in _endpoints(app.routes):
        name = repr(_name(endpoint))
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
                raise registered_without_lock(repr(_name(endpoint)), "@app.post or the like")


def functions_of(endpoint: Any) -> list[Any]:
    """What may be locked of an endpoint: itself, what a partial or an object calls, or the methods of a class."""
    if inspect.isclass(endpoint):
        return [method for name in _METHODS if (method := getattr(endpoint, name, None)) is not None]
    found: list[Any] = []
    for each in wrapped(endpoint):
        called = _called(each)
        found += [called] if inspect.isroutine(called) else [called, type(called).__call__]
    return found


def _called(endpoint: Any) -> Any:
    """As Starlette has it: what a partial calls."""
    while isinstance(endpoint, partial):
        endpoint = endpoint.func
    return endpoint


def _name(endpoint: Any) -> str:
    called = _called(endpoint)
    return str(getattr(called, "__name__", type(called).__name__))


def route_of(scope: Any) -> Any | None:
    """The route of a request: FastAPI's route of an included router knows only its own part here."""
    return scope.get("fastapi", {}).get("effective_route_context") or scope.get("route") or _matching_route(scope)


def _matching_route(scope: Any) -> Any | None:
    """Starlette up to 1.0 says the endpoint, and not which of its routes led there."""
    endpoint, app = scope.get("endpoint"), scope.get("app")
    for route in [] if endpoint is None or app is None else _routes(app.routes):
        if route.endpoint is endpoint and route.matches(scope)[0] is not Match.NONE:
            return route
    return None


def has_once(scope: Any) -> bool:
    """Whether the body of this request has to be compared, as far as it was routed."""
    endpoint = scope.get("endpoint")
    if endpoint is None:  # a middleware reads it
        return True
    try:
        if (known := _with_once.get(endpoint)) is None:
            known = _with_once[endpoint] = _has_once(endpoint)
    except TypeError:  # an object that is no key
        return _has_once(endpoint)
    return known


def _has_once(endpoint: Any) -> bool:
    places, seen = functions_of(endpoint), set[int]()
    while places:
        place = places.pop()
        if any(locked.once is not None for locked in locks_on(place)):
            return True
        # A decorator without functools.wraps has the view in its closure.
        for _, content in (found for each in wrapped(place) for found in closed_over(each)):
            if isinstance(content, FunctionType | MethodType) and id(content) not in seen:
                seen.add(id(content))
                places.append(content)
    return False


def mounted_apps(app: Starlette) -> Iterator[Starlette]:
    """The apps that are mounted in this one, at whatever depth: they have exception handlers of their own."""
    yield from _mounted_apps(app, app.routes)


def _mounted_apps(above: Starlette, routes: Iterable[Any]) -> Iterator[Starlette]:
    for route in routes:
        below = _below(route)
        inner = above
        if isinstance(below, Starlette):
            _mounted_in[below] = ref(above)
            yield (inner := below)
        if below is not None:
            yield from _mounted_apps(inner, below.routes)


def with_those_above(app: Starlette) -> Iterator[Starlette]:
    """An app, and those that it is mounted in: whose middlewares a request has come through."""
    found: Starlette | None = app
    while found is not None:
        yield found
        found = _mounted_in.get(found, lambda: None)()


def _endpoints(routes: Iterable[Any]) -> Iterator[Any]:
    return (route.endpoint for route in _routes(routes))


def _routes(routes: Iterable[Any]) -> Iterator[Any]:
    """Those that have an endpoint, at whatever depth."""
    for route in routes:
        if (below := _below(route)) is not None:
            yield from _routes(below.routes)
        elif getattr(route, "endpoint", None) is not None:
            yield route


def _below(route: Any) -> Any | None:
    """What a route leads to, if that has routes itself: a router, a mounted app, behind middlewares or not."""
    if (router := getattr(route, "original_router", None)) is not None:  # FastAPI's, of include_router
        return router
    found = None if hasattr(route, "endpoint") else getattr(route, "app", None)  # a Mount's, a Host's
    while found is not None and not hasattr(found, "routes"):
        found = getattr(found, "app", None)  # a middleware's
    # One with stores of its own looks at its endpoints itself.
    return None if isinstance(found, Starlette) and found in _apps else found
