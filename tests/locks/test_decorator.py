"""The decorator: what it keeps of the function, what it refuses, what it does when the call cannot run."""

from __future__ import annotations

import asyncio
import inspect
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import cached_property, partial, wraps
from typing import Any

import pytest

from distlock_web import (
    ConfigurationError,
    LockBusy,
    configure,
    current_lease,
    distributed_lockable,
    lock,
    once,
)
from distlock_web.testing.fault_injector import FaultInjector
from distlock_web.testing.plugin import hold_lock

pytestmark = pytest.mark.usefixtures("memory_store")


@distributed_lockable
def bare(order_id: int, *, note: str = "x") -> str:
    """What it does."""
    lease = current_lease()
    assert lease is not None
    return f"{lease.name} {order_id} {note}"


def test_the_function_stays_what_it_was() -> None:
    assert (bare.__name__, bare.__doc__) == ("bare", "What it does.")
    assert list(inspect.signature(bare).parameters) == ["order_id", "note"]
    assert not inspect.iscoroutinefunction(bare)
    assert bare(1, note="y").endswith(" 1 y")


@pytest.mark.skipif(sys.version_info < (3, 14), reason="before Python 3.14 annotations are computed with the function")
@pytest.mark.parametrize("locked", [distributed_lockable(key="order:{pk}"), once(key="order:{pk}", keep="1h")])
def test_annotations_may_name_what_the_type_checker_alone_imports(locked: Any) -> None:
    names: dict[str, Any] = {}
    source = "def pay(pk: Number) -> Receipt: return pk"
    exec(compile(source, "shop.py", "exec", dont_inherit=True), names)  # without the `from __future__` of this file
    locked(names["pay"])(7)


