"""The options of a lock, listed once; and what becomes of them with the store's settings: a ``Spec``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from types import CodeType
from typing import Any, TypedDict, TypeVar

from ..core.config import (
    StoreConfig,
    check_flag,
    check_policy,
    check_prefix,
    check_seconds,
    check_seconds_or_none,
    unknown_name,
)
from ..core.errors import ConfigurationError
from ..core.keys import shorten
from ..core.registry import Store, registry
from ..core.runtime import TASKS, Runtime
from .lease import Lease, OnLost
from .scope import Scope, Spec, WhenLost


class LockOptions(TypedDict, total=False):
    """What ``lock(...)`` and ``distributed_lockable(...)`` share. What is left out comes from the store's settings.

    All times are seconds. Beside ``wait``, whose None means something, None is as good as left out.
    """

    #: The fixed beginning of the names in the store.
    prefix: str | None
    #: How long the lock lives unless it is renewed or released.
    expire: float | None
    #: How long to queue: 0 not at all, None for ever.
    wait: float | None
    #: Renew it while the block runs.
    renew: bool | None
    #: The longest that it is renewed.
    renew_for: float | None
    #: The alias in ``DISTLOCK`` of the store that it is in: ``"default"``.
    store: str
    #: ``"raise"`` at the end of the block, ``"warn"``, ``"cancel"`` the asyncio task, or a callable with the lease.
    on_lost: OnLost | None
    #: After success it stays taken until so long after it was acquired.
    hold_at_least: float | None


NAMES = tuple(LockOptions.__annotations__)


class Unset:
    """Not given: the store's setting holds."""

    def __repr__(self) -> str:
        return "not given"


UNSET = Unset()
F = TypeVar("F", bound=Callable[..., Any])


def listing(options: type) -> Callable[[F], F]:
    """Let ``help()`` and ``inspect`` show a function's ``**options`` one by one."""

    def decorate(function: F) -> F:
        signature = inspect.signature(function)
        given = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
        listed = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=UNSET,
                annotation=getattr(annotation, "__forward_arg__", annotation),
            )
            for name, annotation in options.__annotations__.items()
        ]
        function.__signature__ = signature.replace(parameters=[*given, *listed])  # type: ignore[attr-defined]
        return function

    return decorate


def check_names(function: str, given: Iterable[str], known: tuple[str, ...] = NAMES) -> None:
    """``ConfigurationError`` for an option that does not exist, with the one that was probably meant."""
    for name in given:
        if name not in known:
            raise ConfigurationError(unknown_name(f"{function} has the option", name, known))


class Options:
    """The options of one lock, checked as far as that is possible before its store is known."""

    __slots__ = ("expire", "hold_at_least", "on_lost", "prefix", "renew", "renew_for", "store", "wait")

    def __init__(self, given: LockOptions) -> None:
        get = given.get
        self.prefix = None if (prefix := get("prefix")) is None else check_prefix(prefix, "prefix")
        self.expire = None if (expire := get("expire")) is None else check_seconds(expire, "expire")
        self.wait = check_seconds_or_none(given["wait"], "wait", zero=True) if "wait" in given else UNSET
        self.renew = None if (renew := get("renew")) is None else check_flag(renew, "renew")
        self.renew_for = None if (renew_for := get("renew_for")) is None else check_seconds(renew_for, "renew_for")
        self.store = given.get("store", "default")
        self.on_lost: OnLost | None = None
        if (on_lost := get("on_lost")) is not None:
            self.on_lost = check_policy(on_lost, "on_lost", "raise", "warn", "cancel")
        at_least = get("hold_at_least")
        self.hold_at_least = 0.0 if at_least is None else check_seconds(at_least, "hold_at_least", zero=True)
        if self.renew_for is not None and self.renew is False:
            raise ConfigurationError("renew_for bounds the renewal: it needs renew=True.")

    def config(self) -> StoreConfig:
        return registry().store(self.store).config

    def spec(
        self,
        keys: tuple[str, ...],
        runtime: Runtime,
        function: str = "",
        code: CodeType | None = None,
        template: str = "",
        place: str = "",
    ) -> Spec:
        """The request for these escaped keys. ``ConfigurationError`` for what the store cannot do."""
        store = registry().store(self.store)
        config, capabilities = store.config, store.backend.capabilities
        expire = self.expire if self.expire is not None else config.expire
        if expire < capabilities.min_expire:
            check_seconds(expire, "expire", minimum=capabilities.min_expire)
        wait = config.wait if isinstance(self.wait, Unset) else self.wait
        if wait != 0 and not capabilities.waiting:
            raise self._no_waiting(store)
        prefix = config.prefix if self.prefix is None else self.prefix
        return Spec(
            store=store,
            names=_names(prefix, keys),
            expire=expire,
            wait=wait,
            renew=config.renew if self.renew is None else self.renew,
            renew_for=self.renew_for,
            on_lost=self._when_lost(config, runtime),
            hold_at_least=self.hold_at_least,
            function=function,
            code=code,
            template=template,
            place=place,
        )

    def _no_waiting(self, store: Store) -> ConfigurationError:
        setting, wait = "wait", self.wait
        if isinstance(wait, Unset):
            setting, wait = f'DISTLOCK[{store.alias!r}]["WAIT"]', store.config.wait
        return ConfigurationError(
            f"{setting} is {wait!r}, but the store {store.alias!r} does not let one wait: say wait=0, and try again "
            f"later."
        )

    def _when_lost(self, config: StoreConfig, runtime: Runtime) -> WhenLost:
        on_lost: Any = self.on_lost or config.on_lost
        if callable(on_lost):
            return _with_lease(on_lost)
        if on_lost == "cancel" and runtime is not TASKS:
            if self.on_lost is not None:
                raise ConfigurationError(
                    'on_lost="cancel" cancels an asyncio task; in a thread use "raise" or a callable.'
                )
            return "raise"  # the setting is for tasks and threads alike, and a thread cannot be cancelled
        return on_lost  # type: ignore[no-any-return]


def _with_lease(callback: Callable[[Lease], object]) -> Callable[[Scope], object]:
    return lambda scope: callback(Lease(scope))


def _names(prefix: str, keys: tuple[str, ...]) -> tuple[str, ...]:
    """The names, in the one order in which everybody takes them: so nobody waits in a circle."""
    if len(keys) == 1:
        return (shorten(prefix + keys[0]),)
    return tuple(sorted({shorten(prefix + key) for key in keys}))
