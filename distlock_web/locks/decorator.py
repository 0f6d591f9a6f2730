"""``distributed_lockable``: a function, a view or a method that runs under a lock."""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from types import AsyncGeneratorType, CoroutineType, FunctionType, GeneratorType, MethodType
from typing import Any, Literal, ParamSpec, TypeAlias, TypedDict, TypeVar, Unpack, overload

from ..core.errors import BackendUnavailable, ConfigurationError, LockBusy
from ..core.runtime import TASKS, Runtime, blocking_runtime, drive
from ..core.setting import check_plain, check_policy, refuse_coroutine, shown
from . import ending, engine, hooks, refused
from .events import log_fields
from .hooks import Integration, RunningTask, TransactionManager, Until
from .key_templates import Key, KeyInFront, KeyTemplates, MalformedValue, bound_method
from .lease import Lease
from .options import NO_TASK, LockOptions, Options, check_names, show_options
from .reentry import chain
from .scope import Scope, Spec

logger = logging.getLogger("distlock_web")
P = ParamSpec("P")
R = TypeVar("R")

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


class FunctionOptions(LockOptions, CallOptions, total=False):
    """What ``distributed_lockable(...)`` takes."""


OPTIONS = tuple(FunctionOptions.__annotations__)


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
    ``prefix, expire, wait, max_waiters, limit, shared, renew, renew_for, store, on_lost, hold_at_least`` are those of
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
    decorate = decorator(LockedFunction, options)
    return decorate if given is None else decorate(given)


show_options(distributed_lockable, FunctionOptions)


def take_key(function: str, given: object, options: Any) -> None:
    """The key that stands in front of all options."""
    if options.get("key") is not None:
        raise ConfigurationError(f"{function} got two keys: one as the first argument, one as key=.")
    options["key"] = given