def test_a_decorator_that_shows_a_signature_of_its_own_is_called_so() -> None:
    """One that gives the function a database: nobody who calls it has one."""

    def pay(database: object, order_id: int) -> str:
        lease = current_lease()
        return lease.name if lease else ""

    @wraps(pay)
    def given(order_id: int) -> str:
        return pay(object(), order_id)

    order_id = inspect.Parameter("order_id", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    given.__signature__ = inspect.Signature([order_id])  # type: ignore[attr-defined]
    locked: Any = distributed_lockable(key="order:{order_id}")(given)
    assert locked(7) == "disLock:order:7"
    with pytest.raises(ConfigurationError, match=r"'database'.* not an argument of it"):
        distributed_lockable(key="order:{database}")(given)


def test_the_default_key_is_the_functions_full_name() -> None:
    @distributed_lockable()
    def local() -> str:
        lease = current_lease()
        return lease.name if lease else ""

    assert bare(1).split()[0] == f"disLock:{__name__}.bare"
    assert local() == f"disLock:{__name__}.test_the_default_key_is_the_functions_full_name.local"


def test_methods_have_the_key_of_their_arguments() -> None:
    class Account:
        def __init__(self, number: int) -> None:
            self.number = number

        @distributed_lockable(key="account:{self.number}")
        def close(self) -> str:
            lease = current_lease()
            return lease.name if lease else ""

        @classmethod
        @distributed_lockable(key="all:{cls.__name__}")
        def audit(cls) -> str:
            lease = current_lease()
            return lease.name if lease else ""

        @staticmethod
        @distributed_lockable(key="static:{what}")
        def check(what: str) -> str:
            lease = current_lease()
            return lease.name if lease else ""

    assert Account(5).close() == "disLock:account:5"
    assert Account.audit() == "disLock:all:Account"
    assert Account.check("x") == "disLock:static:x"


def a_generator() -> Iterator[int]:
    yield 1


async def an_async_generator() -> AsyncIterator[int]:
    yield 1


class CalledAsGenerator:
    def __call__(self) -> Iterator[int]:
        yield 1


class CalledAsAsyncGenerator:
    async def __call__(self) -> AsyncIterator[int]:
        yield 1


class AClass:
    pass


class ATask:
    """As Celery's: a worker looks it up by its name, and calls what is inside."""

    def __call__(self) -> None: ...

    def apply_async(self) -> None: ...


class ADjangoTask:
    """As Django's: it is not called, but enqueued."""

    def enqueue(self) -> None: ...


@pytest.mark.parametrize(
    ("thing", "remedy"),
    [
        (AClass, "method_decorator"),
        (ATask(), r"below @.*, the decorator of the task"),
        (ADjangoTask(), r"below @.*, the decorator of the task"),
        (a_generator, "with lock"),
        (an_async_generator, "with lock"),
        (contextmanager(a_generator), "with lock"),
        (asynccontextmanager(an_async_generator), "with lock"),
        (contextmanager(a_generator)()(a_generator), "with lock"),
        (partial(a_generator), "with lock"),
        (CalledAsGenerator(), "with lock"),
        (CalledAsAsyncGenerator(), "with lock"),
        (property(lambda self: 1), "below @property"),
        (cached_property(lambda self: 1), "below @cached_property"),
        (7, "functions"),
    ],
)
def test_what_cannot_be_locked_is_refused_with_the_remedy(thing: Any, remedy: str) -> None:
    with pytest.raises(ConfigurationError, match=remedy):
        distributed_lockable(key="a")(thing)


@pytest.mark.parametrize("key", ["order:order_id", ["a", "b:order_id"], "order-order_id", "order:order_id:pay"])
@pytest.mark.parametrize("decorator", [distributed_lockable, partial(once, keep=60)])
def test_an_argument_in_a_key_without_braces_is_warned_of(key: Any, decorator: Any) -> None:
    def pay(request: object, order_id: int) -> None: ...

    with pytest.warns(UserWarning, match=r"'order_id' without braces.*write \{order_id\}") as told:
        decorator(key=key)(pay)
    assert told[0].filename == __file__  # where the function is, whose line a reader looks for


@pytest.mark.parametrize(
    "key",
    [
        "order",
        "orders:order_ids",
        "webhook:request",
        "order:{order_id}",
        lambda order_id: "order_id",
        "order_id:cleanup",
        "till:pay:order",  # of all of them, and the function's own name
    ],
)
@pytest.mark.filterwarnings("error")
def test_a_key_that_names_no_argument_is_not_warned_of(key: Any) -> None:
    def pay(order_id: int, request: object = None, pay: object = None) -> None: ...

    distributed_lockable(key=key)(pay)


def hidden(function: Any) -> Any:
    """A decorator that does not say what it is around."""
    return lambda *args: function(*args)


@pytest.mark.parametrize(
    "returned",
    [
        lambda: (n for n in range(2)),
        lambda: an_async_generator(),
        lambda: map(str, range(2)),
        lambda: filter(None, range(2)),
        hidden(a_generator),
        hidden(an_async_generator),
        hidden(contextmanager(a_generator)),
        hidden(asynccontextmanager(an_async_generator)),
    ],
)
@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("decorator", [distributed_lockable(key="a", hold_at_least=60), once(key="a", keep=60)])
async def test_a_body_that_would_run_without_the_lock_is_refused(
    returned: Any, asynchronous: bool, decorator: Any
) -> None:
    """No lock is left, and nothing is done: neither a record nor ``hold_at_least`` stands for what has not run."""

    async def acall() -> Any:
        return returned()

    if asynchronous:
        with pytest.raises(ConfigurationError, match=r"would run without the lock.*`with lock"):
            await decorator(acall)()
    else:
        with pytest.raises(ConfigurationError, match=r"would run without the lock.*`with lock"):
            await asyncio.to_thread(decorator(lambda: returned()))
    assert not await lock("a").alocked()
    assert not await lock("once:a").alocked()


def test_a_generator_whose_body_needs_no_lock_is_returned() -> None:
    said = distributed_lockable(key="a", until="return")(lambda: (lock("a").locked() for _ in range(2)))
    assert list(said()) == [False, False]


def pay(order_id: int) -> str:
    return f"paid {order_id}"


async def test_busy_callable_may_be_async_in_async_code() -> None:
    async def sorry(error: LockBusy, order_id: int) -> str:
        await asyncio.sleep(0)
        return f"sorry {order_id}"

    async def apay(order_id: int) -> str:
        return f"paid {order_id}"

    locked = distributed_lockable(key="a", on_busy=sorry)(apay)
    with hold_lock("a"):
        assert await locked(1) == "sorry 1"
    assert await locked(1) == "paid 1"


def test_an_error_of_the_body_is_not_taken_for_one_of_ours() -> None:
    """The body's own LockBusy, of another lock, is the caller's business and not `on_busy`'s."""

    @distributed_lockable(key="outer", on_busy="skip", on_backend_error="open")
    def body() -> None:
        lock("inner").acquire()

    with hold_lock("inner"), pytest.raises(LockBusy) as caught:
        body()
    assert caught.value.name == "disLock:inner"


@pytest.fixture
def injector() -> FaultInjector:
    return FaultInjector(configure({"default": {"BACKEND": "memory"}}).store("default"))


def test_unreachable_open_goes_on_and_says_so(injector: FaultInjector, caplog: pytest.LogCaptureFixture) -> None:
    seen = []

    @distributed_lockable(key="a", on_backend_error="open")
    def body() -> str:
        lease = current_lease()
        assert lease is not None
        seen.append((lease.acquired, lease.fence))
        return "done"

    assert body() == "done"
    injector.cut()
    assert body() == "done"
    assert [acquired for acquired, _ in seen] == [True, False]
    assert seen[1] == (False, None)
    assert "runs without its lock" in caplog.text


def test_a_block_inside_a_call_without_its_lock_acquires_its_own(injector: FaultInjector) -> None:
    @distributed_lockable(key="a", on_backend_error="open")
    def body() -> int:
        injector.mend()
        with lock("a") as lease:
            return lease.depth

    injector.cut()
    assert body() == 1


def test_a_call_without_its_lock_can_wait_for_a_loss_that_never_comes() -> None:
    """``lost.wait(2)`` returned at once: a loop around it took all of a processor."""
    configure({"default": {"LOCATION": "redis://127.0.0.1:1/0"}})

    @distributed_lockable(key="a", on_backend_error="open")
    def call() -> float:
        lease = current_lease()
        assert lease is not None
        begun = time.monotonic()
        assert lease.lost.wait(0.3) is False
        return time.monotonic() - begun

    assert call() >= 0.3


BOTH: Any = pytest.mark.parametrize(
    ("decorate", "name"), [(distributed_lockable(key="a"), "distributed_lockable"), (once(key="a", keep=60), "once")]
)


@BOTH
@pytest.mark.parametrize("kind", [staticmethod, classmethod])
def test_a_lock_above_a_static_or_class_method_is_refused_at_import(kind: Any, decorate: Any, name: str) -> None:
    """It was accepted, and failed in the first call or ran a coroutine without its lock."""
    with pytest.raises(ConfigurationError, match=f"^{name} goes below @{kind.__name__}"):

        class Shop:
            @decorate
            @kind
            def pay(*args: object) -> None: ...


@pytest.mark.parametrize(
    ("key", "values", "name"),
    [
        ("{a}:{b}:{c}", ("X", "x", "X:"), "X:x:X%3A"),
        ("{a}--{b}ü+={c}", ("X!", "-", "+"), "X!--%2Dü+=%2B"),
        ("{a[Idempotency-Key]}", ({"Idempotency-Key": ' "X\\"\\\\X";x=1\t'},), 'X"\\X'),
        ("{a[Idempotency-Key]}", ({"Idempotency-Key": "XaX"},), "XaX"),
        ("{a[Idempotency-Key]}", ({"Idempotency-Key": "\N{NO-BREAK SPACE}a"},), "%C2%A0a"),
    ],
)
def test_a_value_is_escaped_where_it_could_be_a_separator_and_nowhere_else(
    key: str, values: tuple[object, ...], name: str
) -> None:
    def called(a: object, b: object = None, c: object = None) -> str:
        lease = current_lease()
        return lease.name if lease else ""

    assert distributed_lockable(key=key)(called)(*values) == f"disLock:{name}"


def test_a_keyword_that_is_left_out_is_not_taken_from_a_place() -> None:
    def called(*numbers: int, name: str = "none") -> str:
        lease = current_lease()
        return lease.name if lease else ""

    locked = distributed_lockable(key="{name}")(called)
    assert [locked(1, 2), locked(1, 2, name="x")] == ["disLock:none", "disLock:x"]


def test_what_is_said_of_a_key_of_an_object_that_can_be_called() -> None:
    class Paying:
        def __call__(self, order_id: int) -> None: ...

    with pytest.warns(UserWarning, match="'order_id' without braces") as told:
        distributed_lockable(key="order:order_id")(Paying())
    assert told[0].lineno == 0, "it has no line"
    given: Any = 7
    with pytest.raises(ConfigurationError, match=r"Paying\(\.\.\.\): a key is a string or a callable, not 7"):
        distributed_lockable(key=given)(Paying())
