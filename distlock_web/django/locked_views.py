"""Which views run under a lock: for the system checks and for the middleware."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from inspect import getattr_static
from types import FunctionType, MethodType
from typing import Any

from asgiref.sync import iscoroutinefunction
from django.conf import settings
from django.urls import URLPattern, URLResolver, get_resolver
from django.views import View

from ..locks.call import LockedFunction, locks_on
from ..locks.function_names import bound_method
from ..locks.wrapping import closed_over, is_below, wrapped
from .ninja_errors import operations_of

Callback = Callable[..., Any]


def views(patterns: Iterable[Any] | None = None, route: str = "") -> Iterator[tuple[str, Callback]]:
    """Every view of the project, through all ``include()``: its route, and its callback."""
    if patterns is None and not getattr(settings, "ROOT_URLCONF", None):
        return
    for entry in get_resolver().url_patterns if patterns is None else patterns:
        here = route + str(entry.pattern)
        if isinstance(entry, URLResolver):
            yield from views(entry.url_patterns, here)
        elif isinstance(entry, URLPattern):
            yield here, entry.callback


def locked_views() -> Iterator[tuple[str, Callback, LockedFunction]]:
    """Every locked view of the project: its route, its callback, what is locked of it."""
    for route, view in views():
        for function in locked_functions(view):
            yield route, view, function


def locks_around(view: Callback, function: LockedFunction) -> list[LockedFunction]:
    """The locks above this one of the same view, the outermost first."""
    outer = locks_on(view)
    if function not in outer:
        outer += locks_of_handler(view, function)
    return outer[: outer.index(function)] if function in outer else outer


def locks_of_handler(view: Callback, function: LockedFunction) -> list[LockedFunction]:
    """All locks of the handler, or of another part of a view's class, that has this one; the outermost first."""
    return next((marks for place in _places(view) if function in (marks := locks_on(place))), [])


def hidden_locks(view: Callback) -> list[LockedFunction]:
    """The locks under a decorator that does not say what it is around, as ``functools.wraps`` does: in its closure."""
    known, found, seen = locked_functions(view), list[LockedFunction](), set[int]()
    places = [each for place in (view, *_places(view)) for each in wrapped(place)]
    while places:
        for _, content in closed_over(places.pop()):
            if isinstance(content, FunctionType | MethodType) and id(content) not in seen:
                seen.add(id(content))
                found += locks_on(content)
                places += wrapped(content)
    return [each for each in dict.fromkeys(found) if each not in known]


def is_view_of(request: Any, locked: LockedFunction) -> bool:
    """Whether the locked function is the view of this request, or what one calls that is made of others: a handler, an
    operation of Ninja's. If the request was not routed, as in a test, it is whatever is called with it."""
    match = getattr(request, "resolver_match", None)
    if match is None:
        return True
    places = [match.func, *_places(match.func)]
    return any(is_below(place, locked.function) for place in places)


def is_operation_of(request: Any, locked: LockedFunction) -> bool:
    """Whether the locked function is an operation of Ninja's that answers this request."""
    view = getattr(getattr(request, "resolver_match", None), "func", None)
    return any(is_below(getattr(each, "view_func", None), locked.function) for each in operations_of(view))


def locks_of_helpers(view: Callback, actions: Iterable[str]) -> dict[str, list[LockedFunction]]:
    """By name, the locked methods of a view's class that are no handlers: handlers call them. ``actions``: some are."""
    view_class = class_of(view)
    if view_class is None:
        return {}
    handlers = {"dispatch", *actions, *view_class.http_method_names}
    if hasattr(view_class, "get_extra_actions"):  # a ViewSet of REST framework's: these are handlers or not reached
        handlers |= {"list", "create", "retrieve", "update", "partial_update", "destroy"}
    # Statically: what a class computes may fail.
    methods = {name: getattr_static(view_class, name, None) for name in dir(view_class) if name not in handlers}
    # What REST framework's @action has marked is a handler, though perhaps of no route.
    found = {name: locks_on(method) for name, method in methods.items() if not hasattr(method, "mapping")}
    return {name: locks for name, locks in found.items() if locks}


def locked_functions(view: Callback) -> list[LockedFunction]:
    """What is locked of a view: the function, ``dispatch``, and the handlers of all HTTP methods."""
    # Each once: as_view() copies the attributes of dispatch to the view.
    return list(dict.fromkeys(function for place in (view, *_places(view)) for function in locks_on(place)))


def _places(view: Callback) -> list[Callback | None]:
    """Where what a view was made of has decorators: ``dispatch`` of a class, and the handlers of all HTTP methods."""
    view_class, handlers = class_of(view), _handlers(view)
    return handlers if view_class is None else [view_class.dispatch, *handlers, *map(_behind_api_view, handlers)]


def _handlers(view: Callback) -> list[Callback | None]:
    """Of a class, or the operations of Ninja's that a view calls."""
    view_class = class_of(view)
    if view_class is None:
        return [getattr(each, "view_func", None) for each in operations_of(view)]
    actions = getattr(view, "actions", None)  # of a REST framework ViewSet: HTTP method → name of the method
    names = view_class.http_method_names if actions is None else actions.values()
    return [getattr(view_class, name, None) for name in names]


