"""What a decorator is told of a call, beside the options of its lock; checked before there is a function."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, Literal, TypeAlias, TypedDict

from ..core.errors import ConfigurationError
from ..core.setting import check_plain, check_policy, shown
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


def check_call_options(options: Any) -> None:
    """``ConfigurationError`` for a value that cannot be right. ``methods`` are a set of capitals from then on."""
    if (on_busy := options.get("on_busy")) is not None:
        check_policy(on_busy, "on_busy", more=("retry",))
    if (on_backend_error := options.get("on_backend_error")) is not None:
        check_policy(on_backend_error, "on_backend_error")
    if (success := options.get("success")) is not None:
        _check_success(success)
    if (when := options.get("when")) is not None:
        _check_when(when)
    if (methods := options.get("methods")) is not None:
        options["methods"] = _check_methods(methods)


def _check_success(success: object) -> None:
    if not callable(success):
        raise ConfigurationError(
            f"success is {shown(success)}; it has to be a function, which is given what the locked one returned."
        )
    check_plain(success, "success")


def _check_when(when: object) -> None:
    if not callable(when):
        raise ConfigurationError(f"when is {shown(when)}; it has to be a function of the request, true where it locks.")


def _check_methods(given: object) -> frozenset[str]:
    """The methods of requests that a view is locked for."""
    names = list(given) if isinstance(given, Iterable) and not isinstance(given, str) else []
    if not names or not all(isinstance(name, str) and _METHOD.fullmatch(name) for name in names):
        raise ConfigurationError(f'methods is {shown(given)}; it has to be several names, such as ("POST", "PUT").')
    methods = {name.upper() for name in names}
    if "OPTIONS" in methods:
        raise ConfigurationError("methods names OPTIONS, which is never locked: it asks what a view can do.")
    return frozenset(methods | ({"HEAD"} if "GET" in methods else set()))


_METHOD = re.compile(r"[A-Za-z-]+")
