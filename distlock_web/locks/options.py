"""The options of a lock, listed once; and what becomes of them with the store's settings: a ``Spec``."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection
from functools import lru_cache, partial
from inspect import Parameter, signature
from types import CodeType
from typing import Any, NamedTuple, TypedDict

from ..core.backend import SHARED
from ..core.config import SETTINGS, StoreConfig
from ..core.errors import ConfigurationError
from ..core.keys import SURELY_SHORT, shorten
from ..core.registry import Store, registry
from ..core.runtime import TASKS, Runtime
from ..core.setting import (
    ON_LOST,
    Duration,
    Setting,
    check_count,
    check_flag,
    check_known,
    check_prefix,
    check_seconds,
    check_wait,
    refuse_coroutine,
    table,
)
from .elsewhere import ELSEWHERE
from .lease import Lease, OnLost
from .scope import Scope, Spec, WhenLost


class OptionsOfAnyLock(TypedDict, total=False):
    """What ``lock(...)``, ``distributed_lockable(...)`` and ``once(...)`` share."""

    prefix: str | None
    expire: Duration | None
    wait: Duration | None
    max_waiters: int | None
    renew: bool | None
    renew_for: Duration | None
    store: str | None
    on_lost: OnLost | None


class LockOptions(OptionsOfAnyLock, total=False):
    """What ``lock(...)`` and ``distributed_lockable(...)`` share. What is left out comes from the store's settings.

    Times are seconds, a ``timedelta``, or text such as ``"1h30m"``, ``"90s"``, ``"500ms"``. None is the
    same as left out, except for ``wait``. ``OPTIONS`` below say what each means.
    """

    limit: int | None
    shared: bool | None
    hold_at_least: Duration | None


def _check_alias(given: object, setting: str) -> str:
    if not isinstance(given, str):
        raise ConfigurationError(f"{setting} is {given!r}; it has to be an alias in DISTLOCK, such as 'default'.")
    return given


def _of_store(option: str, check: Callable[[Any, str], Any], meaning: str) -> Setting:
    """An option whose default is a setting of its store."""
    return Setting(option, check, SETTINGS[option.upper()].default, meaning)


#: What each of ``LockOptions`` may be, and means.
OPTIONS = table(
    _of_store("prefix", check_prefix, "in front of every key"),
    _of_store("expire", check_seconds, "how long the lock lives if it is not released"),
    _of_store("wait", check_wait, "how long to queue; 0: not at all; `None`: for ever"),
    Setting(
        "max_waiters", check_count, None,
        "how many may queue; the next caller is [refused at once](how.md#a-queue-with-an-end)", "no limit",
    ),
    _of_store("renew", check_flag, "renew the lock while the block runs"),
    Setting(
        "renew_for", check_seconds, None,
        "longest total time to renew; `lock(...)` also needs `renew=True`", "no limit",
    ),
    Setting("store", _check_alias, "default", "the alias in `DISTLOCK`"),
    _of_store(
        "on_lost", ON_LOST.check,
        '`"raise"` raises at the end of the block. `"warn"` writes to the log. `"cancel"` cancels the asyncio task. '
        "A callable is called with the lease, and the loss is [not raised](responses.md#when-the-lock-is-lost)",
    ),
    Setting(
        "limit", partial(check_count, below=SHARED), 1, "how many may hold the lock [at once](sharing.md)"
    ),
    Setting(
        "shared", check_flag, False,
        "all callers with `shared=True` may hold the lock together ([readers](sharing.md#readers-and-writers)), "
        "and no other caller at the same time, with or without `limit`",
    ),
    Setting(
        "hold_at_least", partial(check_seconds, zero=True), 0.0,
        "if the block [succeeds](responses.md#what-counts-as-success), keep the lock at least this long, counted from "
        "when it was acquired",
    ),
)  # fmt: skip


class Unset:
    """Not given: the store's setting holds."""

    def __repr__(self) -> str:
        return "not given"


UNSET = Unset()


