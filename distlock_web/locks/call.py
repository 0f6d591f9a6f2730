"""A call of a locked function, stage by stage.

    stage         of :class:`Call`   what happens
    -----------   ----------------   -------------------------------------------------------------------------------
    method        is_open            a request that ``methods=`` or ``when=`` do not choose runs without the lock
    task, key     prepare            the task that the call is in; the names of its lock, in a scope that holds nothing
    lock          take               it is taken, or came with the task. If not, the policy answers (``on_busy``)
    transaction   run                the function runs, with ``until="commit"`` in a transaction of its own
    judge         judge              whether its work is done, and so what becomes of the lock at its release
    stream        stream             a streaming response goes on under the lock; else it is released

``once`` adds four, at three of these (:class:`OnceStages`):

    task, key     ``ask``            whose record the call's would be
    lock          ``refuse``         before it: a call inside of its own run, or of a transaction of other code
                  ``answer``         in place of the function: it is done, and the lock's refusal has its record
    judge         ``record``         after a success: the record that the release leaves

How the lock is released stands in ``ending.py``.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
from collections.abc import Callable, Mapping
from functools import partial
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any, Protocol

from ..core.config import StoreConfig
from ..core.errors import BackendUnavailable, ConfigurationError, DistLockError, LockBusy
from ..core.runtime import TASKS, Runtime, blocking_runtime, drive
from ..core.setting import check_plain, refuse_coroutine
from . import ending, engine, hooks, kept, refused
from .call_options import check_call_options
from .events import log_fields
from .function_names import bound_method
from .hooks import Answer, Integration, RunningTask, TransactionManager
from .key_templates import KeyTemplates, MalformedValue
from .lease import Lease
from .lockable import check_lockable
from .options import NO_TASK, Options
from .reentry import chain
from .scope import Scope, Spec
from .wrapping import resolved_signature, undecorated, wrapped

logger = logging.getLogger("distlock_web")


class OnceStages(Protocol):
    """What ``once`` adds to the calls of a function."""

    has_key: bool  #: a key was given
    keeps_result: bool  #: ``result=True``

    async def ask(self, call: Call) -> None:
        """After the key: whose record it is, in the call's scope."""

    def refuse(self, call: Call) -> None:
        """Before the lock. ``LockBusy``: it is inside of its own run; ``ConfigurationError``: of a transaction."""

    async def answer(self, call: Call, error: LockBusy) -> Any:
        """In place of the function: it is done, and this error has the record."""

    async def record(self, call: Call, result: Any) -> None:
        """After a success: what its release leaves in the store, in the call's scope."""


