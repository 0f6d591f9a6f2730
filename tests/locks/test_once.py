"""``once``: it runs once for each key, answers what it has answered, and after a failure runs again."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import logging
import re
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, cast
from uuid import UUID

import pytest
from celery import Celery, Task
from django.core.management import BaseCommand

from distlock_web import (
    BackendUnavailable,
    ConfigurationError,
    KeyReused,
    LeaseLost,
    LockBusy,
    configure,
    current_lease,
    distributed_lockable,
    lock,
)
from distlock_web.backends.memory import MemoryPort
from distlock_web.core import integrations
from distlock_web.core.backend import Busy, Claim, Port
from distlock_web.core.errors import NotSent
from distlock_web.core.registry import registry
from distlock_web.core.runtime import THREADS, drive
from distlock_web.locks import ending, hooks
from distlock_web.locks.call import LockedFunction
from distlock_web.locks.hooks import Asked
from distlock_web.locks.lease import scope_of
from distlock_web.locks.once import once, whose_record
from distlock_web.locks.plain_values import MAX_BYTES
from distlock_web.testing import hold_lock, locks_in_memory
from tests.support.callers import Beside
from tests.support.waiting import LONG, SOON, eventually


def endless() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


class Counted:
    """Runs, and what they return."""

    def __init__(self) -> None:
        self.runs = 0

    def __call__(self, number: int = 1) -> dict[str, int]:
        self.runs += 1
        return {"number": number, "run": self.runs}

    def once(self, **options: Any) -> Callable[..., Any]:
        def run(number: int = 1) -> dict[str, int]:
            return self(number)

        return once(**{"key": "job:{number}", "keep": LONG, "result": True, **options})(run)


@pytest.fixture
def counted() -> Counted:
    return Counted()


def port() -> Port:
    return registry().store("default").port(THREADS)


def test_it_runs_once_for_each_key(store: str, counted: Counted) -> None:
    function = counted.once()
    assert [function(1), function(1), function(2), function(1)] == [
        {"number": 1, "run": 1}, {"number": 1, "run": 1}, {"number": 2, "run": 2}, {"number": 1, "run": 1},
    ]  # fmt: skip
    assert counted.runs == 2


def test_how_long_it_stays_done_is_not_how_long_a_run_takes(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who finds it busy was told to come back when its record ends."""

    @once(key="job", keep=LONG)
    def run() -> None:
        lease = current_lease()
        assert lease is not None
        over = scope_of(lease).holds[0].since + 0.5
        monkeypatch.setattr(ending, "now", lambda: over)

    run()
    usual = registry().store("default").hold_times.usual(cast(Any, run).__distlock__.name, "disLock:once:job")
    assert usual == pytest.approx(0.5)


def test_without_result_the_second_call_gives_none_and_says_so(
    store: str, counted: Counted, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "distlock_web")
    function = counted.once(result=False)
    assert function() == {"number": 1, "run": 1}
    assert function() is None
    (said,) = [record for record in caplog.records if "does not run again" in record.message]
    assert said.lock_name == "disLock:once:job:1"  # type: ignore[attr-defined]
    assert said.lock_event == "done"  # type: ignore[attr-defined]
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == [], "it has no request"


@pytest.mark.parametrize(
    ("result", "keeps", "level", "says"),
    [
        (1, True, "INFO", ""),
        (1, False, "INFO", ""),
        (object(), False, "INFO", ""),
        (object(), True, "WARNING", ". Its result was not kept: this call gets None"),
    ],
)
def test_what_is_not_run_again_is_logged_with_its_lock(
    store: str, result: object, keeps: bool, level: str, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "distlock_web")

    @once(key="job:{number}", keep=LONG, result=keeps)
    def run(number: int) -> object:
        return result

    run(1)
    run(1)
    record = caplog.records[-1]
    name = f"{__name__}.{run.__qualname__}"
    text = re.sub(r"begun \d+ s ago", "begun ? s ago", record.getMessage())
    assert text == f"{name} was done (begun ? s ago), and does not run again. Its key: disLock:once:job:1{says}"
    assert record.levelname == level
    fields = {
        "lock_event": "done", "lock_store": "default", "lock_name": "disLock:once:job:1",
        "lock_template": "job:{number}", "lock_function": name,
    }  # fmt: skip
    assert {key: value for key, value in vars(record).items() if key.startswith("lock_")} == fields
    lost = [record for record in caplog.records if "without its result" in record.getMessage()]
    assert len(lost) == (level == "WARNING")
    for record in lost:
        assert vars(record).items() >= fields.items()


