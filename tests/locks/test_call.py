"""The stages of a call, one by one: what each asks of the framework that it is in, and what it makes of the answer."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from types import GeneratorType
from typing import Any

import pytest

from distlock_web import (
    BackendUnavailable,
    ConfigurationError,
    Lease,
    LockBusy,
    configure,
    current_lease,
    distributed_lockable,
    lock,
    once,
)
from distlock_web.core import integrations
from distlock_web.core.errors import KeyUnavailable, OpenTransactionWarning
from distlock_web.core.runtime import THREADS, drive
from distlock_web.locks import hooks
from distlock_web.locks.call import LockedFunction, acquire
from distlock_web.locks.commit import before_judging
from distlock_web.locks.scope import Scope
from distlock_web.testing.fault_injector import FaultInjector
from distlock_web.testing.plugin import hold_lock

pytestmark = pytest.mark.usefixtures("memory_store")

NOTE = {"note": "gift"}


class Request:
    def __init__(self, method: str = "POST") -> None:
        self.method = method


class Stream:
    """A response whose body is sent later."""


class NotFound(Exception):
    """As the framework says it."""


class Task:
    """The run of a task, whose lock is one as any other."""

    def __init__(self) -> None:
        self.begun: list[object] = []

    async def begin(self, locked: object, scope: Any) -> Any:
        self.begun.append(locked)
        return scope

    def keeps(self, scope: Any) -> bool:
        return False

    def retry(self, error: LockBusy) -> Exception:
        return InterruptedError(f"later: {error.name}")


class Transactions:
    def __init__(self, framework: Framework) -> None:
        self._seen = framework.seen

    def mark(self, wrapper: Any, database: object) -> None:
        self._seen.append(("mark", wrapper, database))

    def context(self) -> hooks.Context:
        return "none"

    def refuse_open(self, function_name: str, database: object) -> None: ...

    def run(self, function_name: str, call: Callable[[], Any], lease: Lease, database: object) -> Any:
        self._seen.append(("run", function_name, database))
        before_judging(lease, lambda result: result != "undone")
        return call()

    def run_open(self, function: Any, call: Callable[[], Any], database: object) -> Any:
        self._seen.append(("run open", function, database))
        return call()


class Framework(hooks.Integration):
    """Its views are called with a :class:`Request`, and with NOTE: who asks with less of the call asks of none."""

    def __init__(self) -> None:
        self.seen: list[tuple[Any, ...]] = []
        self.task: Task | None = None
        self.streams_of: list[Lease] = []
        self.transaction: str | None = None

    def _views(self, args: Any, kwargs: Any, locked: object) -> bool:
        return isinstance(args[0], Request) and kwargs == NOTE and isinstance(locked, LockedFunction)

    def request_of(self, args: Any, kwargs: Any, locked: object) -> Any:
        return args[0] if self._views(args, kwargs, locked) else None

    def not_found(self, args: Any, kwargs: Any, locked: object) -> Exception | None:
        return NotFound() if self._views(args, kwargs, locked) else None

    def is_failure(self, result: Any, args: Any, kwargs: Any, locked: object) -> bool:
        return result == "failed" and self._views(args, kwargs, locked)

    def is_stream(self, result: Any, locked: object) -> bool:
        return isinstance(result, Stream | GeneratorType) and isinstance(locked, LockedFunction)

    def stream(self, result: Any, locked: object, lease: Lease) -> object | None:
        if not (isinstance(result, Stream) and isinstance(locked, LockedFunction)):
            return None
        self.streams_of.append(lease)
        return f"sent under {lease.name}"

    def transactions(self, database: object) -> Transactions:
        return Transactions(self)

    def open_transaction(self) -> str | None:
        return self.transaction

    def running_task(self) -> Task | None:
        return self.task


@pytest.fixture(autouse=True)
def framework(monkeypatch: pytest.MonkeyPatch) -> Framework:
    """The only one."""
    monkeypatch.setattr(integrations, "installed", integrations.Installed())
    monkeypatch.setattr(hooks, "_WITH_TASKS", {})
    made = Framework()
    hooks.install(made)
    return made


def pay(request: Any, note: str = "") -> Any:
    return f"paid {note}{'' if current_lease() is None else ', locked'}"


async def apay(request: Any, note: str = "") -> Any:
    return pay(request, note)


async def coroutine(*args: object) -> object:
    return None


def gives_a_coroutine(*args: object, **options: object) -> object:
    return coroutine()


def run(function: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a plain function, or a coroutine function."""
    made = function(*args, **kwargs)
    return asyncio.run(made) if inspect.iscoroutine(made) else made