def show_options(function: Any, options: Any) -> None:
    """``help()`` and ``inspect.signature`` list the options by name, and not as ``**options``."""
    kinds = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    found = signature(function)
    named = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=UNSET, annotation=getattr(kind, "__forward_arg__", kind))
        for name, kind in options.__annotations__.items()
    ]
    first = [each for each in found.parameters.values() if each.kind in kinds]
    function.__signature__ = found.replace(parameters=[*first, *named])


def check_names(function: str, given: Collection[str], known: Collection[str] = OPTIONS) -> None:
    """``ConfigurationError`` for an option that does not exist, with the one that was probably meant."""
    where = f"{function} has the option"
    for name in given:
        if name not in known and name in ELSEWHERE:
            raise ConfigurationError(f"{where} {name!r}, which does not exist. {ELSEWHERE[name]}")
    check_known(given, known, where)


class _Resolved(NamedTuple):
    """Options with what their store's settings say where they are left out, checked against what it can do."""

    store: weakref.ref[Store]
    config: StoreConfig  #: of that store, which a test may have with several settings
    prefix: str
    expire: float
    wait: float | None
    renew: bool
    on_lost: WhenLost


class Options:
    """The options of a lock, checked as far as that is possible before its store is known."""

    # What is left out, which is most of it. None, of what the store has a setting of: that holds.
    store: str = OPTIONS["store"].default
    prefix: str | None = None
    expire: float | None = None
    wait: float | Unset | None = UNSET
    max_waiters: int | None = OPTIONS["max_waiters"].default
    limit: int = OPTIONS["limit"].default
    shared: bool = OPTIONS["shared"].default
    renew: bool | None = None
    renew_for: float | None = OPTIONS["renew_for"].default
    on_lost: OnLost | None = None
    hold_at_least: float = OPTIONS["hold_at_least"].default
    records = False  #: what is done leaves a record

    def __init__(self, given: LockOptions) -> None:
        for name, value in given.items():
            if (value is not None or name == "wait") and name in OPTIONS:
                self.__dict__[name] = OPTIONS[name].check(value, name)
        if self.renew_for is not None and self.renew is False:
            raise _no_renewal()
        if self.shared:
            if "limit" in self.__dict__:
                raise ConfigurationError(
                    "limit says how many may hold the lock at once, shared=True lets in all with shared=True: use "
                    "one of the two."
                )
            self.limit = SHARED
        self._resolved: dict[Runtime, _Resolved] = {}  # for the store that was asked last

    def check(self, store: Store, runtime: Runtime) -> None:
        """``ConfigurationError`` for what the store cannot do."""
        self._resolve(store, runtime)

    @property
    def wants_more(self) -> bool:
        """Whether it asks for what not every store can do."""
        return self.limit > 1 or self.max_waiters is not None or self.records

    def config(self) -> StoreConfig:
        return registry().store(self.store).config

    def spec(
        self,
        keys: tuple[str, ...],
        runtime: Runtime,
        function: str = "",
        code: CodeType | None = None,
        template: str = "",
    ) -> Spec:
        """The request for these escaped keys. ``ConfigurationError`` for what the store cannot do."""
        store = registry().store(self.store)  # by its method: that of `distlock_fake` asks for the app's settings
        known = self._resolved.get(runtime)
        if known is None or known.store() is not store or known.config is not store.config:
            known = self._resolved[runtime] = self._resolve(store, runtime)
        _, _, prefix, expire, wait, renew, on_lost = known
        if self.renew_for is not None and not (renew or function):  # what a function returns may be a stream
            raise _no_renewal()
        names: tuple[str, ...] = (prefix + keys[0],)
        if len(keys) > 1 or len(names[0]) > SURELY_SHORT:
            # The one order in which every caller takes them: so no two wait for each other.
            names = tuple(sorted({shorten(prefix + key) for key in keys}))
        # By position, for every lock that is taken is asked for so.
        return Spec(
            store, names, expire, wait, renew, self.renew_for, on_lost, self.hold_at_least,
            function, code, template, prefix, self.max_waiters, self.limit,
        )  # fmt: skip

    def _resolve(self, store: Store, runtime: Runtime) -> _Resolved:
        config, capabilities = store.config, store.backend.capabilities
        expire = self.expire if self.expire is not None else config.expire
        if expire < capabilities.min_expire:
            check_seconds(expire, "expire", minimum=capabilities.min_expire)
        if max(expire, self.hold_at_least) > capabilities.max_expire:
            raise self._too_long(store, expire)
        if self.records:
            check_records(store)
        wait = config.wait if isinstance(self.wait, Unset) else self.wait
        if self.max_waiters is not None:
            self._check_queue(store, wait)
        if self.limit > 1 and not capabilities.sharing:
            raise ConfigurationError(
                f"{'shared is True' if self.shared else f'limit is {self.limit}'}, but a lock in the store "
                f"{store.alias!r} has one holder. Redis (Sentinel and clusters, too), SQL and memory can have more."
            )
        prefix = config.prefix if self.prefix is None else self.prefix
        renew = config.renew if self.renew is None else self.renew
        return _Resolved(weakref.ref(store), config, prefix, expire, wait, renew, self._when_lost(config, runtime))

    def _too_long(self, store: Store, expire: float) -> ConfigurationError:
        longest = store.backend.capabilities.max_expire
        what, seconds = ("expire", expire) if expire > longest else ("hold_at_least", self.hold_at_least)
        return ConfigurationError(
            f"{what} is {seconds:g} s, longer than the longest lease of the store {store.alias!r}, {longest:g} s "
            f"(of Redlock: OPTIONS['restart_delay'])."
        )

    def _check_queue(self, store: Store, wait: float | None) -> None:
        if wait == 0:
            raise ConfigurationError(
                "max_waiters is how many may queue: it needs a wait, such as wait=10 or wait=None."
            )
        if not store.backend.capabilities.bounded_queue:
            raise ConfigurationError(
                f"max_waiters is {self.max_waiters}, but the store {store.alias!r} cannot limit its queue. Redis "
                f"(also with Sentinel and as a cluster), the SQL stores and memory can."
            )

    def _when_lost(self, config: StoreConfig, runtime: Runtime) -> WhenLost:
        on_lost: Any = self.on_lost or config.on_lost
        if callable(on_lost):
            return _with_lease(on_lost)
        if on_lost == "cancel" and runtime is not TASKS:
            if self.on_lost is not None:
                raise ConfigurationError(NO_TASK)
            return "raise"  # the setting is for tasks and threads alike, and a thread cannot be cancelled
        return on_lost  # type: ignore[no-any-return]