def decorator(
    kind: Callable[[Callable[..., Any], Options, Mapping[str, Any]], LockedFunction], options: Any
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """What puts a function under its lock, with these options, checked. ``kind`` makes the locked function."""
    lock_options = Options(options)
    if (on_busy := options.get("on_busy")) is not None:
        check_policy(on_busy, "on_busy", more=("retry",))
    if (on_backend_error := options.get("on_backend_error")) is not None:
        check_policy(on_backend_error, "on_backend_error")
    if options.get("success") is not None:
        _check_success(options["success"])
    if options.get("when") is not None:
        _check_when(options["when"])
    if options.get("methods") is not None:
        options["methods"] = _check_methods(options["methods"])
    bound: dict[Any, LockedFunction] = {}

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        method = bound_method(function)
        # Django's method_decorator decorates the method of the object anew for every call.
        known = None if method is None else bound.get((type(method.__self__), method.__func__))
        locked = known or kind(function, lock_options, options)
        if method is not None:
            bound[type(method.__self__), method.__func__] = locked
        return locked.wrap(function)

    return decorate


class LockedFunction:
    """What a decorated function carries as ``__distlock__``: keys, options and policies. Nothing of a hold."""

    #: What its names begin with, after the prefix.
    space = ""
    #: The decorator's name, for messages.
    decorator = "distributed_lockable"

    def __init__(self, function: Callable[..., Any], lock_options: Options, options: Mapping[str, Any]) -> None:
        _check(function, self.decorator)
        hooks.check_function(function)
        self.asynchronous = hooks.is_coroutine(function)
        self.keys = KeyTemplates(options.get("key"), function, asynchronous=self.asynchronous)
        self.name = self.keys.function
        #: The undecorated function, in which all locks on one function agree; of a bound method, the class's.
        self.function = undecorated(function)
        self.code = getattr(self.function, "__code__", None)
        self.options = lock_options
        self.on_busy = options.get("on_busy")
        self.on_backend_error = options.get("on_backend_error")
        self.until = options.get("until")
        self.database = options.get("database")
        self.success = options.get("success")
        self.methods = options.get("methods")
        self.when = options.get("when")
        self.chooses = self.methods is not None or self.when is not None
        if self.chooses and not hooks.offered(Integration.request_of):
            raise self._no_view("no framework is loaded")
        if self.on_busy == "retry" and not hooks.know_tasks():
            raise ConfigurationError(
                f'{self.name}: on_busy="retry" is for tasks of Celery, which is not installed: '
                f"pip install 'distlock_web[celery]'"
            )
        if not self.asynchronous:
            self._check_plain()
        self.transactions = self._transactions()
        self._refuse_second_commit(function)
        self._told_of_stream = False

    def _check_plain(self) -> None:
        """A plain function has no task to cancel, and nobody to await an answer."""
        if self.options.on_lost == "cancel":
            raise ConfigurationError(f"{self.name}: {NO_TASK}")
        check_plain(self.on_busy, f"{self.name}: on_busy")
        check_plain(self.on_backend_error, f"{self.name}: on_backend_error")
        check_plain(self.when, f"{self.name}: when")

    def _transactions(self) -> TransactionManager | None:
        if self.until not in (None, "return", "commit"):
            raise ConfigurationError(f'{self.name}: until is {self.until!r}; it has to be "return", "commit" or None.')
        if self.until != "commit":
            if self.database is not None:
                raise ConfigurationError(f'{self.name}: database= names the transaction of until="commit".')
            return None
        if self.asynchronous:
            raise ConfigurationError(
                f'{self.name}: until="commit" is for synchronous functions: a database transaction belongs to one '
                f"thread, and this is a coroutine. Put the work into a function and call it with sync_to_async."
            )
        return hooks.transaction_manager(self.database, self.name)

    def _refuse_second_commit(self, function: Callable[..., Any]) -> None:
        """``ConfigurationError``: of two on one function, the inner one would find the transaction of the outer one."""
        for inner in locks_on(function):
            if self.until == inner.until == "commit" and self.database == inner.database:
                raise ConfigurationError(
                    f'{self.name} has two decorators with until="commit", {self.decorator} above {inner.decorator}: '
                    f"the inner one would be refused at each call. Leave until= out of the upper one, which ends after "
                    f"the commit in any case; where one of them is once, put it below the lock."
                )

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function under its lock."""
        wrapper = (_wrap_coroutine if self.asynchronous else _wrap_function)(function, self)
        wrapper.__distlock__ = self  # type: ignore[attr-defined]
        if inspect.isfunction(function):
            # Django Ninja looks names up in the module of the function that it is given: in ours, where they are not.
            resolved = resolved_signature(function, self.keys.signature)
            if resolved is not self.keys.signature:
                wrapper.__signature__ = resolved  # type: ignore[attr-defined]
        if self.transactions is not None:
            self.transactions.mark(wrapper, self.database)
        return wrapper

    async def is_open(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether this call runs without the lock, for ``methods`` or ``when`` do not choose its request."""
        request = hooks.first(Integration.request_of, args, kwargs, self)
        if request is None:
            raise self._no_view("this call has no request")
        if self.methods is not None and request.method not in self.methods:
            return True
        chosen = True if self.when is None else self.when(request)
        if not self.asynchronous:
            self._refuse_coroutine(chosen, "when", "but it is a plain function: ")
        return not (await chosen if inspect.isawaitable(chosen) else chosen)

    def call_open(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the plain function as if it was not decorated."""
        if self.transactions is None:
            return function(*args, **kwargs)
        return self.transactions.run_open(function, partial(function, *args, **kwargs), self.database)

    def _no_view(self, why: str) -> ConfigurationError:
        return ConfigurationError(
            f"{self.name}: {'when' if self.methods is None else 'methods'}= is for views, and {why}; leave it out for "
            f"other functions. {hooks.why_unknown()}"
        )

    def task(self) -> RunningTask | None:
        """The task that this call is in."""
        task = hooks.first(Integration.running_task)
        if task is None and self.on_busy == "retry":
            raise ConfigurationError(
                f'{self.name}: on_busy="retry" sends the running task of Celery again, and no task runs here. '
                f'Elsewhere use on_busy="raise" or wait=.'
            )
        return task

    async def scope(self, runtime: Runtime, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Scope:
        """The scope of one call, which holds nothing yet."""
        return Scope(await self.spec(runtime, args, kwargs), runtime)

    async def spec(self, runtime: Runtime, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Spec:
        """What one call asks for."""
        try:
            keys = await self.keys.keys(args, kwargs)
        except MalformedValue as error:
            not_found = hooks.first(Integration.not_found, args, kwargs, self)
            if not_found is None:
                raise
            raise not_found from error
        if self.space:
            keys = tuple(self.space + key for key in keys)
        return self.options.spec(keys, runtime, self.name, self.code, self.keys.template)

    async def acquire(self, scope: Scope, task: RunningTask | None = None) -> Scope:
        """Take the lock for one call. The scope that it runs in: another one if it is let through without its lock."""
        try:
            if task is not None:
                scope = await task.begin(self, scope)
            if not scope.holds:
                await engine.acquire(scope)
        except BackendUnavailable as error:
            if self._policy("on_backend_error", scope.spec.store.config.on_backend_error) != "open":
                raise
            logger.error("%s runs without its lock: %s", self.name, error, extra=scope.log_fields("let_through"))
            scope = Scope(scope.spec, scope.runtime, in_block=scope.in_block)
            scope.locked = False
            chain.enter(scope)
            refused.tell_of_no_lock(scope, error)
        return scope

    async def rejected(
        self, error: LockBusy | BackendUnavailable, scope: Scope, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """The call, whose scope holds nothing, cannot run: what the policy makes of it."""
        config, name = self.options.config(), "on_busy" if isinstance(error, LockBusy) else "on_backend_error"
        chosen = self._policy(name, getattr(config, name))
        if callable(chosen):
            for_views = getattr(chosen, "for_views", False) is True
            if for_views and hooks.first(Integration.request_of, args, kwargs, self) is None:
                raise error
            made = chosen(error, *args, **kwargs)
            if self.asynchronous:
                return await made if inspect.isawaitable(made) else made
            self._refuse_coroutine(made, name, "but it is a plain function: ")
            return made
        if chosen == "skip":
            fields = log_fields("busy", config.alias, error.name or "", self.keys.template, function=self.name)
            logger.info("%s skipped. Did not get a lock for key %s. %s", self.name, error.name, error, extra=fields)
            return None
        if (
            chosen == "retry"
            and isinstance(error, LockBusy)
            and (task := hooks.first(Integration.running_task)) is not None
        ):
            raise task.retry(error)
        raise error

    def call(self, function: Callable[..., Any], scope: Scope, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the plain function under its lock; with ``until="commit"``, in a transaction that ends before it."""
        if self.transactions is None:
            result = function(*args, **kwargs)
        else:
            call = partial(function, *args, **kwargs)
            result = self.transactions.run(self.name, call, Lease(scope), self.database)
        self.refuse_unlocked(result)
        drive(self.judge(result, scope, args, kwargs))
        return result

    def refuse_unlocked(self, result: object) -> None:
        """``ConfigurationError`` if the function has returned what has yet to run, and would without the lock."""
        if isinstance(result, CoroutineType):
            result.close()
            raise ConfigurationError(
                f"{self.name} returned a coroutine, whose body would run without the lock: await it in the function."
                if self.asynchronous
                else f"{self.name} is a plain function that returned a coroutine, whose body would run without the "
                f"lock: decorate the async function itself."
            )
        if not isinstance(result, _RUN_LATER) or self.until == "return":
            return
        if not hooks.first(Integration.is_stream, result, self):  # which goes on under the lock
            raise ConfigurationError(
                f"{self.name} returned a {type(result).__name__.strip('_')}, whose body would run without the lock. "
                f"Return what is done, such as a list, or write `with lock(...)` inside the generator. If its body "
                f'needs no lock, say until="return".'
            )

    def succeeded(self, result: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether the call that returned this has done its work."""
        if self.success is None:
            return not hooks.first(Integration.is_failure, result, args, kwargs, self)
        succeeded = self.success(result)
        self._refuse_coroutine(succeeded, "success", "")
        return bool(succeeded)

    async def judge(self, result: Any, scope: Scope, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The function has returned this: what becomes of the lock at its release."""
        if scope.spec.hold_at_least and not self.succeeded(result, args, kwargs):
            scope.spec = scope.spec._replace(hold_at_least=0.0)  # free as soon as it is released

    def streamed(self, result: Any, scope: Scope) -> hooks.Answer | None:
        """The result as a streaming response that goes on under the lock; None if it is not one, or is not to."""
        if self.until is None:
            response = hooks.first(Integration.stream, result, self, Lease(scope))
            return response if response is None or isinstance(response, hooks.Answer) else hooks.Answer(response)
        if self.until == "commit" and not self._told_of_stream and hooks.first(Integration.is_stream, result, self):
            self._told_of_stream = True
            logger.warning(
                '%s returns a stream, and until="commit" releases its lock before the body is sent. To hold the lock '
                "for the body, leave until= out, and in Django put @transaction.non_atomic_requests on the view.",
                self.name, extra=scope.log_fields("stream"),
            )  # fmt: skip
        return None

    def _refuse_coroutine(self, made: object, option: str, why: str) -> None:
        refuse_coroutine(made, f"{self.name}: its {option} gave a coroutine, {why}nobody would await that.")

    def _policy(self, name: str, default: Any) -> Any:
        own = getattr(self, name)
        return default if own is None else own


# Two wrappers, not one coroutine that is driven: a StopIteration of the function's would become a RuntimeError.


def _wrap_function(function: Callable[..., Any], locked: LockedFunction) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if locked.chooses and drive(locked.is_open(args, kwargs)):
            return locked.call_open(function, args, kwargs)
        runtime = blocking_runtime()
        if locked.transactions is not None:
            locked.transactions.refuse_open(locked.name, locked.database)
        task = locked.task()
        scope = drive(locked.scope(runtime, args, kwargs))
        try:
            try:
                scope = drive(locked.acquire(scope, task))
            except (LockBusy, BackendUnavailable) as error:
                return drive(locked.rejected(error, scope, args, kwargs))
            result = locked.call(function, scope, args, kwargs)
            response = locked.streamed(result, scope)
            if response is not None:
                return response.value
            ending.end_now(scope, None)
            return result
        except BaseException as error:
            if task is not None and task.keeps(scope):
                raise
            try:
                ending.end_now(scope, error)  # does nothing where the scope has ended
            except BaseException as interruption:  # a signal's, perhaps before anything was done
                ending.end_now(scope, interruption)
                raise
            raise

    return wrapper


def _wrap_coroutine(function: Callable[..., Any], locked: LockedFunction) -> Callable[..., Any]:
    @functools.wraps(function)
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        if locked.chooses and await locked.is_open(args, kwargs):
            return await function(*args, **kwargs)
        task = locked.task()
        scope = await locked.scope(TASKS, args, kwargs)
        try:
            try:
                scope = await locked.acquire(scope, task)
            except (LockBusy, BackendUnavailable) as error:
                return await locked.rejected(error, scope, args, kwargs)
            result = await function(*args, **kwargs)
            locked.refuse_unlocked(result)
            await locked.judge(result, scope, args, kwargs)
            response = locked.streamed(result, scope)
        except BaseException as error:
            if task is None or not task.keeps(scope):
                await ending.end(scope, error)  # does nothing where the scope has ended
            raise
        if response is not None:
            return response.value
        await ending.end(scope, None)
        return result

    return wrapper


def resolved_signature(function: Any, signature: inspect.Signature) -> inspect.Signature:
    """With types for annotations that are texts (``from __future__ import annotations``), as far as they can be."""
    if not any(isinstance(each.annotation, str) for each in signature.parameters.values()):
        return signature
    names = getattr(undecorated(function), "__globals__", {})

    def resolved(annotation: Any) -> Any:
        try:
            return eval(annotation, names) if isinstance(annotation, str) else annotation  # noqa: S307 - its own source
        except Exception:  # it names what the type checker alone imports, or a class that comes later
            return annotation

    parameters = [each.replace(annotation=resolved(each.annotation)) for each in signature.parameters.values()]
    return signature.replace(parameters=parameters)


def undecorated(function: Any) -> Any:
    """The function that all decorators are around, as far as they say so by ``functools.wraps``."""
    function = inspect.unwrap(function)
    return getattr(function, "__func__", function)


def wrapped(function: Any) -> list[Any]:
    """A function, and those that it is around, as far as they say so by ``functools.wraps``; the outermost first."""
    chain: list[Any] = []
    while function is not None and all(function is not each for each in chain):
        chain.append(function)
        function = getattr(function, "__wrapped__", None)
    return chain


def locks_on(function: Any) -> list[LockedFunction]:
    """The locks around a function, each once, the outermost first."""
    marks = (getattr(each, "__distlock__", None) for each in wrapped(function))
    return list(dict.fromkeys(mark for mark in marks if isinstance(mark, LockedFunction)))


def closed_over(function: Any) -> Iterator[tuple[str, Any]]:
    """What a function closes over, by the name that it has there."""
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    for name, cell in zip(names, getattr(function, "__closure__", None) or (), strict=False):
        with contextlib.suppress(ValueError):  # it is empty
            yield name, cell.cell_contents


def is_below(view: Any, function: Any) -> bool:
    """Whether this is the function that a view's decorators are around, also of those without ``functools.wraps``.

    Such a decorator has it in its closure, by a name of the decorator's. A helper that a view calls may be in the
    view's closure as well: by its own name, or defined beside the view. It is not below the view.
    """
    places, seen = [view], set[int]()
    while places:
        for each in wrapped(places.pop()):
            if undecorated(each) is function:
                return True
            for name, content in closed_over(each):
                if isinstance(content, FunctionType | MethodType) and id(content) not in seen:
                    seen.add(id(content))
                    if not _is_helper(each, name, content):
                        places.append(content)
    return False


def _is_helper(function: Any, name: str, content: Any) -> bool:
    """Whether this is what a view calls, and the function is no decorator, with its view in its closure."""
    is_beside = _scope(content) == _scope(function) != "" and content.__code__ is not function.__code__
    return bool(name == content.__name__ or is_beside)


def _scope(function: Any) -> str:
    """The function that it was defined in; "" if it is of a module or of a class."""
    scope = str(getattr(function, "__qualname__", "")).rpartition(".")[0]
    return f"{function.__module__}.{scope}" if scope.endswith("<locals>") else ""


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

#: What a call has returned before its body has begun.
_RUN_LATER = (
    map,
    filter,
    GeneratorType,
    AsyncGeneratorType,
    contextlib._GeneratorContextManager,
    contextlib._AsyncGeneratorContextManager,
)

#: What only the tasks of these libraries have, and which decorator makes such a task.
_MAKERS_OF_TASKS = {
    "apply_async": "@shared_task or @app.task (Celery)",
    "send_with_options": "@dramatiq.actor",
    "call_local": "@huey.task()",
    "enqueue": "@task (Django) or @job (RQ)",
}


def _check(function: Any, decorator: str) -> None:
    if inspect.isclass(function):
        raise ConfigurationError(
            f"{decorator} is for functions, not for the class {function.__name__}: decorate a method, or "
            f'in Django use @method_decorator({decorator}(...), name="dispatch").'
        )
    if isinstance(function, (staticmethod, classmethod, property, functools.cached_property)):
        inner = undecorated(getattr(function, "fget", None) or getattr(function, "func", function))
        raise ConfigurationError(
            f"{decorator} goes below @{type(function).__name__}, next to the function {_name(inner)}."
        )
    for verb, maker in _MAKERS_OF_TASKS.items():
        if hasattr(function, verb):
            raise ConfigurationError(
                f"{decorator} goes below {maker}, the decorator of the task {function!r}, next to its "
                f"function: a worker calls that function directly, without the lock."
            )
    if not callable(function):
        raise ConfigurationError(f"{decorator} is for functions, not for {function!r}.")
    if _is_generator(function) or _is_generator(type(function).__call__):
        raise ConfigurationError(
            f"{decorator} cannot lock the generator {_name(function)}: its body runs after the call has returned. "
            f"Write `with lock(...)` inside it, or decorate the view that returns it."
        )
    # What contextlib has made of a generator: @contextmanager, or an object of that kind used as a decorator.
    if getattr(function, "__globals__", None) is vars(contextlib) and _is_generator(undecorated(function)):
        raise ConfigurationError(
            f"{decorator} cannot lock {_name(function)}, a generator below a decorator of contextlib's: its body runs "
            f"after the call has returned. Write `with lock(...)` inside it."
        )


def _is_generator(function: Any) -> bool:
    return inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)


def _name(function: Any) -> str:
    return str(getattr(function, "__qualname__", None) or type(function).__qualname__)
