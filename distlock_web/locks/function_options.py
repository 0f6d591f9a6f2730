"""The options of ``distributed_lockable``, listed once, and what a type checker makes of ``on_busy="skip"``."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Literal, ParamSpec, Protocol, Required, TypeAlias, TypeVar, overload

from .hooks import Until
from .key_templates import Key
from .options import NAMES, LockOptions

P = ParamSpec("P")
R = TypeVar("R")

#: ``LockBusy`` is raised; or the call is skipped (None) and logged; or the callable makes the answer.
OnBusy: TypeAlias = "Literal['raise', 'skip'] | Callable[..., Any]"
#: ``BackendUnavailable`` is raised; or the call goes on without a lock; or the callable makes the answer.
OnBackendError: TypeAlias = "Literal['raise', 'open'] | Callable[..., Any]"


class _CommonOptions(LockOptions, total=False):
    key: Key | None
    on_backend_error: OnBackendError | None
    until: Until | None
    database: object


class FunctionOptions(_CommonOptions, total=False):
    """What ``distributed_lockable(...)`` takes: the options of a lock, and those beside them."""

    on_busy: OnBusy | None


class SkippingOptions(_CommonOptions, total=False):
    """The same where a busy call is skipped."""

    on_busy: Required[Literal["skip"]]


class AnsweringOptions(_CommonOptions, total=False):
    """The same where it is not."""

    on_busy: Literal["raise"] | Callable[..., Any] | None


class Skipping(Protocol):
    """The decorator then: the function may give None."""

    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> Callable[P, Coroutine[Any, Any, R | None]]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Callable[P, R | None]: ...


OPTIONS = ("key", *NAMES, "on_busy", "on_backend_error", "until", "database")