def _behind_api_view(handler: Any) -> Callback | None:
    """The function under REST framework's ``@api_view``, which keeps it in a closure and copies nothing of it.

    A closure of anybody else's is none: two classes that inherit a decorated method would share its name, and a lock.
    """
    home = getattr(handler, "__globals__", {}).get("__name__")
    if home != "rest_framework.decorators" or handler.__code__.co_freevars != ("func",):
        return None
    return handler.__closure__[0].cell_contents  # type: ignore[no-any-return]


def is_async_view(function: Any) -> bool:
    """Whether calling it gives a coroutine though it is no ``async def``: ``AsyncView.as_view()``, its ``dispatch``."""
    method = bound_method(function)
    if method is None or method.__name__ != "dispatch" or not isinstance(method.__self__, View):
        return iscoroutinefunction(function)
    return method.__self__.view_is_async


def skips(function: LockedFunction) -> bool:
    """Whether a busy lock makes the call return None, by the decorator's own word or by the store's setting."""
    own = function.on_busy
    return (function.options.config().on_busy if own is None else own) == "skip"


def class_of(view: object) -> Any:
    """The class of Django's or of REST framework's that a view was made of, by ``as_view()``; None if it was not."""
    view_class = getattr(view, "view_class", None) or getattr(view, "cls", None)  # Django's; REST framework's
    return view_class if isinstance(view_class, type) and issubclass(view_class, View) else None


def name_of(view: Callback, function: LockedFunction) -> str:
    """What people call a view: its class, its operation with this lock or the function under ``@api_view``, not
    ``View.as_view.<locals>.view``."""
    operations = () if class_of(view) else _handlers(view)
    locked = (each for each in operations if each is not None and is_below(each, function.function))
    return made_name_of(view) or _dotted(next(locked, view))


def made_name_of(function: Callback) -> str | None:
    """The name of a view that ``as_view()`` made; ``(...)`` at its end says that it was given arguments of its own."""
    view_class = class_of(function)
    if view_class is None:
        return None
    api_view = _api_view_function(view_class)
    if api_view is not None:
        return _dotted(api_view)
    given = getattr(function, "view_initkwargs", None) or getattr(function, "initkwargs", None) or {}
    return _dotted(view_class) + ("(...)" if given.keys() - _BY_ROUTER else "")


def is_api_view(view: Callback) -> bool:
    """Whether REST framework's ``@api_view`` made it of a function."""
    return _api_view_function(class_of(view)) is not None


def _api_view_function(view_class: Any) -> Callback | None:
    handlers = (getattr(view_class, name, None) for name in getattr(view_class, "http_method_names", ()))
    return next(filter(None, map(_behind_api_view, handlers)), None)


def is_ninjas(view: Callback) -> bool:
    """Whether Ninja made it of operations."""
    return bool(operations_of(view))


def is_outermost(view: Callback, function: LockedFunction) -> bool:
    """Whether the lock is around the whole view: on its function or on ``dispatch``, which ``as_view()`` copies."""
    return function in locks_on(view)


def is_above_login(view: Callback, function: LockedFunction) -> bool:
    """Whether the lock is taken before Django or REST framework looks at who asks; False where that does not show.

    ``login_required`` and its like, and what they decorate a method with, have the attributes of a redirect to login.
    """
    view_class = class_of(view)
    places: list[Callback | None] = [view, *_handlers(view)]
    places += map(_behind_api_view, places[1:])
    if any(_leads_to_login(each) for place in places for each in _below(place, function)):
        return True
    if view_class is None or not is_outermost(view, function):
        return False
    classes = [each for each in view_class.__mro__ if "dispatch" in vars(each)]
    if function in locks_on(view_class.dispatch):
        del classes[0]
    if any(map(_leads_to_login, classes)):
        return True
    # Above REST framework's is where a lock may have to be: but its success= may take a refusal for a success, and
    # once gives an answer again to a user who had the right then, and may have lost it.
    permissions = getattr(view_class, "permission_classes", ())
    kept = bool(function.options.hold_at_least) and function.success is not None and function.until != "commit"
    return (kept or function.once is not None) and any(
        getattr(each, "__name__", "") != "AllowAny" for each in permissions
    )


def _leads_to_login(found: object) -> bool:
    return hasattr(found, "login_url") and hasattr(found, "redirect_field_name")  # the login page has one of them


def _below(place: Any, function: LockedFunction) -> list[Any]:
    """What the lock is around, from the outside in. Copies of its mark, by ``functools.wraps``, are above it."""
    chain = wrapped(place)
    marked = [number for number, each in enumerate(chain) if getattr(each, "__distlock__", None) is function]
    return chain[marked[-1] + 1 :] if marked else []


def _dotted(function: Any) -> str:
    return f"{function.__module__}.{getattr(function, '__qualname__', type(function).__qualname__)}"


#: With what REST framework's routers make every view of a ViewSet.
_BY_ROUTER = {"basename", "detail", "suffix", "name", "description"}


#: What to do about a view with ``on_busy="skip"``.
SKIP_REMEDY = (
    'Say on_busy="raise", and the middleware answers 409; or give a callable that makes the response: on_busy=lambda '
    'error, request, *args, **kwargs: HttpResponse(status=409).'
)  # fmt: skip
