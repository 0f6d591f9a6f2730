"""``distributed_lockable``: a function, a view or a method that runs under a lock."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeVar, Unpack, overload

from ..core.errors import ConfigurationError
from .call import decorator
from .call_options import CALL_OPTIONS, CallOptions, take_key
from .key_templates import KeyInFront
from .options import OPTIONS as LOCK_OPTIONS
from .options import LockOptions, check_names, show_options

P = ParamSpec("P")
R = TypeVar("R")


class FunctionOptions(LockOptions, CallOptions, total=False):
    """What ``distributed_lockable(...)`` takes."""


OPTIONS = {**LOCK_OPTIONS, **CALL_OPTIONS}


@overload
def distributed_lockable(function: Callable[P, R], /) -> Callable[P, R]: ...
@overload
def distributed_lockable(
    first_key: KeyInFront = None, /, **options: Unpack[FunctionOptions]
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...


def distributed_lockable(given: Callable[..., Any] | KeyInFront = None, /, **options: Unpack[FunctionOptions]) -> Any:
    """Run a function under a lock: ``@distributed_lockable(key="order:{order_id}", expire=10)``.

    Works on functions and coroutines: views, methods, tasks, commands. The lock is taken before the call and released
    after it, whatever happens, and only by its owner; an exception of the function reaches the caller unchanged.

    ``key`` is a template over the function's arguments, a callable with the function's arguments, or a list of these.
    Without it the key is the function's qualified name. A string or a list may be the first argument, without
    ``key=``. ``{pk:int}`` makes one key of all spellings of a number (also ``:uuid``, ``:lower``). A model instance
    stands for its row.
    ``prefix, expire, wait, max_waiters, renew, renew_for, store, on_lost, limit, shared, hold_at_least`` are those of
    :func:`distlock_web.lock`.

    ``on_busy``: ``"raise"`` ``LockBusy`` (a 409 in a view), ``"skip"`` (log, return None), ``"retry"`` (in a task of
    Celery's: send it again), or a callable ``(error, *args, **kwargs)`` that makes the answer.
    ``on_backend_error``: ``"raise"`` ``BackendUnavailable`` (a 503 in a view), ``"open"`` (go on without a lock;
    ``current_lease().acquired`` is False), or a callable of that form.

    ``until`` says when the lock ends. Without it: with the function, or with the body of a streaming response that the
    function returns (the lock is renewed until then). ``"return"``: with the function. ``"commit"``: the decorator
    opens a transaction around the function, extends the lease, commits, and then releases the lock; ``database`` names
    the database (a Django alias, an SQLAlchemy session).

    ``methods=("POST",)``: a view is locked for requests of these methods only. GET includes HEAD; OPTIONS is never
    locked. ``when=lambda request: request.POST.get("action") == "pay"``: of these, only requests for which it is true.
    Functions that are not views are refused: when they are decorated, if no framework is loaded, else when they are
    called.

    ``success``: a function that gets the returned value, and says whether ``hold_at_least`` applies. Without it, a
    view's 4xx, 5xx or redirect to the login page is not a success. An exception never is.

    Raises ``ConfigurationError`` when it is applied, if the key or an option cannot be right. The call raises
    ``KeyUnavailable`` if a value of the key is missing.
    """
    check_names("distributed_lockable", options, OPTIONS)
    if isinstance(given, Iterable) and not callable(given):
        take_key("distributed_lockable", given, options)
        given = None
    if options.get("success") is not None and options.get("hold_at_least") is None:
        raise ConfigurationError("success decides whether hold_at_least applies: it needs hold_at_least.")
    decorate = decorator("distributed_lockable", options)
    return decorate if given is None else decorate(given)


show_options(distributed_lockable, FunctionOptions)