BOTH: Any = pytest.mark.parametrize("function", [pay, apay], ids=["sync", "async"])

# Where it is decorated ----------------------------------------------------------------------------------------------


class Shop:
    def pay(self) -> None: ...

    def refund(self) -> None: ...


class Branch(Shop):
    pass


def test_a_method_that_is_decorated_for_each_call_carries_one_lock_for_its_class() -> None:
    """As Django's ``method_decorator`` does it, with a partial of the method of the object that is called just now."""
    decorate: Any = distributed_lockable(key="a")
    calls = [Shop().pay, Shop().pay, Shop().refund, Branch().pay, Shop().pay]
    made = [decorate(partial(method)).__distlock__ for method in calls]
    assert [made.index(each) for each in made] == [0, 0, 2, 3, 0]


class Till:
    def __call__(self, request: Request) -> None: ...


@pytest.mark.parametrize(
    ("function", "shown"),
    [(lambda request: None, None), (Till(), None), (pay, {"request": Any, "note": str})],
)
def test_types_that_are_texts_are_resolved_on_the_wrapper(function: Any, shown: dict[str, Any] | None) -> None:
    """Who looks them up in the module of what it was given would look in ours."""
    signature = vars(distributed_lockable(key="a")(function)).get("__signature__")
    types = signature and {name: each.annotation for name, each in signature.parameters.items()}
    assert types == shown


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"until": "never"}, 'pay: until is \'never\'; it has to be "return", "commit" or None.'),
        ({"database": "orders"}, 'pay: database= names the transaction of until="commit".'),
    ],
)
def test_what_no_transaction_can_be_made_of_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        distributed_lockable(key="a", **options)(pay)
    assert str(caught.value) == f"{__name__}.{said}"


COMMIT: dict[str, Any] = {"until": "commit"}
ORDERS = {"until": "commit", "database": "orders"}


@pytest.mark.parametrize(
    ("upper", "lower", "refused"),
    [
        ({}, {}, False),
        (COMMIT, {}, False),
        ({}, COMMIT, False),
        (COMMIT, COMMIT, True),
        (COMMIT, ORDERS, False),
        (ORDERS, ORDERS, True),
    ],
)
def test_two_that_would_open_one_transaction_are_refused(upper: Any, lower: Any, refused: bool) -> None:
    below = distributed_lockable(key="lower", **lower)(pay)
    with pytest.raises(ConfigurationError, match="two decorators with until=") if refused else nullcontext():
        distributed_lockable(key="upper", **upper)(below)


# Method -------------------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("options", [{"methods": ("POST",)}, {"when": lambda request: request.method == "POST"}])
def test_a_request_that_is_not_chosen_runs_without_the_lock(function: Any, options: Any) -> None:
    locked = distributed_lockable(key="a", **options)(function)
    assert run(locked, Request("GET"), **NOTE) == "paid gift"
    assert run(locked, Request("POST"), **NOTE) == "paid gift, locked"


def test_and_in_the_transaction_that_the_framework_would_have_opened(framework: Framework) -> None:
    locked = distributed_lockable(key="a", methods=("POST",), until="commit", database="orders")(pay)
    assert [locked(Request(method), **NOTE) for method in ("GET", "POST")] == ["paid gift", "paid gift, locked"]
    assert framework.seen == [
        ("mark", locked, "orders"), ("run open", pay, "orders"), ("run", f"{__name__}.pay", "orders"),
    ]  # fmt: skip


