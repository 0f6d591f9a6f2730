"""``once``: a function that is done once, and then answers what it has answered. A lock whose end leaves a record."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from types import MethodType
from typing import Any, ParamSpec, TypeVar, Unpack

from ..core.errors import BackendUnavailable, ConfigurationError, KeyReused, LockBusy
from ..core.runtime import Runtime, drive
from ..core.setting import Duration, check_flag, check_seconds
from . import call_site, hooks
from .decorator import CallOptions, LockedFunction, decorator, take_key, undecorated
from .events import log_fields
from .hooks import Asked, Integration, RunningTask
from .key_templates import KeyInFront
from .lease import Lease, OnLost
from .options import Options, check_names, show_options
from .plain_values import NotPlain, pack
from .records import LOST, Record
from .reentry import chain
from .scope import Scope

logger = logging.getLogger("distlock_web")
P = ParamSpec("P")
R = TypeVar("R")


#: Methods that a framework calls on an object that it has made: a management command's, a task's.
_OF_FRAMEWORKS = ("handle", "run")
#: What such an object has: a command of Django's, a task of Celery's.
_MADE_BY_FRAMEWORKS = ("run_from_argv", "apply_async")
#: What every management command is called with, whatever it does.
_OF_COMMANDS = frozenset({
    "verbosity", "settings", "pythonpath", "traceback", "no_color", "force_color", "skip_checks", "stdout", "stderr",
})  # fmt: skip


class OnceOptions(CallOptions, total=False):
    """What ``once(...)`` takes: ``keep`` and ``result``, and options of ``distributed_lockable``."""

    #: How long it stays done, from the beginning of its run.
    keep: Duration
    #: Store what it returns, and return that when it is done.
    result: bool
    prefix: str | None
    expire: Duration | None
    wait: Duration | None
    max_waiters: int | None
    renew: bool | None
    renew_for: Duration | None
    store: str | None
    on_lost: OnLost | None


OPTIONS = tuple(OnceOptions.__annotations__)


def once(first_key: KeyInFront = None, /, **options: Unpack[OnceOptions]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Run a function once for each key, and not again for ``keep``: ``@once(key="report:{month}", keep="1h")``.

    It is a lock, with the options of :func:`distlock_web.distributed_lockable`. ``on_busy`` is for a call while another
    one still runs. A successful run leaves a *record*, and the function does not run again until ``keep`` seconds have
    passed since that run began. Calls within that time, and calls that have waited for the run, get its answer: for a
    view the stored answer, otherwise None, also where a view calls it. With ``result=True`` they get what the function
    returned: plain data, of at most 64 KB as JSON. What is no such is not kept: the log says so, and they get None.

    After an exception, or if ``success`` says no, there is no record, and the next call runs: *at least once*. The same
    happens if the process dies, if the lease is lost, if the store does not answer at the end, or if the run takes
    longer than ``keep``. A call from inside its own run is refused as ``on_busy`` says, without waiting.

    The names are separate from those of locks: ``lock("pay:1")`` and ``once(key="pay:1")`` do not exclude each other.
    With ``until="commit"`` a run without success is rolled back. A call inside another open transaction is refused,
    because that transaction may be rolled back after the record was written. ``on_backend_error="open"`` is refused as
    well, and the store's setting of it is ignored.

    Without ``key`` all calls are the same one: that is refused for a function with arguments, for a view, and for a
    method, whose object is an argument. A task of Celery's with ``bind=True`` and a command's ``handle`` need none.

    Raises ``ConfigurationError`` when it is applied. For a store without records (Redlock, ZooKeeper) the first call
    raises it, or Flask where the view is registered, or ``manage.py check``. A call raises ``KeyReused`` if the key was
    used by another function, or, for a view, by another client or with other data. It also raises what
    ``distributed_lockable`` raises.
    """
    check_names("once", options, OPTIONS)
    if first_key is not None:
        if callable(first_key):
            raise ConfigurationError('once needs to know how long it stays done: @once(keep="24h").')
        take_key("once", first_key, options)
    if options.get("keep") is None:
        raise ConfigurationError('once needs to know how long it stays done: keep="24h".')
    keep = check_seconds(options["keep"], "keep")
    keeps_result = check_flag(options.get("result") or False, "result")
    return decorator(partial(Once, keep=keep, keeps_result=keeps_result), options)