def decorator(
    name: str, options: Any, once: Callable[[LockedFunction, Callable[..., Any]], OnceStages] | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """What puts a function under its lock, with these options, checked. ``once`` makes the stages that it adds."""
    lock_options = Options(options)
    check_call_options(options)
    bound: dict[Any, LockedFunction] = {}

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        method = bound_method(function)
        # Django's method_decorator decorates the method of the object anew for every call.
        known = None if method is None else bound.get((type(method.__self__), method.__func__))
        locked = known or LockedFunction(name, function, lock_options, options, once)
        if method is not None:
            bound[type(method.__self__), method.__func__] = locked
        return _wrap(function, locked)

    return decorate


# What it carries ----------------------------------------------------------------------------------------------------


class LockedFunction:
    """What a decorated function carries as ``__distlock__``: keys, options and policies, checked. Nothing of a call."""

    def __init__(
        self,
        decorator: str,
        function: Callable[..., Any],
        lock_options: Options,
        options: Mapping[str, Any],
        once: Callable[[LockedFunction, Callable[..., Any]], OnceStages] | None = None,
    ) -> None:
        check_lockable(function, decorator)
        hooks.check_function(function)
        self.decorator = decorator  #: its name, for messages
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
        self.told_of_stream = False  #: that its lock does not go on for it
        self.chooses = self.methods is not None or self.when is not None
        if self.chooses and not hooks.offered(Integration.request_of):
            raise self.no_view("no framework is loaded")
        if self.on_busy == "retry" and not hooks.know_tasks():
            raise ConfigurationError(
                f'{self.name}: on_busy="retry" is for tasks of Celery, which is not installed: '
                f"pip install 'distlock_web[celery]'"
            )
        if not self.asynchronous:
            self._check_plain()
        self.transactions = self._transactions()
        self._refuse_second_commit(function)
        self.once = None if once is None else once(self, function)

    def _check_plain(self) -> None:
        """A plain function has no task to cancel, and cannot await an answer."""
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

    def no_view(self, why: str) -> ConfigurationError:
        return ConfigurationError(
            f"{self.name}: {'when' if self.methods is None else 'methods'}= is for views, and {why}; leave it out for "
            f"other functions. {hooks.why_unknown()}"
        )

    def policy(self, error: LockBusy | BackendUnavailable, config: StoreConfig) -> tuple[str, Any]:
        """The option that says what is to be made of this error, and what it says, in a store with these settings."""
        name = "on_busy" if isinstance(error, LockBusy) else "on_backend_error"
        own = getattr(self, name)
        chosen = getattr(config, name) if own is None else own
        if chosen == "open" and self.once is not None:  # by the store's setting, which is for locks
            chosen = "raise"
        return name, chosen

    def refuse_coroutine(self, made: object, option: str, why: str) -> None:
        refuse_coroutine(made, f"{self.name}: its {option} gave a coroutine, {why}nobody would await that.")


def locks_on(function: Any) -> list[LockedFunction]:
    """The locks around a function, each once, the outermost first."""
    marks = (getattr(each, "__distlock__", None) for each in wrapped(function))
    return list(dict.fromkeys(mark for mark in marks if isinstance(mark, LockedFunction)))


def _wrap(function: Callable[..., Any], locked: LockedFunction) -> Callable[..., Any]:
    """The function under its lock."""
    wrapper = (_coroutine if locked.asynchronous else _plain)(function, locked)
    wrapper.__distlock__ = locked  # type: ignore[attr-defined]
    if inspect.isfunction(function):
        # Django Ninja looks names up in the module of the function that it is given: in ours, where they are not.
        resolved = resolved_signature(function, locked.keys.signature)
        if resolved is not locked.keys.signature:
            wrapper.__signature__ = resolved  # type: ignore[attr-defined]
    if locked.transactions is not None:
        locked.transactions.mark(wrapper, locked.database)
    return wrapper


# What happens to a call ---------------------------------------------------------------------------------------------

# Two wrappers, not one coroutine that is driven: a StopIteration of the function's would become a RuntimeError.


def _plain(function: Callable[..., Any], locked: LockedFunction) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        call = Call(locked, function, args, kwargs)
        if locked.chooses and drive(call.is_open()):
            return call.run_open()
        drive(call.prepare(blocking_runtime()))
        judged = False
        try:
            answer = drive(call.take())
            if answer is None:
                result = call.run()
                judged = True
                answer = call.stream(result)
            if answer is not None:
                return answer.value
            ending.end_now(call.scope, None)
            return result
        except BaseException as error:
            if call.task is not None and call.task.keeps(call.scope):
                raise
            try:  # either does nothing where the scope has ended
                if judged and not isinstance(error, DistLockError):  # a signal's, mostly: what was done stays done
                    drive(ending.abort(call.scope, error, success=True))
                else:
                    ending.end_now(call.scope, error)
            except BaseException as interruption:  # a signal's, perhaps before anything was done
                ending.end_now(call.scope, interruption)
                raise
            raise

    return wrapper


def _coroutine(function: Callable[..., Any], locked: LockedFunction) -> Callable[..., Any]:
    @functools.wraps(function)
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        call = Call(locked, function, args, kwargs)
        if locked.chooses and await call.is_open():
            return await function(*args, **kwargs)
        await call.prepare(TASKS)
        judged = False
        try:
            answer = await call.take()
            if answer is None:
                result = await function(*args, **kwargs)
                await call.judge(result)
                judged = True
                answer = call.stream(result)
        except BaseException as error:
            if call.task is not None and call.task.keeps(call.scope):
                raise
            if judged and not isinstance(error, DistLockError):  # as in a plain call
                await ending.abort(call.scope, error, success=True)
            else:
                await ending.end(call.scope, error)  # does nothing where the scope has ended
            raise
        if answer is not None:
            return answer.value
        await ending.end(call.scope, None)
        return result

    return wrapper


class _NoSuccess(Exception):
    """No error: what was done is rolled back, and this goes no further."""

    def __init__(self, result: Any) -> None:
        self.result = result


class Call:
    """One call of a locked function, and its stages in their order."""

    __slots__ = ("args", "function", "kwargs", "locked", "scope", "task")

    scope: Scope  #: of its lock, from `prepare` on
    task: RunningTask | None  #: that it is in

    def __init__(
        self, locked: LockedFunction, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self.locked = locked
        self.function = function  #: as the lock is around it
        self.args = args
        self.kwargs = kwargs

    # Method ---------------------------------------------------------------------------------------------------------

    async def is_open(self) -> bool:
        """Whether this call runs without the lock, for ``methods`` or ``when`` do not choose its request."""
        locked = self.locked
        request = hooks.first(Integration.request_of, self.args, self.kwargs, locked)
        if request is None:
            raise locked.no_view("this call has no request")
        if locked.methods is not None and request.method not in locked.methods:
            return True
        chosen = True if locked.when is None else locked.when(request)
        if not locked.asynchronous:
            locked.refuse_coroutine(chosen, "when", "but it is a plain function: ")
        return not (await chosen if inspect.isawaitable(chosen) else chosen)

    def run_open(self) -> Any:
        """Call the plain function as if it was not decorated."""
        transactions = self.locked.transactions
        if transactions is None:
            return self.function(*self.args, **self.kwargs)
        call = partial(self.function, *self.args, **self.kwargs)
        return transactions.run_open(self.function, call, self.locked.database)

    # Task and key ---------------------------------------------------------------------------------------------------

    async def prepare(self, runtime: Runtime) -> None:
        """What the lock stage needs: the task, and a scope that holds nothing yet."""
        locked = self.locked
        if locked.transactions is not None:
            locked.transactions.refuse_open(locked.name, locked.database)
        self.task = hooks.first(Integration.running_task)
        if self.task is None and locked.on_busy == "retry":
            raise ConfigurationError(
                f'{locked.name}: on_busy="retry" sends the running task of Celery again, and no task runs here. '
                f'Elsewhere use on_busy="raise" or wait=.'
            )
        self.scope = Scope(await self.spec(runtime), runtime)
        if locked.once is not None:
            await locked.once.ask(self)

    async def spec(self, runtime: Runtime) -> Spec:
        """What the call asks the store for."""
        locked = self.locked
        try:
            keys = await locked.keys.keys(self.args, self.kwargs)
        except MalformedValue as error:
            not_found = hooks.first(Integration.not_found, self.args, self.kwargs, locked)
            if not_found is None:
                raise
            raise not_found from error
        if locked.once is not None:
            keys = tuple(f"once:{key}" for key in keys)
        return locked.options.spec(keys, runtime, locked.name, locked.code, locked.keys.template)

    # Lock -----------------------------------------------------------------------------------------------------------

    async def take(self) -> Answer | None:
        """Take the lock. None: the function may run. Else the answer in place of its own: nothing is held."""
        once = self.locked.once
        try:
            if once is not None:
                once.refuse(self)
            self.scope = await acquire(self.locked, self.scope, self.task)
            return None
        except (LockBusy, BackendUnavailable) as error:
            if once is not None and isinstance(error, LockBusy) and error.record is not None:
                return Answer(await once.answer(self, error))
            return Answer(await self._refused(error))

    async def _refused(self, error: LockBusy | BackendUnavailable) -> Any:
        """The call cannot run: what the policy makes of it."""
        locked, config = self.locked, self.scope.spec.store.config
        option, policy = locked.policy(error, config)
        if callable(policy):
            for_views = getattr(policy, "for_views", False) is True
            if for_views and hooks.first(Integration.request_of, self.args, self.kwargs, locked) is None:
                raise error
            made = policy(error, *self.args, **self.kwargs)
            if locked.asynchronous:
                return await made if inspect.isawaitable(made) else made
            locked.refuse_coroutine(made, option, "but it is a plain function: ")
            return made
        if policy == "skip":
            fields = log_fields("busy", config.alias, error.name or "", locked.keys.template, function=locked.name)
            text = "%s skipped. Did not get a lock for key %s. %s"
            logger.info(text, locked.name, error.name, error, extra=fields)
            return None
        if policy == "retry" and isinstance(error, LockBusy) and self.task is not None:
            raise self.task.retry(error)
        raise error

    # Transaction ----------------------------------------------------------------------------------------------------

    def run(self) -> Any:
        """Call the plain function under its lock; with ``until="commit"``, in a transaction that ends before it.

        It is judged before the commit: what is refused or fails then is rolled back, and a record may be a part of it.
        """
        transactions = self.locked.transactions
        if transactions is None:
            return self._run_and_judge()
        try:
            return transactions.run(self.locked.name, self._run_and_judge, Lease(self.scope), self.locked.database)
        except _NoSuccess as failure:
            return failure.result

    def _run_and_judge(self) -> Any:
        result = self.function(*self.args, **self.kwargs)
        drive(self.judge(result))
        return result

    # Judge ----------------------------------------------------------------------------------------------------------

    async def judge(self, result: Any) -> None:
        """The function has returned this: whether it has done its work, and so what becomes of the lock at its release.

        ``_NoSuccess`` if it has not, and is to be rolled back.
        """
        self._refuse_unlocked(result)
        once, scope = self.locked.once, self.scope
        if once is None and not kept.leaves_something(scope):
            return
        is_undone = scope.settle is not None and not scope.settle(result)
        if is_undone or not self._succeeded(result):
            kept.leave_nothing(scope)
            if once is not None and self.locked.transactions is not None:
                raise _NoSuccess(result)
        elif once is not None:
            await once.record(self, result)

    def _refuse_unlocked(self, result: object) -> None:
        """``ConfigurationError`` if the function has returned what has yet to run, and would without the lock."""
        locked = self.locked
        if isinstance(result, CoroutineType):
            result.close()
            raise ConfigurationError(
                f"{locked.name} returned a coroutine, whose body would run without the lock: await it in the function."
                if locked.asynchronous
                else f"{locked.name} is a plain function that returned a coroutine, whose body would run without the "
                f"lock: decorate the async function itself."
            )
        if not isinstance(result, _RUN_LATER) or locked.until == "return":
            return
        if not hooks.first(Integration.is_stream, result, locked):  # which goes on under the lock
            raise ConfigurationError(
                f"{locked.name} returned a {type(result).__name__.strip('_')}, whose body would run without the lock. "
                f"Return what is done, such as a list, or write `with lock(...)` inside the generator. If its body "
                f'needs no lock, say until="return".'
            )

    def _succeeded(self, result: object) -> bool:
        locked = self.locked
        if locked.success is None:
            return not hooks.first(Integration.is_failure, result, self.args, self.kwargs, locked)
        succeeded = locked.success(result)
        locked.refuse_coroutine(succeeded, "success", "")
        return bool(succeeded)

    # Stream ---------------------------------------------------------------------------------------------------------

    def stream(self, result: Any) -> Answer | None:
        """The result as a streaming response that goes on under the lock; None if it is not one, or is not to."""
        locked = self.locked
        if locked.until is None:
            response = hooks.first(Integration.stream, result, locked, Lease(self.scope))
            return response if response is None or isinstance(response, Answer) else Answer(response)
        if (
            locked.until == "commit"
            and not locked.told_of_stream
            and hooks.first(Integration.is_stream, result, locked)
        ):
            locked.told_of_stream = True
            logger.warning(
                '%s returns a stream, and until="commit" releases its lock before the body is sent. To hold the lock '
                "for the body, leave until= out, and in Django put @transaction.non_atomic_requests on the view.",
                locked.name, extra=self.scope.log_fields("stream"),
            )  # fmt: skip
        return None


async def acquire(locked: LockedFunction, scope: Scope, task: RunningTask | None = None) -> Scope:
    """Take the lock for one call. The scope that it runs in: another one if it is let through without its lock."""
    try:
        if task is not None:
            scope = await task.begin(locked, scope)
        if not scope.holds:
            await engine.acquire(scope)
    except BackendUnavailable as error:
        _, policy = locked.policy(error, scope.spec.store.config)
        if policy != "open":
            raise
        logger.error("%s runs without its lock: %s", locked.name, error, extra=scope.log_fields("let_through"))
        scope = Scope(scope.spec, scope.runtime, in_block=scope.in_block)
        scope.locked = False
        chain.enter(scope)
        refused.tell_of_no_lock(scope, error)
    return scope


#: What a call has returned before its body has begun.
_RUN_LATER = (
    map,
    filter,
    GeneratorType,
    AsyncGeneratorType,
    contextlib._GeneratorContextManager,
    contextlib._AsyncGeneratorContextManager,
)