def test_a_store_that_does_not_tell_since_when(
    monkeypatch: pytest.MonkeyPatch, counted: Counted, caplog: pytest.LogCaptureFixture
) -> None:
    configure({"default": {"BACKEND": "memory"}})
    caplog.set_level(logging.INFO, "distlock_web")
    acquire = MemoryPort.acquire

    async def reticent(port: MemoryPort, claim: Claim, *args: Any) -> Any:
        answer = await acquire(port, claim, *args)
        return answer._replace(held_for=None) if isinstance(answer, Busy) else answer

    monkeypatch.setattr(MemoryPort, "acquire", reticent)
    function: Any = counted.once()
    function(), function()
    said = caplog.records[-1].getMessage()
    assert said == f"{function.__distlock__.name} was done, and does not run again. Its key: disLock:once:job:1"


def test_a_coroutine(store: str, counted: Counted) -> None:
    @once(key="job:{number}", keep="1h", result=True)
    async def run(number: int) -> dict[str, int]:
        await asyncio.sleep(0)
        return counted(number)

    async def twice() -> list[Any]:
        return [await run(1), await run(1)]

    assert inspect.iscoroutinefunction(run)
    first, second = asyncio.run(twice())
    assert first == second == {"number": 1, "run": 1}


def test_a_run_that_outlasts_keep_is_not_kept(store: str, counted: Counted) -> None:
    @once(key="job", keep=0.01, result=True)
    def run() -> dict[str, int]:
        lease = current_lease()
        assert lease is not None
        left = lease.remaining
        eventually(lambda: lease.remaining < left - 0.02, "keep is over")
        return counted()

    assert [run()["run"], run()["run"]] == [1, 2]


@pytest.mark.parametrize("answer", ["raises", "says no"])
def test_a_failure_leaves_no_record(store: str, answer: str) -> None:
    runs = []

    @once(key="job", keep=LONG, success=lambda result: result != "no", result=True)
    def run() -> str:
        runs.append(1)
        if len(runs) > 1:
            return "yes"
        if answer == "raises":
            raise KeyError
        return "no"

    if answer == "raises":
        with pytest.raises(KeyError):
            run()
    else:
        assert run() == "no"
    assert [run(), run()] == ["yes", "yes"]
    assert len(runs) == 2


@pytest.mark.parametrize(
    "result",
    [
        object(),
        {1, 2},
        iter("ab"),
        float("nan"),
        "x" * MAX_BYTES,
        "世" * 30_000,
        [Decimal("NaN")],
        [[0, lambda: 1]],
        endless(),
    ],
)
def test_a_result_that_does_not_read_back_equal_is_not_kept_but_that_it_is_done_is(
    store: str, result: object, caplog: pytest.LogCaptureFixture
) -> None:
    """Its caller was told of an error, and the next one did it again."""
    runs = []

    @once(key="job", keep=LONG, result=True)
    def run() -> object:
        runs.append(1)
        return result

    assert run() is result
    assert "recorded as done, but without its result: it" in caplog.messages[-1]
    assert run() is None
    assert "Its result was not kept: this call gets None" in caplog.messages[-1]
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2
    assert len(runs) == 1