show_options(once, OnceOptions)


class _NoSuccess(Exception):
    """No error: what was done is rolled back, and this goes no further."""

    def __init__(self, result: Any) -> None:
        self.result = result


class Once(LockedFunction):
    """What a function with ``once`` carries as ``__distlock__``."""

    space = "once:"
    decorator = "once"

    def __init__(
        self,
        function: Callable[..., Any],
        lock_options: Options,
        options: Mapping[str, Any],
        *,
        keep: float,
        keeps_result: bool,
    ) -> None:
        super().__init__(function, lock_options, options)
        self.has_key = options.get("key") is not None
        if not self.has_key:
            self._check_arguments(function)
        if hooks.first(Integration.streams, self.function):
            raise ConfigurationError(
                f"{self.name} says that it returns a stream, which once cannot keep: use distributed_lockable with "
                f"hold_at_least, or return a response that is made at once."
            )
        if self.on_backend_error == "open":
            raise ConfigurationError(
                f'{self.name}: once with on_backend_error="open" would repeat what is done, and record nothing; leave '
                f"it out, or give a function that makes the answer."
            )
        self.keep = keep
        self.keeps_result = keeps_result
        lock_options.records = True

    def _check_arguments(self, function: Callable[..., Any]) -> None:
        """``ConfigurationError`` if calls that ask for different things would have one key, and so one answer."""
        parameters = self.keys.signature.parameters
        self.takes_object = next(iter(parameters), "") in ("self", "cls")
        named = [name for name, each in parameters.items() if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
        if named[self.takes_object :]:
            fields = [name for name in named[self.takes_object :] if name != "request"]
            if "request" not in named:
                raise self._no_key(fields)
            raise self._no_key([*fields, "request.headers[Idempotency-Key]"], "or all other requests get a 422")
        if isinstance(function, MethodType):
            self._check_object(function.__self__)
        elif self.takes_object:
            owner, _, own_name = self.function.__qualname__.rpartition(".")
            if owner and not owner.endswith("<locals>") and own_name not in _OF_FRAMEWORKS:
                raise self._no_key(["self.pk" if named == ["self"] else "cls.__name__"])
        elif parameters:  # *args, that no object comes before
            raise self._no_key([])

    def _no_key(self, fields: list[str], harm: str = "or all calls get the first one's answer") -> ConfigurationError:
        key = ":".join([self.name.rpartition(".")[2], *(f"{{{field}}}" for field in fields)])
        return ConfigurationError(f'{self.name} has arguments: once needs a key, such as key="{key}", {harm}.')

    def _check_object(self, made: object) -> None:
        """``ConfigurationError`` if it is not an object that a framework makes, and makes one of.

        A subclass has the same function, and would have the same record.
        """
        own = any(undecorated(each) is self.function for each in vars(type(made)).values())
        if not own or not any(hasattr(made, verb) for verb in _MADE_BY_FRAMEWORKS):
            raise self._no_key(["self.pk"])

    def _check_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The same of a call without a key: what its object is, and what ``*args`` and ``**kwargs`` stand for."""
        if self.takes_object:
            self._check_object(args[0] if args else None)
        if args[self.takes_object :] or kwargs.keys() - _OF_COMMANDS:
            raise self._no_key([name for name in kwargs if name not in _OF_COMMANDS] or ["..."])

    async def scope(self, runtime: Runtime, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Scope:
        if not self.has_key and self.keys.signature.parameters:
            self._check_call(args, kwargs)
        scope = await super().scope(runtime, args, kwargs)
        if len(scope.spec.names) > 1:
            raise ConfigurationError(f"{self.name}: once needs one key, not {len(scope.spec.names)}.")
        scope.asked = await self.asked(args, kwargs)  # now, for the function may log somebody in
        return scope

    async def asked(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Asked:
        """Whose the record is: of a request, a digest of who asks for what; else the function's."""
        asked: Asked | str | None = await hooks.afirst(Integration.asked, args, kwargs, self)
        if isinstance(asked, Asked):
            return asked
        # Behind a colon stands what a function does that was made for one purpose: `distlock run` has one for all.
        return Asked(asked or self.name, (asked or self._name_before).partition(":")[0])

    @property
    def _name_before(self) -> str:
        """In format 1 the functions of the program that was started were all of ``__main__``."""
        of_program = getattr(self.function, "__module__", None) == "__main__"
        return f"__main__.{self.function.__qualname__}" if of_program else self.name

    async def acquire(self, scope: Scope, task: RunningTask | None = None) -> Scope:
        (name,) = scope.spec.names
        if chain.find_enclosing(scope.spec.store, name) is not None:
            raise LockBusy(f"{self.name} calls itself with the same key, {name!r}, while it is running.", name=name)
        self.refuse_open_transaction()
        return await super().acquire(scope, task)

    def refuse_open_transaction(self) -> None:
        """``ConfigurationError`` if what is done may be rolled back after it was recorded."""
        transaction = None if self.transactions is not None else call_site.open_transaction()
        if transaction is not None:
            raise ConfigurationError(
                f"{self.name}: once inside {transaction} would be recorded as done before that commits, even if it is "
                f'rolled back. Let once open the transaction, with until="commit" (and database=), or call it outside '
                f"the transaction."
            )

    def _policy(self, name: str, default: Any) -> Any:
        chosen = super()._policy(name, default)
        return "raise" if chosen == "open" else chosen  # the store's setting is for locks

    def call(self, function: Callable[..., Any], scope: Scope, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """With ``until="commit"`` it is judged before the commit, which the record may be a part of."""
        if self.transactions is None:
            return super().call(function, scope, args, kwargs)

        def run() -> Any:
            result = function(*args, **kwargs)
            self.refuse_unlocked(result)
            drive(self.judge(result, scope, args, kwargs))
            if scope.record is None:
                raise _NoSuccess(result)
            return result

        try:
            return self.transactions.run(self.name, run, Lease(scope), self.database)
        except _NoSuccess as failure:
            return failure.result

    async def judge(self, result: Any, scope: Scope, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not self.succeeded(result, args, kwargs):
            return
        self.refuse_open_transaction()  # one that the function has begun, and not committed
        kept = await hooks.afirst(Integration.answer_of, result, args, kwargs, self)
        packed = LOST
        if kept is None and self.keeps_result:
            try:
                packed = pack(result)
            except NotPlain as why:  # the work is done all the same
                logger.warning(
                    "%s: recorded as done, but without its result: it %s. A repeated call will get None.",
                    self.name, why, extra=scope.log_fields("done"),
                )  # fmt: skip
        assert scope.asked is not None  # noqa: S101 - `scope` has said it
        scope.record = Record(scope.asked, kept, packed).dumps(scope.spec.store.config.format)
        scope.spec = scope.spec._replace(hold_at_least=self.keep)

    async def rejected(
        self, error: LockBusy | BackendUnavailable, scope: Scope, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """It is done, or cannot run: the answer that it has given, or what the policy makes of it."""
        if not isinstance(error, LockBusy) or error.record is None:
            return await super().rejected(error, scope, args, kwargs)
        record = Record.loads(error.record, error.name or "")
        if scope.asked is None or not record.is_for(scope.asked):
            raise KeyReused(
                f"The key of {error.name!r} was used for another call: another function, other data, another caller or "
                f"another address.",
                name=error.name,
            )
        answer = None
        if record.kept is not None:
            answer = hooks.first(Integration.replay, record.kept, args, kwargs, self)
        if answer is not None:
            return answer.value
        fields = log_fields("done", self.options.store, error.name or "", self.keys.template, function=self.name)
        ago = "" if error.held_for is None else f" (begun {error.held_for:.0f} s ago)"
        is_lost = self.keeps_result and record.result is LOST
        logger.log(
            logging.WARNING if is_lost else logging.INFO,
            "%s was done%s, and does not run again. Its key: %s%s", self.name, ago, error.name,
            ". Its result was not kept: this call gets None" if is_lost else "", extra=fields,
        )  # fmt: skip
        return record.answer() if self.keeps_result and not is_lost else None
