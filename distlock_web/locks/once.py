"""``once``: a function that is done once, and then answers what it has answered. A lock whose end leaves a record."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from types import MethodType
from typing import Any, ParamSpec, TypeVar, Unpack

from ..core.errors import ConfigurationError, KeyReused, LockBusy
from ..core.setting import Duration, Setting, check_flag, check_seconds, table
from . import hooks
from .call import Call, LockedFunction, decorator
from .call_options import CALL_OPTIONS, CallOptions, take_key
from .events import log_fields
from .function_names import name_before
from .hooks import Asked, Integration
from .kept import leave_record
from .key_templates import KeyInFront
from .open_transaction import open_transaction
from .options import OPTIONS as LOCK_OPTIONS
from .options import OptionsOfAnyLock, check_names, show_options
from .plain_values import NotPlain, pack
from .records import LOST, Record
from .reentry import chain
from .wrapping import undecorated

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


class OnceOptions(OptionsOfAnyLock, CallOptions, total=False):
    """What ``once(...)`` takes: ``keep`` and ``result``, and options of ``distributed_lockable``."""

    keep: Duration
    result: bool


OWN_OPTIONS = table(
    Setting("keep", check_seconds, None, "how long it stays done, from the beginning of its run", "has to be given"),
    Setting(
        "result", check_flag, False,
        "store what it returns, plain data of at most 64 KB as JSON, and return that when it is done",
    ),
)  # fmt: skip
_KNOWN = {**LOCK_OPTIONS, **CALL_OPTIONS, **OWN_OPTIONS}
OPTIONS = {name: row for name, row in _KNOWN.items() if name in OnceOptions.__annotations__}


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
    keep = OPTIONS["keep"].check(options["keep"], "keep")
    keeps_result = OPTIONS["result"].check(options.get("result") or False, "result")
    has_key = options.get("key") is not None
    return decorator("once", options, partial(Once, keep=keep, keeps_result=keeps_result, has_key=has_key))


show_options(once, OnceOptions)


class Once:
    """What ``once`` adds to the stages of a call: whose record it is, what is refused, the answer, the record."""

    def __init__(
        self,
        locked: LockedFunction,
        function: Callable[..., Any],
        *,
        keep: float,
        keeps_result: bool,
        has_key: bool,
    ) -> None:
        self.keep = keep
        self.keeps_result = keeps_result
        self.has_key = has_key
        self._name_before = name_before(function)
        self._one_call = None if has_key else _OneCall(locked, function)
        if hooks.first(Integration.streams, locked.function):
            raise ConfigurationError(
                f"{locked.name} says that it returns a stream, which once cannot keep: use distributed_lockable with "
                f"hold_at_least, or return a response that is made at once."
            )
        if locked.on_backend_error == "open":
            raise ConfigurationError(
                f'{locked.name}: once with on_backend_error="open" would repeat what is done, and record nothing; '
                f"leave it out, or give a function that makes the answer."
            )
        locked.options.records = True

    # Whose record it is ---------------------------------------------------------------------------------------------

    async def ask(self, call: Call) -> None:
        if self._one_call is not None:
            self._one_call.check(call.args, call.kwargs)
        names = call.scope.spec.names
        if len(names) > 1:
            raise ConfigurationError(f"{call.locked.name}: once needs one key, not {len(names)}.")
        # Now: the function may log a user in.
        call.scope.asked = await whose_record(call.locked, self._name_before, call.args, call.kwargs)

    def refuse(self, call: Call) -> None:
        (name,) = call.scope.spec.names
        if chain.find_enclosing(call.scope.spec.store, name) is not None:
            message = f"{call.locked.name} calls itself with the same key, {name!r}, while it is running."
            raise LockBusy(message, name=name)
        _refuse_open_transaction(call.locked)

    async def answer(self, call: Call, error: LockBusy) -> Any:
        locked, whose = call.locked, call.scope.asked
        assert error.record is not None  # noqa: S101 - else it is not done
        (name,) = call.scope.spec.names
        record = Record.loads(error.record, name)
        if whose is None or not record.is_for(whose):
            raise KeyReused(
                f"The key of {name!r} was used for another call: another function, other data, another caller or "
                f"another address.",
                name=name,
            )
        answer = None
        if record.kept is not None:
            answer = hooks.first(Integration.replay, record.kept, call.args, call.kwargs, locked)
        if answer is not None:
            return answer.value
        fields = log_fields("done", locked.options.store, name, locked.keys.template, function=locked.name)
        ago = "" if error.held_for is None else f" (begun {error.held_for:.0f} s ago)"
        is_lost = self.keeps_result and record.result is LOST
        logger.log(
            logging.WARNING if is_lost else logging.INFO,
            "%s was done%s, and does not run again. Its key: %s%s", locked.name, ago, name,
            ". Its result was not kept: this call gets None" if is_lost else "", extra=fields,
        )  # fmt: skip
        return record.answer() if self.keeps_result and not is_lost else None

    # The record -----------------------------------------------------------------------------------------------------

    async def record(self, call: Call, result: Any) -> None:
        _refuse_open_transaction(call.locked)  # one that the function has begun, and not committed
        scope = call.scope
        kept = await hooks.afirst(Integration.answer_of, result, call.args, call.kwargs, call.locked)
        packed = LOST
        if kept is None and self.keeps_result:
            try:
                packed = pack(result)
            except NotPlain as why:  # the work is done all the same
                logger.warning(
                    "%s: recorded as done, but without its result: it %s. A repeated call will get None.",
                    call.locked.name, why, extra=scope.log_fields("done"),
                )  # fmt: skip
        assert scope.asked is not None  # noqa: S101 - `ask` has said it
        record = Record(scope.asked, kept, packed).dumps(scope.spec.store.config.format)
        leave_record(scope, record, self.keep)


async def whose_record(
    locked: LockedFunction, name_before: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Asked:
    """Whose the record of a call is: of a request, a digest of who asks for what; else the function's."""
    found: Asked | str | None = await hooks.afirst(Integration.asked, args, kwargs, locked)
    if isinstance(found, Asked):
        return found
    # Behind a colon stands what a function does that was made for one purpose: `distlock run` has one for all.
    return Asked(found or locked.name, (found or name_before).partition(":")[0])


