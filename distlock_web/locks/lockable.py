"""What can be locked: a function that does its work when it is called, and is called by the name that is decorated."""

from __future__ import annotations

import contextlib
import functools
import inspect
from typing import Any

from ..core.errors import ConfigurationError
from .wrapping import undecorated

#: What only the tasks of these libraries have, and which decorator makes such a task.
_MAKERS_OF_TASKS = {
    "apply_async": "@shared_task or @app.task (Celery)",
    "send_with_options": "@dramatiq.actor",
    "call_local": "@huey.task()",
    "enqueue": "@task (Django) or @job (RQ)",
}


def check_lockable(function: Any, decorator: str) -> None:
    """``ConfigurationError`` for what would run without the lock, or not at all, with the remedy."""
    if inspect.isclass(function):
        raise ConfigurationError(
            f"{decorator} is for functions, not for the class {function.__name__}: decorate a method, or "
            f'in Django use @method_decorator({decorator}(...), name="dispatch").'
        )
    if isinstance(function, (staticmethod, classmethod, property, functools.cached_property)):
        inner = undecorated(getattr(function, "fget", None) or getattr(function, "func", function))
        raise ConfigurationError(
            f"{decorator} goes below @{type(function).__name__}, next to the function {_name(inner)}."
        )
    for verb, maker in _MAKERS_OF_TASKS.items():
        if hasattr(function, verb):
            raise ConfigurationError(
                f"{decorator} goes below {maker}, the decorator of the task {function!r}, next to its "
                f"function: a worker calls that function directly, without the lock."
            )
    if not callable(function):
        raise ConfigurationError(f"{decorator} is for functions, not for {function!r}.")
    if _is_generator(function) or _is_generator(type(function).__call__):
        raise ConfigurationError(
            f"{decorator} cannot lock the generator {_name(function)}: its body runs after the call has returned. "
            f"Write `with lock(...)` inside it, or decorate the view that returns it."
        )
    # What contextlib has made of a generator: @contextmanager, or an object of that kind used as a decorator.
    if getattr(function, "__globals__", None) is vars(contextlib) and _is_generator(undecorated(function)):
        raise ConfigurationError(
            f"{decorator} cannot lock {_name(function)}, a generator below a decorator of contextlib's: its body runs "
            f"after the call has returned. Write `with lock(...)` inside it."
        )


def _is_generator(function: Any) -> bool:
    return inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)


def _name(function: Any) -> str:
    return str(getattr(function, "__qualname__", None) or type(function).__qualname__)
