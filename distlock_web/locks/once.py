"""``once``: a function that is done once, and then answers what it has answered. A lock whose end leaves a record."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ParamSpec, TypeVar, Unpack

from ..core.config import Duration, check_flag, check_seconds
from ..core.errors import BackendUnavailable, ConfigurationError, KeyReused, LockBusy
from ..core.registry import configured
from ..core.runtime import Runtime, drive
from . import call_site, chain, hooks
from .decorator import CallOptions, LockedFunction, decorator, take_key
from .events import log_fields
from .hooks import Integration, RunningTask
from .key_templates import KeyInFront
from .lease import Lease, OnLost
from .options import Options, check_names, check_records
from .scope import Scope

logger = logging.getLogger("distlock_web")
P = ParamSpec("P")
R = TypeVar("R")

#: Bytes of JSON that ``result=True`` stores at most.
MAX_RESULT_BYTES = 64 * 1024


class OnceOptions(CallOptions, total=False):
    """What ``once(...)`` takes: ``keep`` and ``result``, and options of ``distributed_lockable``."""

    #: How long it stays done, from the beginning of its run.
    keep: Duration
    #: Store what it returns, and return that when it is done.
    result: bool
    prefix: str | None
    expire: Duration | None
    wait: Duration | None
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
    view the stored response, otherwise None. With ``result=True`` they get what the function returned: JSON of at most
    64 KB that reads back equal.

    After an exception, or if ``success`` says no, there is no record, and the next call runs: *at least once*. The same
    happens if the process dies, if the lease is lost, if the store does not answer at the end, or if the run takes
    longer than ``keep``. A call from inside its own run is refused as ``on_busy`` says, without waiting.

    The names are separate from those of locks: ``lock("pay:1")`` and ``once(key="pay:1")`` do not exclude each other.
    With ``until="commit"`` a run without success is rolled back. A call inside another open transaction is refused,
    because that transaction may be rolled back after the record was written. ``on_backend_error="open"`` is refused as
    well, and the store's setting of it is ignored.

    Without ``key`` all calls are the same one: that is refused for a function with arguments, and for a view.

    Raises ``ConfigurationError`` when it is applied, also for a store without records (Redlock, ZooKeeper). If the
    store is not known yet, the first call raises it. A call raises ``KeyReused`` if the key was used by another
    function, or, for a view, by another client or with other data. It also raises what ``distributed_lockable`` raises.
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
            self._check_arguments()
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
        known = configured()
        if known is not None and lock_options.store in known.stores:
            check_records(known.store(lock_options.store))

    def _check_arguments(self) -> None:
        """``ConfigurationError`` if calls that ask for different things would have one key, and so one answer."""
        names = list(self.keys.signature.parameters)
        behind_self = names[:1] in (["self"], ["cls"])
        named = [
            name
            for name, each in self.keys.signature.parameters.items()
            if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
        ][behind_self:]
        if not named and (behind_self or not names):  # what the framework hands to each method of this name
            return
        fields = [name for name in named if name != "request"]
        fields += ["request.headers[Idempotency-Key]"] if "request" in named else []
        key = ":".join([self.name.rpartition(".")[2], *(f"{{{field}}}" for field in fields)])
        harm = "or all other requests get a 422" if "request" in named else "or all calls get the first one's answer"
        raise ConfigurationError(f'{self.name} has arguments: once needs a key, such as key="{key}", {harm}.')

    async def scope(self, runtime: Runtime, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Scope:
        scope = await super().scope(runtime, args, kwargs)
        if len(scope.spec.names) > 1:
            raise ConfigurationError(f"{self.name}: once needs one key, not {len(scope.spec.names)}.")
        scope.asked = await self.asked(args)  # now, for the function may log somebody in
        return scope

    async def asked(self, args: tuple[Any, ...]) -> str:
        """Whose the record is: of a request, a digest of who asks for what; else the function's."""
        return await hooks.afirst(Integration.asked, args, self) or self.name

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
            drive(self.judge(result, scope))
            if scope.record is None:
                raise _NoSuccess(result)
            return result

        try:
            return self.transactions.run(self.name, run, Lease(scope), self.database)
        except _NoSuccess as failure:
            return failure.result

    async def judge(self, result: Any, scope: Scope) -> None:
        if not self.succeeded(result):
            return
        self.refuse_open_transaction()  # one that the function has begun, and not committed
        if self.keeps_result:
            self._check_result(result)
        kept = await hooks.afirst(Integration.answer_of, result, self)
        if scope.asked != self.name and kept is None and result is not None and not self.keeps_result:
            logger.warning(
                "%s was called with a request and returned a %s, which is no response: a repeated call will get "
                "None. Return a response, or set result=True.", self.name, type(result).__name__,
                extra=scope.log_fields("done"),
            )  # fmt: skip
        scope.record = json.dumps({"asked": scope.asked, "kept": kept, "result": result if self.keeps_result else None})
        scope.spec = scope.spec._replace(hold_at_least=self.keep)

    def _check_result(self, result: Any) -> None:
        """``ConfigurationError`` if it is no JSON, or not all of it: the second answer would not be the first."""
        try:
            text = json.dumps(result, allow_nan=False)
            wrong = "" if json.loads(text) == result else "which is another value when it is read back"
        except (TypeError, ValueError, RecursionError) as error:
            text, wrong = "", f"which is no JSON ({error})"
        if len(text) > MAX_RESULT_BYTES:
            wrong = f"of {len(text)} bytes as JSON, where {MAX_RESULT_BYTES} fit"
        if wrong:
            raise ConfigurationError(
                f"{self.name}: once with result=True stores what it returns as JSON, and it has returned a "
                f"{type(result).__name__}, {wrong}. It is not recorded as done."
            )

    async def rejected(
        self, error: LockBusy | BackendUnavailable, scope: Scope, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """It is done, or cannot run: the answer that it has given, or what the policy makes of it."""
        if not isinstance(error, LockBusy) or error.record is None:
            return await super().rejected(error, scope, args, kwargs)
        record = json.loads(error.record)
        if record["asked"] != scope.asked:
            raise KeyReused(
                f"The key of {error.name!r} was used for another call: another function, other data, another caller or "
                f"another address.",
                name=error.name,
            )
        response = None if record["kept"] is None else hooks.first(Integration.replay, record["kept"], args, self)
        if response is not None:
            return response
        fields = log_fields("done", self.options.store, error.name or "", self.keys.template, function=self.name)
        ago = "" if error.held_for is None else f" (begun {error.held_for:.0f} s ago)"
        logger.info("%s was done%s, and does not run again. Its key: %s", self.name, ago, error.name, extra=fields)
        return record["result"] if self.keeps_result else None
