"""``distributed_lockable``: a function, a view or a method that runs under a lock."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, ParamSpec, TypeAlias, TypeVar, overload

from ..core.config import policy
from ..core.errors import BackendUnavailable, ConfigurationError, LockBusy
from ..core.keys import Key, KeyTemplates, bound_method
from ..core.runtime import TASKS, Runtime, drive
from ..web.streaming import StreamLock
from . import engine
from .hooks import TransactionManager, Until, stream_adapters, transaction_manager
from .lease import Lease
from .lock import UNSET, Options, Unset, blocking
from .scope import OnLost

logger = logging.getLogger("distlock_web")
P = ParamSpec("P")
R = TypeVar("R")

#: ``LockBusy`` is raised; or the call is skipped (None) and logged; or the callable makes the answer.
OnBusy: TypeAlias = "Literal['raise', 'skip'] | Callable[..., Any]"
#: ``BackendUnavailable`` is raised; or the call goes on without a lock; or the callable makes the answer.
OnBackendError: TypeAlias = "Literal['raise', 'open'] | Callable[..., Any]"


@overload
def distributed_lockable(function: Callable[P, R], /) -> Callable[P, R]: ...
@overload
def distributed_lockable(
    template: str | None = None,
    /,
    *,
    key: Key | None = None,
    prefix: str | None = None,
    expire: float | None = None,
    wait: float | Unset | None = UNSET,
    renew: bool | None = None,
    renew_for: float | None = None,
    store: str = "default",
    on_lost: OnLost | None = None,
    hold_at_least: float | None = None,
    on_busy: OnBusy | None = None,
    on_backend_error: OnBackendError | None = None,
    until: Until | None = None,
    database: object = None,
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...


def distributed_lockable(
    given: Callable[..., Any] | str | None = None,
    /,
    *,
    key: Key | None = None,
    on_busy: OnBusy | None = None,
    on_backend_error: OnBackendError | None = None,
    until: Until | None = None,
    database: object = None,
    **options: Any,
) -> Any:
    """Run a function under a lock: ``@distributed_lockable(key="order:{order_id}", expire=10)``.

    Works on functions and coroutines: views, methods, tasks, commands. The lock is taken before the call and given
    back after it, whatever happens, and only by its owner; an exception of the function reaches the caller unchanged.

    ``key`` is a format string over the function's arguments, a callable with the function's arguments, or a list of
    these; left out, the function's qualified name. ``prefix, expire, wait, renew, renew_for, store, on_lost,
    hold_at_least`` are those of :func:`distlock_web.lock`.

    ``on_busy``: ``"raise"`` ``LockBusy`` (a 409 in a view), ``"skip"`` (log, return None), or a callable
    ``(error, *args, **kwargs)`` that makes the answer. ``on_backend_error``: ``"raise"`` ``BackendUnavailable`` (a 503
    in a view), ``"open"`` (go on without a lock; ``current_lease().acquired`` is False), or a callable of that form.

    ``until`` says what the lock outlives. Left out: the function, or the body of a streaming response that it returns
    (renewed meanwhile). ``"return"``: the function only. ``"commit"``: the transaction that the decorator then opens
    around the function, extends the lease for, commits, and releases the lock after; ``database`` names it (a Django
    alias, an SQLAlchemy session).

    Raises ``ConfigurationError`` when it is applied, if the key or an option cannot be right.
    """
    if isinstance(given, str):
        if key is not None:
            raise ConfigurationError("distributed_lockable got two keys: one in front, one as key=.")
        key, given = given, None
    guard_options = Options(**options)
    if on_busy is not None:
        policy(on_busy, "on_busy", "raise", "skip")
    if on_backend_error is not None:
        policy(on_backend_error, "on_backend_error", "raise", "open")

    methods: dict[Any, LockedFunction] = {}

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        method = bound_method(function)
        # Django's method_decorator decorates the method of the object anew for every call.
        known = None if method is None else methods.get((type(method.__self__), method.__func__))
        guard = known or LockedFunction(function, key, guard_options, on_busy, on_backend_error, until, database)
        if method is not None:
            methods[type(method.__self__), method.__func__] = guard
        return _wrap(function, guard)

    return decorate if given is None else decorate(given)


#: Whether calling a function gives a coroutine. A framework adds what only it can know of its functions.
coroutine_tests: list[Callable[[Any], bool]] = [inspect.iscoroutinefunction]


class LockedFunction:
    """What a decorated function carries as ``__distlock__``: keys, options and policies. Nothing of a hold."""

    def __init__(
        self,
        function: Callable[..., Any],
        key: Key | None,
        options: Options,
        on_busy: OnBusy | None,
        on_backend_error: OnBackendError | None,
        until: Until | None,
        database: object,
    ) -> None:
        _check(function)
        self.asynchronous = any(test(function) for test in coroutine_tests)
        self.keys = KeyTemplates(key, function, asynchronous=self.asynchronous)
        self.options = options
        self.on_busy = on_busy
        self.on_backend_error = on_backend_error
        self.what = self.keys.function
        self.code = getattr(inspect.unwrap(function), "__code__", None)
        self.until = until
        self.database = database
        self.owner = self._owner()

    def _owner(self) -> TransactionManager | None:
        if self.until not in (None, "return", "commit"):
            raise ConfigurationError(f'{self.what}: until is {self.until!r}; it has to be "return", "commit" or None.')
        if self.until != "commit":
            if self.database is not None:
                raise ConfigurationError(f'{self.what}: database= names the transaction of until="commit".')
            return None
        if self.asynchronous:
            raise ConfigurationError(
                f'{self.what}: until="commit" is for synchronous functions: a database transaction belongs to one '
                f"thread, and this is a coroutine. Put the work into a function and call it with sync_to_async."
            )
        return transaction_manager(self.database, self.what)

    async def open(self, runtime: Runtime, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Lease:
        """Take the lock for one call."""
        spec = self.options.spec(await self.keys.names(args, kwargs), runtime, self.what, self.code)
        lease = Lease(spec, runtime)
        try:
            await engine.acquire(lease)
        except BackendUnavailable as error:
            if self._policy("on_backend_error", spec.store.config.on_backend_error) != "open":
                raise
            logger.error("%s runs without its lock: %s", self.what, error)
            lease = Lease(spec, runtime)
            lease.acquired = False
            lease.enter()
        return lease

    async def refused(self, error: LockBusy | BackendUnavailable, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The call cannot run: what the policy makes of it."""
        config = self.options.config()
        if isinstance(error, LockBusy):
            chosen = self._policy("on_busy", config.on_busy)
        else:
            chosen = self._policy("on_backend_error", config.on_backend_error)
        if callable(chosen):
            made = chosen(error, *args, **kwargs)
            return await made if inspect.isawaitable(made) else made
        if chosen == "skip":
            logger.info("%s skipped. Did not get a lock for key %s.", self.what, error.name)
            return None
        raise error

    def carried(self, result: Any, lease: Lease) -> Any:
        """The result as a streaming response that goes on under the lock; None if it is not one, or is not to."""
        if self.until is None:
            for carrier in stream_adapters:
                response = carrier(result, self, partial(StreamLock, lease))
                if response is not None:
                    return response
        return None

    def _policy(self, name: str, default: Any) -> Any:
        own = getattr(self, name)
        return default if own is None else own