@pytest.mark.parametrize(
    "result",
    [
        None,
        True,
        0,
        "",
        "ä\n\ud800",
        [1, {"a": None}],
        {"a": 1.5},
        (1, [(2,)]),
        {1: 2, (3,): {}},
        {"": "empty"},
        {"": ["tuple", []]},
        Decimal("9.90"),
        [b"\xff", UUID(int=7)],
        datetime(2026, 11, 23, 12, 30, tzinfo=UTC),
        "世" * 20_000,
        OrderedDict(a=1),
    ],
)
def test_what_is_plain_data_comes_back(store: str, result: object) -> None:
    @once(key="job", keep=LONG, result=True)
    def run() -> object:
        return result

    assert [run(), run()] == [result, result]


def test_in_flight_it_is_a_busy_lock(store: str, beside: Beside, counted: Counted) -> None:
    with hold_lock("once:job:1"), pytest.raises(LockBusy) as caught:
        counted.once()()
    assert caught.value.record is None
    with hold_lock("once:job:1"):
        assert counted.once(on_busy="skip")() is None
    assert counted.runs == 0


def test_its_names_are_its_own(store: str, counted: Counted) -> None:
    with lock("job:1"):
        counted.once()()
    with lock("job:1", wait=0):
        assert counted.once()() == {"number": 1, "run": 1}


def test_inside_of_itself_it_is_refused_at_once(store: str) -> None:
    @once(key="job", keep=LONG, wait=LONG)
    def run() -> None:
        with pytest.raises(LockBusy, match="calls itself with the same key") as caught:
            run()
        assert caught.value.name == "disLock:once:job"

    run()


def test_a_release_by_hand_leaves_no_record(store: str) -> None:
    runs = []

    @once(key="job", keep=LONG)
    def run() -> None:
        runs.append(1)
        lease = current_lease()
        assert lease is not None
        lease.release()

    run()
    run()
    assert len(runs) == 2


class Requests(hooks.Integration):
    """Calls whose first argument is a text are requests of whoever it names."""

    async def asked(self, args: Any, kwargs: Any, locked: object) -> str | None:
        return f"digest of {args[0]}" if isinstance(args[0], str) else None

    async def answer_of(self, result: Any, args: Any, kwargs: Any, locked: object) -> dict[str, Any] | None:
        return {"status": result.real} if isinstance(args[0], str) else None

    def replay(self, kept: dict[str, Any], args: Any, kwargs: Any, locked: object) -> hooks.Answer | None:
        return hooks.Answer(complex(kept["status"], 1))


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(integrations, "installed", integrations.Installed())
    hooks.install(Requests())


def test_a_view_is_answered_for_its_own_caller_only(store: str, requests: None) -> None:
    runs = []

    @once(key="pay", keep=LONG)
    def view(request: object) -> complex:
        runs.append(request)
        return 201j.conjugate() if request is None else complex(201)

    assert view("alice") == 201
    assert view("alice") == 201 + 1j
    for other in ("bob", None):
        with pytest.raises(KeyReused, match="used for another call") as caught:
            view(other)
        assert caught.value.name == "disLock:once:pay"
    assert runs == ["alice"]


@pytest.mark.parametrize(
    ("args", "asked"),
    [
        (("alice",), Asked("digest of alice", "digest of alice")),
        (("run:0:true",), Asked("digest of run:0:true", "digest of run")),
        ((None,), Asked(f"{__name__}.view", "__main__.view")),
    ],
)
def test_whose_record_it_is(store: str, requests: None, args: Any, asked: Asked) -> None:
    """In format 1 it is without what stands behind a colon."""
    locked: LockedFunction = distributed_lockable(key="a")(view).__distlock__  # type: ignore[attr-defined]
    assert drive(whose_record(locked, "__main__.view:1:2", args, {})) == asked


def test_its_key_may_stand_in_front(store: str) -> None:
    def run(number: int) -> int:
        return number

    function: Any = once("job:{number}", keep=LONG, result=True)(run)
    assert [function(1), function(2), function(1)] == [1, 2, 1]
    assert function.__distlock__.keys.template == "job:{number}"


