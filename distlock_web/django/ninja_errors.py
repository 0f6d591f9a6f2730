"""Django Ninja handles the exceptions of its operations before Django does: with DEBUG, all of them as a traceback.

So that a busy lock is a 409 there as well, an API is taught to let refusals through to Django and the middleware. What
it has been told of them by ``@api.exception_handler(LockBusy)`` counts as before.
"""

from __future__ import annotations

import logging
from typing import Any, NoReturn
from weakref import WeakSet

from django.http import HttpRequest

from ..locks.wrapping import closed_over, wrapped
from ..web.error_responses import REFUSALS

logger = logging.getLogger("distlock_web")

_taught: WeakSet[Any] = WeakSet()
_given_up = False


def let_refusals_through(view: Any) -> None:
    """Before a view is called: teach its API, if it is a view of Ninja's."""
    if getattr(view, "__module__", "") != "ninja.operation" or view in _taught:
        return
    try:
        _teach(view)
    except AttributeError as error:
        _give_up(error)
    else:
        _taught.add(view)


def operations_of(view: Any) -> list[Any]:
    """The operations that Ninja's view calls; none of another view, or of a version that is not known."""
    places = filter(_is_path_view, map(_path_view_of, wrapped(view)))
    return [operation for each in places for operation in getattr(each, "operations", ())]


def _path_view_of(view: Any) -> Any:
    # In no public way: a function around the PathView, or a method of it, whose operations know their API.
    found = getattr(view, "__self__", None)
    return dict(closed_over(view)).get("self") if found is None else found


def _is_path_view(path_view: Any) -> bool:
    """Whether it is a PathView: a ModelAdmin is closed over as ``self``, too, and may have other ``operations``."""
    return any(each.__module__ == "ninja.operation" for each in type(path_view).__mro__)


def _teach(view: Any) -> None:
    path_view = _path_view_of(view)
    for api in {operation.api for operation in path_view.operations}:
        for refusal in REFUSALS:
            if api._lookup_exception_handler(refusal()) is api._lookup_exception_handler(Exception()):
                api.add_exception_handler(refusal, _raise)


def _give_up(error: AttributeError) -> None:
    """Say once that busy locks are answered by Ninja. The operations themselves go on."""
    global _given_up
    if not _given_up:
        _given_up = True
        logger.warning(
            "distlock_web does not know this version of Django Ninja (%s): it may answer a busy lock with 500. Add "
            "@api.exception_handler(LockBusy).",
            error,
        )


def _raise(request: HttpRequest, error: Exception) -> NoReturn:
    raise error