def _refuse_open_transaction(locked: LockedFunction) -> None:
    """``ConfigurationError`` if what is done may be rolled back after it was recorded."""
    transaction = None if locked.transactions is not None else open_transaction()
    if transaction is not None:
        raise ConfigurationError(
            f"{locked.name}: once inside {transaction} would be recorded as done before that commits, even if it is "
            f'rolled back. Let once open the transaction, with until="commit" (and database=), or call it outside '
            f"the transaction."
        )


class _OneCall:
    """A function without a key: all of its calls have to ask for the same, for they have one answer."""

    def __init__(self, locked: LockedFunction, function: Callable[..., Any]) -> None:
        """``ConfigurationError`` if calls that ask for different things would have one key."""
        self._name, self._function = locked.name, locked.function
        parameters = locked.keys.signature.parameters
        self._has_arguments = bool(parameters)
        self._takes_object = list(parameters)[:1] in (["self"], ["cls"])
        named = [name for name, each in parameters.items() if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
        if named[self._takes_object :]:
            fields = [name for name in named[self._takes_object :] if name != "request"]
            if "request" not in named:
                raise self._no_key(fields)
            raise self._no_key([*fields, "request.headers[Idempotency-Key]"], "or all other requests get a 422")
        if isinstance(function, MethodType):
            self._check_object(function.__self__)
        elif self._takes_object:
            owner, _, own_name = self._function.__qualname__.rpartition(".")
            if owner and not owner.endswith("<locals>") and own_name not in _OF_FRAMEWORKS:
                raise self._no_key(["self.pk" if named == ["self"] else "cls.__name__"])
        elif parameters:  # *args, that no object comes before
            raise self._no_key([])

    def check(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The same of a call: what its object is, and what ``*args`` and ``**kwargs`` stand for."""
        if not self._has_arguments:
            return
        if self._takes_object:
            self._check_object(args[0] if args else None)
        if args[self._takes_object :] or kwargs.keys() - _OF_COMMANDS:
            raise self._no_key([name for name in kwargs if name not in _OF_COMMANDS] or ["..."])

    def _check_object(self, made: object) -> None:
        """``ConfigurationError`` if it is not an object that a framework makes, and makes one of.

        A subclass has the same function, and would have the same record.
        """
        own = any(undecorated(each) is self._function for each in vars(type(made)).values())
        if not own or not any(hasattr(made, verb) for verb in _MADE_BY_FRAMEWORKS):
            raise self._no_key(["self.pk"])

    def _no_key(self, fields: list[str], harm: str = "or all calls get the first one's answer") -> ConfigurationError:
        key = ":".join([self._name.rpartition(".")[2], *(f"{{{field}}}" for field in fields)])
        return ConfigurationError(f'{self._name} has arguments: once needs a key, such as key="{key}", {harm}.')