@pytest.mark.parametrize(
    ("decorate", "message"),
    [
        (lambda: cast(Any, once)(nothing), 'once needs to know how long it stays done: @once(keep="24h").'),
        (lambda: once(key="a"), 'once needs to know how long it stays done: keep="24h".'),
        (lambda: once("a", key="b", keep=1), "once got two keys: one as the first argument, one as key=."),
        (lambda: cast(Any, once)(key="a", keep=1)(7), "once is for functions, not for 7."),
    ],
)
def test_what_is_missing_or_too_much_is_said_in_its_own_words(decorate: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        decorate()
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"key": "a"}, "how long it stays done"),
        ({"key": "a", "keep": 0}, "keep is 0"),
        ({"key": "a", "keep": "soon"}, "keep is 'soon'"),
        ({"key": ["a", "b"], "keep": 1}, "once needs one key, not 2"),
        ({"key": "a", "keep": 1, "hold_at_least": 1}, "once has the option 'hold_at_least'"),
        ({"key": "a", "keep": 1, "result": "yes"}, "result is 'yes'"),
        ({"key": "a", "keep": 1, "success": "yes"}, "success is 'yes'"),
    ],
)
def test_what_cannot_be_right_is_refused(store: str, options: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        once(**options)(lambda: None)()
    assert distributed_lockable(key="a")(lambda: 1)() == 1


class Job:
    def nothing(self) -> None: ...

    async def anothing(self) -> None: ...

    def rest(self, *args: object, **options: object) -> None: ...

    @classmethod
    def of_class(cls) -> None: ...

    def month(self, month: str) -> None: ...


def nothing() -> None: ...


async def anothing() -> None: ...


async def report(month: str) -> None: ...


def several(month: str, year: int = 2026) -> None: ...


def rest(*args: object) -> None: ...


def view(request: object) -> None: ...


def viewset(self: object, request: object, pk: str, **kwargs: object) -> None: ...


@pytest.mark.parametrize("function", [nothing, anothing])
def test_without_arguments_it_needs_no_key(function: Any) -> None:
    once(keep=60)(function)


#: In place of a key: what goes wrong without one.
ONE_ANSWER, ONE_CLIENT = "or all calls get the first one's answer", "or all other requests get a 422"


@pytest.mark.parametrize(
    ("function", "key"),
    [
        (report, "report:{month}"),
        (several, "several:{month}:{year}"),
        (Job.month, "month:{month}"),
        (Job.nothing, "nothing:{self.pk}"),
        (Job.anothing, "anothing:{self.pk}"),
        (Job.rest, "rest:{self.pk}"),
        (Job.of_class.__func__, "of_class:{cls.__name__}"),  # type: ignore[attr-defined]
        (rest, "rest"),
        (view, "view:{request.headers[Idempotency-Key]}"),
        (viewset, "viewset:{pk}:{request.headers[Idempotency-Key]}"),
    ],
)
def test_with_arguments_it_needs_a_key(function: Any, key: str) -> None:
    """``report("june")`` got the answer of ``report("may")``, without a word."""
    with pytest.raises(ConfigurationError) as caught:
        once(keep=60)(function)
    harm = ONE_CLIENT if "request" in key else ONE_ANSWER
    name = f"{__name__}.{function.__qualname__}"
    assert str(caught.value) == f'{name} has arguments: once needs a key, such as key="{key}", {harm}.'
    once(key=key, keep=60)(function)
    distributed_lockable()(function)


def with_self(self: object) -> int:
    return next(runs)


class Bound:
    def send(self) -> int:
        return next(runs)


class OwnCommand(BaseCommand):
    def handle(self, *args: object, **options: object) -> int:  # type: ignore[override]
        return next(runs)


runs = itertools.count(1)


class Made:
    """Decorated in the test, which looks at what is looked at then."""

    def __init__(self) -> None:
        class Command(BaseCommand):
            @once(keep=60, result=True)
            def handle(self, *args: object, **options: object) -> int:  # type: ignore[override]
                return next(runs)

        class AnotherCommand(Command):
            pass

        class SameName:
            handle = Command.handle

        class Reports(Task):
            name = "reports"

            @once(keep=60, result=True)
            def run(self) -> int:
                return next(runs)

        class OtherReports(Reports):
            name = "other"

        @once(keep=60, result=True)
        def local(self: object) -> int:
            return next(runs)

        tasks = Celery("jobs", set_as_current=False)
        self.Command, self.AnotherCommand, self.SameName = Command, AnotherCommand, SameName
        self.with_self: Any = once(keep=60, result=True)(with_self)
        own_task = tasks.task(bind=True, shared=False)
        self.bound_task, self.local_task = own_task(self.with_self), own_task(local)
        self.reports, self.other_reports = tasks.register_task(Reports()), tasks.register_task(OtherReports())
        self.of_an_object = once(keep=60, result=True)(OwnCommand().handle)


def test_the_object_that_a_framework_makes_is_no_argument(store: str) -> None:
    """A command's ``handle``, a task with ``bind=True`` and a task's own class: there is one, and it says nothing."""
    made = Made()
    command = made.Command()
    for call in (command.handle, made.bound_task, made.local_task, made.reports, made.of_an_object):
        assert call() == call()
    assert command.handle(verbosity=1, no_color=False, stdout=None) == command.handle()


@pytest.mark.parametrize(
    ("call", "key"),
    [
        (lambda made: made.with_self(Bound()), "with_self:{self.pk}"),
        (lambda made: made.with_self(), "with_self:{self.pk}"),
        (lambda made: made.Command().handle("May"), "handle:{...}"),
        (lambda made: made.AnotherCommand().handle(), "handle:{self.pk}"),
        (lambda made: made.SameName().handle(), "handle:{self.pk}"),
        (lambda made: made.other_reports(), "run:{self.pk}"),
        (lambda made: made.Command().handle(month="May"), "handle:{month}"),
        (lambda made: made.of_an_object("May"), "handle:{...}"),
        (lambda made: once(keep=60)(Bound().send), "send:{self.pk}"),
    ],
)
def test_every_other_object_is_an_argument(store: str, call: Callable[[Made], object], key: str) -> None:
    """``Invoice(2).send()`` was not sent, and told that invoice 1 is."""
    with pytest.raises(ConfigurationError, match=re.escape(f'key="{key}"')):
        call(Made())


def test_a_store_without_records_is_refused() -> None:
    configure({"default": {"LOCATION": "zookeeper://127.0.0.1:1"}})
    function = once(key="a", keep=1)(lambda: None)
    with pytest.raises(ConfigurationError, match="the store 'default' cannot: use Redis"):
        function()


def test_a_store_is_not_made_where_a_function_is_decorated() -> None:
    """A module may be imported within a test whose locks are in memory, where the settings' store cannot be made."""
    configure({"default": {"BACKEND": "tests.no.such.store"}})
    with locks_in_memory():
        assert once(key="a", keep=1, result=True)(lambda: 1)() == 1


def test_its_queue_may_have_an_end(store: str, counted: Counted, beside: Beside) -> None:
    """Clients who repeat one request filled all threads of a server."""
    function = counted.once(wait=LONG, max_waiters=1)
    with hold_lock("once:job:1"):
        waiting = beside(function)
        eventually(lambda: drive(port().inspect(["disLock:once:job:1"]))[0].waiters, "one waits")
        with pytest.raises(LockBusy):
            function()
    assert waiting.result(SOON) == function() == {"number": 1, "run": 1}


def test_another_function_with_the_same_key_is_told_so(store: str, counted: Counted) -> None:
    """It was never run, and had returned what the first one had."""
    counted.once()()

    @once(key="job:{number}", keep=LONG, result=True)
    def another(number: int) -> str:
        return "done"

    with pytest.raises(KeyReused, match="another function"):
        another(1)


def test_it_is_never_done_without_its_lock(store: str, counted: Counted) -> None:
    with pytest.raises(ConfigurationError, match="would repeat what is done"):
        counted.once(on_backend_error="open")
    configure({"default": {"LOCATION": "redis://127.0.0.1:1", "ON_BACKEND_ERROR": "open"}})
    assert distributed_lockable(key="job")(counted)() == {"number": 1, "run": 1}, "a lock is as the store says"
    with pytest.raises(BackendUnavailable):
        counted.once()()


def test_it_is_not_handed_over(store: str) -> None:
    """The record was lost with the lease, and the next call ran."""

    @once(key="job", keep=LONG)
    def run() -> None:
        lease = current_lease()
        assert lease is not None
        with pytest.raises(ConfigurationError, match="which cannot be handed over"):
            lease.detach()

    run()
    assert run() is None


@pytest.mark.parametrize("interruption", [SystemExit, KeyboardInterrupt])
def test_an_interrupted_end_leaves_its_record(
    monkeypatch: pytest.MonkeyPatch, counted: Counted, interruption: type[BaseException]
) -> None:
    """The work was done. The release that was sent after the signal left the lock free, and it was done again."""
    configure({"default": {"BACKEND": "memory"}})
    release, interrupted = MemoryPort.release, list[bool]()

    async def interrupt(*args: Any) -> Any:
        if not interrupted:
            interrupted.append(True)
            raise interruption
        return await release(*args)

    monkeypatch.setattr(MemoryPort, "release", interrupt)
    with pytest.raises(interruption):
        counted.once()()
    assert counted.once()() == {"number": 1, "run": 1}


@pytest.mark.parametrize("error", [NotSent, BackendUnavailable])
def test_a_record_that_comes_too_late_is_a_loss(
    monkeypatch: pytest.MonkeyPatch, counted: Counted, error: type[BackendUnavailable]
) -> None:
    """Had the first release been done, its record would be there. The caller was answered, and it ran again."""
    configure({"default": {"BACKEND": "memory"}})
    release, tries = MemoryPort.release, list[str]()

    async def refused_until_it_is_lost(port: MemoryPort, claim: Claim, *args: Any) -> Any:
        tries.append(claim.name)
        if len(tries) == 1:
            port._lock(claim.name).owners[claim.token].until = 0.0
            raise error("No answer to the release.")
        return await release(port, claim, *args)

    monkeypatch.setattr(MemoryPort, "release", refused_until_it_is_lost)
    with pytest.raises(LeaseLost):
        counted.once()()
    assert tries == ["disLock:once:job:1"] * 2
    assert counted.once()() == {"number": 1, "run": 2}


@pytest.mark.parametrize("error", [NotSent, BackendUnavailable])
def test_a_record_whose_answer_was_lost_is_there(
    monkeypatch: pytest.MonkeyPatch, counted: Counted, error: type[BackendUnavailable]
) -> None:
    configure({"default": {"BACKEND": "memory"}})
    release, tries = MemoryPort.release, list[str]()

    async def lost(port: MemoryPort, claim: Claim, *args: Any) -> Any:
        tries.append(claim.name)
        answer = await release(port, claim, *args)
        if len(tries) == 1:
            raise error("No answer to the release.")
        return answer

    monkeypatch.setattr(MemoryPort, "release", lost)
    assert counted.once()() == counted.once()() == {"number": 1, "run": 1}
    assert counted.runs == 1


# What the log says where a record is missing ----------------------------------------------------------------------


class Interruption(BaseException):
    """What a signal's handler raises."""


class Failing:
    """The releases of a store in memory: each of ``failures`` is raised by one, the last one by all that follow."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *failures: type[BaseException] | str) -> None:
        configure({"default": {"BACKEND": "memory"}})
        left = list(failures)
        release = MemoryPort.release

        async def fail(port: MemoryPort, claim: Claim, *args: Any) -> Any:
            failure = left.pop(0) if len(left) > 1 else left[0]
            if isinstance(failure, str):
                port._table.locks.clear()  # as a store does that has lost its data
                return await release(port, claim, *args)
            raise failure("The test fails it.")

        monkeypatch.setattr(MemoryPort, "release", fail)


def unreleased(name: str) -> str:
    """What is logged of it, of any lock."""
    return f"Lock {name!r} could not be released, it ends within its lease: The test fails it."


def called(function: Callable[..., Any], asynchronous: bool, **options: Any) -> BaseException | None:
    """What it has raised."""

    async def run() -> Any:
        return function()

    decorate = once(key="job", keep=LONG, **options)
    try:
        asyncio.run(decorate(run)()) if asynchronous else decorate(lambda: function())()
    except BaseException as error:
        return error
    return None


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize(
    "failures",
    [
        [BackendUnavailable],
        [NotSent],
        [ConfigurationError],
        [Interruption, BackendUnavailable],
        [Interruption, LookupError],
        [asyncio.CancelledError, BackendUnavailable],
        [BackendUnavailable, Interruption, BackendUnavailable],
    ],
)
def test_a_release_that_fails_says_that_its_record_may_be_missing(
    monkeypatch: pytest.MonkeyPatch,
    counted: Counted,
    caplog: pytest.LogCaptureFixture,
    failures: list[type[BaseException]],
    asynchronous: bool,
) -> None:
    """The log said that the lock ends within its lease, as of any lock: not that the work would be done again."""
    doubt = " Its run may not be recorded as done: then the next call runs again."
    Failing(monkeypatch, *failures)
    error = called(counted, asynchronous)
    assert type(error) in (type(None), Interruption, asyncio.CancelledError)
    assert counted.runs == 1
    warned = [line for line in caplog.records if line.levelno == logging.WARNING]
    told = [line.getMessage() for line in warned if vars(line).get("lock_name") == "disLock:once:job"]
    assert {*told} == {unreleased("disLock:once:job") + doubt}
    assert {vars(line)["lock_reason"] for line in warned if line.getMessage() in told} == {"release"}
    assert all(note.endswith(doubt) for note in getattr(error, "__notes__", []))


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("on_lost", ["raise", "warn"])
def test_a_loss_at_its_end_says_that_it_is_not_recorded(
    monkeypatch: pytest.MonkeyPatch,
    counted: Counted,
    caplog: pytest.LogCaptureFixture,
    on_lost: str,
    asynchronous: bool,
) -> None:
    Failing(monkeypatch, "lost")
    error = called(counted, asynchronous, on_lost=on_lost)
    unrecorded = ". Its run is not recorded as done: the next call may run again."
    said = f"{error}$" if on_lost == "raise" else caplog.text
    assert unrecorded + ("$" if on_lost == "raise" else " Its block has finished all the same.\n") in said


def test_what_leaves_no_record_says_nothing_of_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    def record_within_transaction() -> None:
        lease = current_lease()
        assert lease is not None
        scope_of(lease).acquired[0].recorded = True

    Failing(monkeypatch, BackendUnavailable)
    with lock("a", hold_at_least=LONG):
        pass
    assert called(record_within_transaction, False) is None
    registry().store("default").backend.sync_port()._table.locks.clear()  # type: ignore[attr-defined]
    error = called(fail, False)
    assert isinstance(error, ZeroDivisionError)
    assert caplog.messages == [unreleased(name) for name in ("disLock:a", "disLock:once:job", "disLock:once:job")]
    assert error.__notes__ == ["distlock_web: could not be released: The test fails it."]


def test_a_loss_of_what_leaves_no_record_says_nothing_of_one_either(monkeypatch: pytest.MonkeyPatch) -> None:
    Failing(monkeypatch, "lost")
    with pytest.raises(LeaseLost, match=r"no longer held: the store dropped it, .*deleted\)\.$"), lock("a"):
        pass


def test_what_it_leaves_uncommitted_is_not_recorded_as_done(
    store: str, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session that the function has written to is rolled back at the end of the request, where nobody commits it."""
    with monkeypatch.context() as patch:
        patch.setattr(integrations.installed, "open_transactions", [lambda: "a session" if counted.runs else None])
        with pytest.raises(ConfigurationError, match="once inside a session"):
            counted.once()()
    assert counted.once()() == {"number": 1, "run": 2}
