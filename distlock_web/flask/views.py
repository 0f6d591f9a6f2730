"""A view must not be skipped: its None would be a 500. Found when the view is registered, at no cost per request."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from flask.typing import RouteCallable

from ..core.errors import ConfigurationError
from ..core.registry import Registry
from ..locks.decorator import LockedFunction


class CheckedViews(dict[str, RouteCallable]):
    """An app's ``view_functions``, each looked at as it comes in."""

    def __init__(self, views: dict[str, RouteCallable], registry: Registry | None) -> None:
        super().__init__()
        self._registry = registry
        for endpoint, view in views.items():
            self[endpoint] = view

    def __setitem__(self, endpoint: str, view: RouteCallable) -> None:
        for name, locked in _locked_functions(endpoint, view):
            if self._on_busy(locked) == "skip":
                raise ConfigurationError(
                    f'The view {name} has on_busy="skip": skipped, it would return None, which Flask answers with a '
                    f'500. Say on_busy="raise" (a 409 with Retry-After), or give a function that makes the response: '
                    f"on_busy=lambda error, *args, **kwargs: (...)."
                )
        super().__setitem__(endpoint, view)

    def _on_busy(self, locked: LockedFunction) -> Any:
        if locked.on_busy is not None or self._registry is None:
            return locked.on_busy
        return self._registry.store(locked.options.store).config.on_busy


def _locked_functions(endpoint: str, view: Callable[..., Any]) -> Iterator[tuple[str, LockedFunction]]:
    """The locks on a view, or on the methods of a class-based one."""
    functions: dict[str, Any] = {repr(endpoint): view}
    view_class = getattr(view, "view_class", None)
    for name in ("dispatch_request", *sorted(map(str.lower, getattr(view_class, "methods", None) or ()))):
        functions[f"{endpoint!r} ({name})"] = getattr(view_class, name, None)
    for name, function in functions.items():
        locked = getattr(function, "__distlock__", None)
        if isinstance(locked, LockedFunction):
            yield name, locked
