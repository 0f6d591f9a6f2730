"""What stands around a function: decorators, as far as they say so by ``functools.wraps``, and what they close over."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from types import FunctionType, MethodType
from typing import Any


def undecorated(function: Any) -> Any:
    """The function that all decorators are around, as far as they say so by ``functools.wraps``."""
    function = inspect.unwrap(function)
    return getattr(function, "__func__", function)


def wrapped(function: Any) -> list[Any]:
    """A function, and those that it is around, as far as they say so by ``functools.wraps``; the outermost first."""
    chain: list[Any] = []
    while function is not None and all(function is not each for each in chain):
        chain.append(function)
        function = getattr(function, "__wrapped__", None)
    return chain


def closed_over(function: Any) -> Iterator[tuple[str, Any]]:
    """What a function closes over, by the name that it has there."""
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    for name, cell in zip(names, getattr(function, "__closure__", None) or (), strict=False):
        with contextlib.suppress(ValueError):  # it is empty
            yield name, cell.cell_contents


def is_below(view: Any, function: Any) -> bool:
    """Whether this is the function that a view's decorators are around, also of those without ``functools.wraps``.

    Such a decorator has it in its closure, by a name of the decorator's. A helper that a view calls may be in the
    view's closure as well: by its own name, or defined beside the view. It is not below the view.
    """
    places, seen = [view], set[int]()
    while places:
        for each in wrapped(places.pop()):
            if undecorated(each) is function:
                return True
            for name, content in closed_over(each):
                if isinstance(content, FunctionType | MethodType) and id(content) not in seen:
                    seen.add(id(content))
                    if not _is_helper(each, name, content):
                        places.append(content)
    return False


def _is_helper(function: Any, name: str, content: Any) -> bool:
    """Whether this is what a view calls, and the function is no decorator, with its view in its closure."""
    is_beside = _scope(content) == _scope(function) != "" and content.__code__ is not function.__code__
    return bool(name == content.__name__ or is_beside)


def _scope(function: Any) -> str:
    """The function that it was defined in; "" if it is of a module or of a class."""
    scope = str(getattr(function, "__qualname__", "")).rpartition(".")[0]
    return f"{function.__module__}.{scope}" if scope.endswith("<locals>") else ""


def resolved_signature(function: Any, signature: inspect.Signature) -> inspect.Signature:
    """With types for annotations that are texts (``from __future__ import annotations``), as far as they can be."""
    if not any(isinstance(each.annotation, str) for each in signature.parameters.values()):
        return signature
    names = getattr(undecorated(function), "__globals__", {})

    def resolved(annotation: Any) -> Any:
        try:
            return eval(annotation, names) if isinstance(annotation, str) else annotation  # noqa: S307 - its own source
        except Exception:  # it names what the type checker alone imports, or a class that comes later
            return annotation

    parameters = [each.replace(annotation=resolved(each.annotation)) for each in signature.parameters.values()]
    return signature.replace(parameters=parameters)