def check_records(store: Store) -> None:
    """``ConfigurationError`` if the store cannot keep what ``once`` leaves there."""
    if not store.backend.capabilities.records:
        raise ConfigurationError(
            f"once keeps a record of what is done, which the store {store.alias!r} cannot: use Redis (not Redlock) or "
            f"SQL."
        )


NO_TASK = 'on_lost="cancel" cancels an asyncio task; in a thread use "raise" or a callable.'


def _no_renewal() -> ConfigurationError:
    return ConfigurationError("renew_for limits the renewal: it needs renew=True.")


def _with_lease(callback: Callable[[Lease], object]) -> Callable[[Scope], object]:
    def told(scope: Scope) -> None:
        made = callback(Lease(scope))
        refuse_coroutine(made, "on_lost gave a coroutine, which nobody would await: give a plain function.")

    return told


def options_of(given: LockOptions) -> Options:
    """What ``lock(...)`` was given, checked; the same for the same options, for most locks are made again and again."""
    try:
        return Options(_checked(given)) if callable(given.get("on_lost")) else _known(**given)
    except TypeError:  # a value that has no hash
        return Options(_checked(given))


@lru_cache(maxsize=256, typed=True)
def _known(**given: Any) -> Options:
    return Options(_checked(given))  # type: ignore[arg-type]


def _checked(given: LockOptions) -> LockOptions:
    check_names("lock", given)
    return given
