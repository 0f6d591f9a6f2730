"""What a decorator is told of a call, beside the options of its lock; checked before there is a function."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, Literal, TypeAlias, TypedDict

from ..core.config import SETTINGS
from ..core.errors import ConfigurationError
from ..core.setting import ON_BACKEND_ERROR, ON_BUSY, Policy, Setting, check_plain, shown, table, unchecked
from .hooks import Until
from .key_templates import Key

#: ``LockBusy`` is raised; or the call is skipped (None) and logged; or its task is sent again; or the callable answers.
OnBusy: TypeAlias = "Literal['raise', 'skip', 'retry'] | Callable[..., Any]"
#: ``BackendUnavailable`` is raised; or the call goes on without a lock; or the callable makes the answer.
OnBackendError: TypeAlias = "Literal['raise', 'open'] | Callable[..., Any]"


class CallOptions(TypedDict, total=False):
    """What a decorator takes beside the options of a lock."""

    key: Key | None
    on_busy: OnBusy | None
    on_backend_error: OnBackendError | None
    until: Until | None
    database: object
    methods: Iterable[str] | None
    when: Callable[[Any], object] | None
    success: Callable[[Any], object] | None


def take_key(function: str, given: object, options: Any) -> None:
    """The key that stands in front of all options."""
    if options.get("key") is not None:
        raise ConfigurationError(f"{function} got two keys: one as the first argument, one as key=.")
    options["key"] = given


def _check_success(success: object, setting: str) -> object:
    if not callable(success):
        raise ConfigurationError(
            f"{setting} is {shown(success)}; it has to be a function, which is given what the locked one returned."
        )
    return check_plain(success, setting)


def _check_when(when: object, setting: str) -> object:
    if not callable(when):
        raise ConfigurationError(
            f"{setting} is {shown(when)}; it has to be a function of the request, true where it locks."
        )
    return when


def _check_methods(given: object, setting: str) -> frozenset[str]:
    """The methods of requests that a view is locked for."""
    names = list(given) if isinstance(given, Iterable) and not isinstance(given, str) else []
    if not names or not all(isinstance(name, str) and _METHOD.fullmatch(name) for name in names):
        raise ConfigurationError(f'{setting} is {shown(given)}; it has to be several names, such as ("POST", "PUT").')
    methods = {name.upper() for name in names}
    if "OPTIONS" in methods:
        raise ConfigurationError(f"{setting} names OPTIONS, which is never locked: it asks what a view can do.")
    return frozenset(methods | ({"HEAD"} if "GET" in methods else set()))


_METHOD = re.compile(r"[A-Za-z-]+")

#: What each of ``CallOptions`` may be, and means. What is not checked here is checked with the function.
CALL_OPTIONS = table(
    Setting(
        "key", unchecked, None,
        "what to lock: a template over the function's arguments, a callable, or a list. `{request.user.pk}`, "
        "`{pk:int}`; `{order}`, a model instance, stands for its row. A name that is no argument is refused at import. "
        "[Keys](keys.md)", "the function's name",
    ),
    Setting(
        "on_busy", Policy((*ON_BUSY.words, "retry")).check, SETTINGS["ON_BUSY"].default,
        '`"raise"`, `"skip"` (log, return `None`), `"retry"` (send the [task of Celery](tasks.md) again), or a '
        "callable that makes the answer",
    ),
    Setting(
        "on_backend_error", ON_BACKEND_ERROR.check, SETTINGS["ON_BACKEND_ERROR"].default,
        '`"raise"`, `"open"` (go on without a lock: `lease.acquired` is false), or a callable',
    ),
    Setting(
        "until", unchecked, None,
        '`"return"`: the lock ends with the function. `"commit"`: the decorator opens a transaction, commits it, and '
        "then releases the lock", "the function, or the body of a streaming response",
    ),
    Setting(
        "database", unchecked, None,
        'the database of `until="commit"`: a Django alias, an SQLAlchemy session',
        "Django: `default`; Flask: the app's session",
    ),
    Setting(
        "methods", _check_methods, None,
        'on views: lock requests of these methods only, `("POST",)`. Other methods run with no lock at all: refuse '
        "them, or let them only read. GET includes HEAD. OPTIONS is then never locked", "every request",
    ),
    Setting(
        "when", _check_when, None,
        'on views: `when=lambda request: request.POST.get("action") == "pay"` locks only requests for which it is '
        "true. All others run with no lock. With `methods` both have to hold. On an async view it may be async",
        "every request",
    ),
    Setting(
        "success", _check_success, None,
        "a function that gets the returned value, and says whether the call "
        "[succeeded](responses.md#what-counts-as-success)", "every answer but a view's failures",
    ),
)  # fmt: skip


def check_call_options(options: Any) -> None:
    """``ConfigurationError`` for a value that cannot be right. ``methods`` are a set of capitals from then on."""
    for name, row in CALL_OPTIONS.items():
        if options.get(name) is not None:
            options[name] = row.check(options[name], name)