def _check(function: Any) -> None:
    if inspect.isclass(function):
        raise ConfigurationError(
            f"distributed_lockable is for functions, not for the class {function.__name__}: decorate a method, or "
            f'in Django use @method_decorator(distributed_lockable(...), name="dispatch").'
        )
    if isinstance(function, (staticmethod, classmethod)):
        raise ConfigurationError(
            f"distributed_lockable goes below @{type(function).__name__}, next to the function {function.__qualname__}."
        )
    if not callable(function):
        raise ConfigurationError(f"distributed_lockable is for functions, not for {function!r}.")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigurationError(
            f"distributed_lockable cannot lock the generator {function.__qualname__}: its body runs after the call has "
            f"returned. Write `with lock(...)` inside it, or decorate the view that returns it."
        )


def _wrap(function: Callable[..., Any], guard: LockedFunction) -> Callable[..., Any]:
    if guard.asynchronous:

        @functools.wraps(function)
        async def locked(*args: Any, **kwargs: Any) -> Any:
            try:
                lease = await guard.open(TASKS, args, kwargs)
            except (LockBusy, BackendUnavailable) as error:
                return await guard.refused(error, args, kwargs)
            try:
                result = await function(*args, **kwargs)
                response = guard.carried(result, lease) if stream_adapters else None
            except BaseException as error:
                await engine.end(lease, error)
                raise
            if response is not None:
                return response
            await engine.end(lease, None)
            return result

    else:

        @functools.wraps(function)
        def locked(*args: Any, **kwargs: Any) -> Any:
            runtime = blocking()
            if guard.owner is not None:
                guard.owner.refuse_open(guard.what, guard.database)
            try:
                lease = drive(guard.open(runtime, args, kwargs))
            except (LockBusy, BackendUnavailable) as error:
                return drive(guard.refused(error, args, kwargs))
            try:
                if guard.owner is None:
                    result = function(*args, **kwargs)
                else:
                    result = guard.owner.run(partial(function, *args, **kwargs), lease, guard.database)
                _refuse_coroutine(result, guard)
                response = guard.carried(result, lease) if stream_adapters else None
            except BaseException as error:
                drive(engine.end(lease, error))
                raise
            if response is not None:
                return response
            drive(engine.end(lease, None))
            return result

    locked.__distlock__ = guard  # type: ignore[attr-defined]
    if guard.owner is not None:
        guard.owner.mark(locked, guard.database)
    return locked


def _refuse_coroutine(result: Any, guard: LockedFunction) -> None:
    if inspect.iscoroutine(result):
        result.close()
        raise ConfigurationError(
            f"{guard.what} is a plain function that returned a coroutine, whose body would run without the lock: "
            f"decorate the async function itself."
        )
