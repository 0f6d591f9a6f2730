"""What a function is called, and what it is called with, behind a framework or another decorator.

Its name is the key of a decorator that names none.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable
from functools import partial
from types import MethodType
from typing import Any

from ..core.errors import ConfigurationError
from . import hooks
from .hooks import Integration

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
    if hooks.first(Integration.name_of, function) is None:
        return False
    return hooks.first(Integration.name_of, function.__wrapped__) is None


#: Since Python 3.14 annotations are computed when asked for, and may name what the type checker alone imports.
_ANNOTATIONS: dict[str, Any] = {}
if sys.version_info >= (3, 14):
    from annotationlib import Format

    _ANNOTATIONS["annotation_format"] = Format.FORWARDREF


def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    method = bound_method(function)
    inner, wrapped = (_unwrapped(function), False) if method is None else (method, True)
    try:
        return inspect.signature(inner, follow_wrapped=wrapped, **_ANNOTATIONS)
    except (ValueError, TypeError) as error:
        raise ConfigurationError(
            f"{function!r} does not show its arguments ({error}): lock a function that calls it."
        ) from error


def qualified_name(function: Callable[..., Any]) -> str:
    """The name for messages, and for people who look at what is held."""
    return _name(function, _module_of)


def name_before(function: Callable[..., Any]) -> str:
    """The name in format 1, in which the functions of the program that was started were all of ``__main__``."""
    return _name(function, lambda defined: getattr(defined, "__module__", "?"))


def _name(function: Callable[..., Any], module_of: Callable[[Any], str]) -> str:
    method = bound_method(function)
    if method is not None:
        # Every class that inherits a method has the same function: as a key its name would be one lock for them all.
        owner = type(method.__self__)
        return f"{module_of(owner)}.{owner.__qualname__}.{method.__name__}"
    known = hooks.first(Integration.name_of, function)
    if known is not None:
        return known
    if isinstance(function, partial):
        return f"{_name(function.func, module_of)}(...)"
    if not hasattr(function, "__qualname__"):
        return f"{module_of(type(function))}.{type(function).__qualname__}(...)"
    return f"{module_of(function)}.{function.__qualname__}"


def _module_of(defined: Any) -> str:
    """Where something is defined. A program's own module is named as if it was imported.

    All programs have a ``__main__``; and in a process that ``multiprocessing`` has begun its name is another one.
    """
    name = getattr(defined, "__module__", None) or "?"
    if name not in ("__main__", "__mp_main__"):
        return name
    main = sys.modules.get(name)
    spec = getattr(main, "__spec__", None)
    file: str | None = getattr(main, "__file__", None)
    if spec is not None and spec.name != "__main__":  # python -m
        return str(spec.name.removesuffix(".__main__"))
    if not file:
        return name
    folder, program = os.path.split(os.path.splitext(os.path.abspath(file))[0])
    return os.path.basename(folder) if program == "__main__" else program


def own_name(function: Callable[..., Any]) -> str:
    """The name as a key. ``ConfigurationError`` if it is not this function's alone."""
    name = qualified_name(function)
    if name.endswith(_SHARED):
        raise ConfigurationError(
            f"{function!r} has no name of its own ({name}), and would share its lock with others: give it a key=."
        )
    return name.replace("<locals>.", "")
