"""Django Ninja handles the exceptions of its operations before Django does: with DEBUG, all of them as a traceback.

So that a busy lock is a 409 there as well, an API is taught to let refusals through to Django and the middleware. What
it has been told of them by ``@api.exception_handler(LockBusy)`` counts as before.
"""

from __future__ import annotations

from inspect import getclosurevars
from typing import Any, NoReturn
from weakref import WeakSet

from django.http import HttpRequest

from ..web.error_responses import REFUSALS

_taught: WeakSet[Any] = WeakSet()


def let_refusals_through(view: Any) -> None:
    """Before a view is called: teach its API, if it is a view of Ninja's."""
    if getattr(view, "__module__", "") != "ninja.operation" or view in _taught:
        return
    _taught.add(view)
    # In no public way: a function around the PathView, or a method of it, whose operations know their API.
    path_view = getattr(view, "__self__", None) or getclosurevars(view).nonlocals.get("self")
    for api in {operation.api for operation in getattr(path_view, "operations", ())}:
        for refusal in REFUSALS:
            if api._lookup_exception_handler(refusal()) is api._lookup_exception_handler(Exception()):
                api.add_exception_handler(refusal, _raise)


def _raise(request: HttpRequest, error: Exception) -> NoReturn:
    raise error
