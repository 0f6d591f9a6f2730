"""The views of an app, each looked at as it is registered; and those that a request was routed to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakSet

from flask import Flask, current_app, has_request_context, request
from flask.typing import RouteCallable

from ..core.errors import ConfigurationError
from ..core.registry import Registry
from ..locks.call import LockedFunction, locks_on
from ..locks.wrapping import wrapped
from ..web.view_checks import check_view, is_locked_elsewhere, registered_without_lock
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
        if is_locked_elsewhere(view):
            raise _registered_without_lock(endpoint)
        for name, locked in locked_functions(endpoint, view):
            check_view(name, locked, self._registry, "Flask answers with a 500")
        super().__setitem__(endpoint, view)


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
    """The same of the view that this request was routed to; nothing where there is no request."""
    if not has_request_context():
        return []
    endpoint = request.endpoint or ""
    return list(functions_of(endpoint, current_app.view_functions.get(endpoint)).values())


def _registered_without_lock(endpoint: str) -> ConfigurationError:
    return registered_without_lock(
        repr(endpoint),
        "@app.route",
        f" To lock a view of somebody else's that is registered already, take it out first: "
        f"app.view_functions[{endpoint!r}] = distributed_lockable(...)(app.view_functions.pop({endpoint!r})).",
    )
