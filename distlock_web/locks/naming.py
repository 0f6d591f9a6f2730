"""What a function is called, and which arguments it has, also behind a framework or another decorator."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from types import MethodType
from typing import Any

from ..core.errors import ConfigurationError
from . import hooks

# How names end that several functions share: a lambda's; that of a view which a class made, where the framework does
# not say which class; and that of what was made with arguments: a view, a partial, an object that can be called.
_SHARED = ("<lambda>", "as_view.<locals>.view", "(...)")


def bound_method(function: Any) -> MethodType | None:
    """The method of an object that Django's ``method_decorator`` wants decorated: it hands us a partial of it."""
    inner = _unwrapped(function)
    return inner.func if isinstance(inner, partial) and isinstance(inner.func, MethodType) else None


def _unwrapped(function: Any) -> Any:
    """What other decorators have wrapped; never past a partial.

    ``method_decorator``'s partial claims to be the method itself (``__wrapped__``), which expects a ``self`` that never
    comes.
    """
    return inspect.unwrap(
        function, stop=lambda at: isinstance(at, partial) or hasattr(at, "__signature__") or _is_made_view(at)
    )


def _is_made_view(function: Any) -> bool:
    """What ``as_view()`` made, itself. REST framework says of a ViewSet's that it wraps ``dispatch``."""
    return hooks.name_of(function) is not None and hooks.name_of(function.__wrapped__) is None


def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    method = bound_method(function)
    try:
        return inspect.signature(_unwrapped(function) if method is None else method, follow_wrapped=method is not None)
    except (ValueError, TypeError) as error:
        raise ConfigurationError(
            f"{function!r} does not tell its arguments ({error}): lock a function around it."
        ) from error


def qualified_name(function: Callable[..., Any]) -> str:
    """The name for messages, and for people who look at what is held."""
    method = bound_method(function)
    if method is not None:
        # Every class that inherits a method has the same function: as a key its name would be one lock for them all.
        owner = type(method.__self__)
        return f"{owner.__module__}.{owner.__qualname__}.{method.__name__}"
    known = hooks.name_of(function)
    if known is not None:
        return known
    if isinstance(function, partial):
        return f"{qualified_name(function.func)}(...)"
    if not hasattr(function, "__qualname__"):
        return f"{type(function).__module__}.{type(function).__qualname__}(...)"
    return f"{getattr(function, '__module__', '?')}.{function.__qualname__}"


def own_name(function: Callable[..., Any]) -> str:
    """The name as a key. ``ConfigurationError`` if it is not this function's alone."""
    name = qualified_name(function)
    if name.endswith(_SHARED):
        raise ConfigurationError(
            f"{function!r} has no name of its own ({name}), and would share its lock with others: give it a key=."
        )
    return name.replace("<locals>.", "")