@BOTH
@pytest.mark.parametrize("options", [{"methods": ("POST",)}, {"when": bool}])
def test_what_is_no_view_has_no_request_to_choose(
    function: Any, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    said = rf"\.a?pay: {next(iter(options))}= is for views, and %s; leave it out"
    locked = distributed_lockable(key="a", **options)(function)
    with pytest.raises(ConfigurationError, match=said % "this call has no request"):
        run(locked, 7, **NOTE)
    monkeypatch.setattr(integrations, "installed", integrations.Installed())
    with pytest.raises(ConfigurationError, match=said % "no framework is loaded"):
        distributed_lockable(key="a", **options)(function)


# Nobody would await it: whatever an option's function gives to a plain function.
NOT_AWAITED: list[tuple[dict[str, Any], str]] = [
    ({"when": gives_a_coroutine}, "when gave a coroutine, but it is a plain function: nobody would await that."),
    ({"on_busy": gives_a_coroutine}, "on_busy gave a coroutine, but it is a plain function: nobody would await that."),
    ({"success": gives_a_coroutine, "hold_at_least": 60}, "success gave a coroutine, nobody would await that."),
]


@pytest.mark.parametrize(("options", "said"), NOT_AWAITED)
def test_a_coroutine_that_nobody_would_await_is_refused(options: dict[str, Any], said: str) -> None:
    locked = distributed_lockable(key="b" if "on_busy" in options else "a", **options)(pay)
    with hold_lock("b"), pytest.raises(ConfigurationError) as caught:
        locked(Request(), **NOTE)
    assert str(caught.value) == f"{__name__}.pay: its {said}"


# Task and key -------------------------------------------------------------------------------------------------------


@BOTH
def test_a_value_that_is_malformed_is_a_page_that_is_not_there(function: Any) -> None:
    locked = distributed_lockable(key="{note:int}")(function)
    with pytest.raises(NotFound):
        run(locked, Request(), **NOTE)
    with pytest.raises(KeyUnavailable):
        run(locked, 7, **NOTE)


@BOTH
def test_a_task_is_told_which_function_takes_its_lock(framework: Framework, function: Any) -> None:
    framework.task = Task()
    locked: Any = distributed_lockable(key="a")(function)
    assert run(locked, 7, **NOTE) == "paid gift, locked"
    assert framework.task.begun == [locked.__distlock__]


@BOTH
def test_the_warning_of_an_open_transaction_points_to_the_function(framework: Framework, function: Any) -> None:
    framework.transaction = "a transaction of the shop's"
    with pytest.warns(OpenTransactionWarning, match="is held inside a transaction of the shop's") as told:
        run(distributed_lockable(key="a")(function), 7)
    code = function.__code__
    assert {(each.filename, each.lineno) for each in told} == {(code.co_filename, code.co_firstlineno)}


# Lock ---------------------------------------------------------------------------------------------------------------


def sorry(error: LockBusy, request: Any, note: str) -> str:
    return f"sorry, no {note} by {error.name}"


async def asorry(error: LockBusy, request: Any, note: str) -> str:
    return sorry(error, request, note)


@pytest.mark.parametrize(("function", "policy"), [(pay, sorry), (apay, sorry), (apay, asorry)])
def test_a_busy_policy_answers_with_all_that_it_knows(function: Any, policy: Any) -> None:
    locked = distributed_lockable(key="a", on_busy=policy)(function)
    with hold_lock("a"):
        assert run(locked, 7, **NOTE) == "sorry, no gift by disLock:a"


@BOTH
@pytest.mark.parametrize("mark", [True, 1, False, None])
def test_a_policy_for_views_answers_no_other_function(function: Any, mark: object) -> None:
    def policy(*args: Any, **kwargs: Any) -> str:
        return sorry(*args, **kwargs)

    if mark is not None:
        policy.for_views = mark  # type: ignore[attr-defined]
    locked = distributed_lockable(key="a", on_busy=policy)(function)
    with hold_lock("a"):
        assert run(locked, Request(), **NOTE) == "sorry, no gift by disLock:a"
        if mark is True:
            with pytest.raises(LockBusy):
                run(locked, 7, **NOTE)
        else:
            assert run(locked, 7, **NOTE) == "sorry, no gift by disLock:a"


@BOTH
def test_what_is_skipped_is_logged_with_its_lock(function: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "distlock_web")
    with hold_lock("a:gift"):
        assert run(distributed_lockable(key="a:{note}", on_busy="skip")(function), 7, **NOTE) is None
    name = f"{__name__}.{function.__name__}"
    [record] = [each for each in caplog.records if "skipped" in each.getMessage()]
    assert record.getMessage().startswith(f"{name} skipped. Did not get a lock for key disLock:a:gift. ")
    assert {key: value for key, value in vars(record).items() if key.startswith("lock_")} == {
        "lock_event": "busy", "lock_store": "default", "lock_name": "disLock:a:gift", "lock_template": "a:{note}",
        "lock_function": name,
    }  # fmt: skip


@BOTH
@pytest.mark.parametrize(
    ("policy", "error", "said"),
    [
        ("retry", InterruptedError, "^later: disLock:a$"),
        ("raise", LockBusy, "disLock:a"),
        (None, LockBusy, "disLock:a"),
    ],
)
def test_a_task_is_sent_again_where_that_is_said(
    framework: Framework, function: Any, policy: Any, error: type[Exception], said: str
) -> None:
    framework.task = Task()
    with hold_lock("a"), pytest.raises(error, match=said):
        run(distributed_lockable(key="a", on_busy=policy)(function), 7, **NOTE)


@BOTH
def test_outside_of_a_task_there_is_none_to_send_again(function: Any) -> None:
    """Though the lock is free: else the first busy one would show it, in production."""
    locked = distributed_lockable(key="a", on_busy="retry")(function)
    with pytest.raises(ConfigurationError, match=r'pay: on_busy="retry" sends .* no task runs here'):
        run(locked, 7)


def test_where_no_library_of_tasks_is_none_is_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(integrations, "installed", integrations.Installed())
    with pytest.raises(ConfigurationError, match=r"pip install 'distlock_web\[celery\]'"):
        distributed_lockable(key="a", on_busy="retry")(pay)


@pytest.mark.parametrize("in_block", [True, False])
def test_what_goes_on_without_its_lock_is_the_block_or_lease_that_it_was(in_block: bool) -> None:
    FaultInjector(configure({"default": {"BACKEND": "memory"}}).store("default")).cut()
    locked: LockedFunction = distributed_lockable(key="a", on_backend_error="open")(pay).__distlock__  # type: ignore[attr-defined]
    scope = Scope(locked.options.spec(("a",), THREADS), THREADS, in_block=in_block)
    let_through = drive(acquire(locked, scope))
    assert (let_through.locked, let_through.in_block) == (False, in_block)


# Judge --------------------------------------------------------------------------------------------------------------


def fail(request: Any, note: str) -> str:
    return "failed"


async def afail(request: Any, note: str) -> str:
    return "failed"


@pytest.mark.parametrize("function", [fail, afail])
def test_a_failure_is_what_the_framework_says_of_its_views(function: Any) -> None:
    locked = distributed_lockable(key="a", hold_at_least=60)(function)
    assert run(locked, Request(), **NOTE) == "failed"
    assert not lock("a").locked()
    run(locked, 7, **NOTE)  # to a function that is no view it is any word
    assert lock("a").locked()


@pytest.mark.parametrize(("result", "kept"), [("undone", False), ("done", True)])
def test_what_its_transaction_calls_undone_is_no_success(result: str, kept: bool) -> None:
    assert distributed_lockable(key="a", until="commit", hold_at_least=60)(lambda: result)() == result
    assert lock("a").locked() == kept


def test_a_generator_that_the_framework_sends_is_returned() -> None:
    made = distributed_lockable(key="a")(lambda: (number for number in range(2)))()
    assert list(made) == [0, 1]


# Stream -------------------------------------------------------------------------------------------------------------


def stream() -> Stream:
    return Stream()


async def astream() -> Stream:
    return Stream()


@pytest.mark.parametrize("function", [stream, astream])
@pytest.mark.parametrize("until", [None, "return"])
def test_a_stream_goes_on_under_its_lock_where_nothing_else_is_said(
    framework: Framework, function: Any, until: Any
) -> None:
    returned = run(distributed_lockable(key="a", until=until)(function))
    if until is None:
        assert returned == "sent under disLock:a"
        assert lock("a").locked()
        framework.streams_of.pop().release()
    assert isinstance(returned, Stream) == (until == "return")
    assert framework.streams_of == []
    assert not lock("a").locked()


@pytest.mark.parametrize(("until", "told"), [("commit", 1), ("return", 0), (None, 0)])
def test_who_releases_at_the_commit_is_told_once_that_a_stream_comes_later(
    framework: Framework, until: Any, told: int, caplog: pytest.LogCaptureFixture
) -> None:
    results: list[object] = ["text", Stream(), Stream()]
    locked = distributed_lockable(key="a", until=until)(lambda: results.pop(0))
    for number in range(3):
        locked()
        said = [record for record in caplog.records if "returns a stream" in record.getMessage()]
        assert len(said) == (told if number else 0)
        for lease in framework.streams_of:
            lease.release()
        framework.streams_of.clear()


def test_once_is_never_open_whatever_its_store_says() -> None:
    FaultInjector(configure({"default": {"BACKEND": "memory", "ON_BACKEND_ERROR": "open"}}).store("default")).cut()
    assert distributed_lockable(key="a")(pay)(7) == "paid , locked"
    with pytest.raises(BackendUnavailable):
        once(key="a", keep=60)(pay)(7)
