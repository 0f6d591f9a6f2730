"""``until="commit"``: lock, BEGIN, view, extend, COMMIT, hooks, release; and what ends otherwise."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import IntegrityError, connection, connections, transaction
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.utils.decorators import method_decorator
from django.views import View

from distlock_web import ConfigurationError, LeaseLost, current_lease, distributed_lockable, once
from distlock_web.locks.lease import OnLost
from distlock_web.testing.fault_injector import FaultInjector
from tests.support.revoking import revoke

Get = Callable[..., HttpResponse]
WHOLE = ["acquire", "BEGIN", "view", "extend", "COMMIT", "hook", "release"]


def work(history: list[str]) -> HttpResponse:
    """What a view does: a row, a word, and something for after the commit."""
    Group.objects.create(name="written")
    history.append("view")
    transaction.on_commit(lambda: history.append("hook"))
    return HttpResponse("done")


def written() -> bool:
    """As others see it: from a thread, and so on a connection, of its own."""

    def look() -> bool:
        try:
            return Group.objects.filter(name="written").exists()
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(look).result()


def test_a_request(history: list[str], atomic_requests: bool, get: Get) -> None:
    @distributed_lockable(key="order", until="commit")
    def view(request: HttpRequest) -> HttpResponse:
        return work(history)

    assert get(view).content == b"done"
    assert history == WHOLE
    assert written()


def test_a_plain_decorator_releases_first(
    history: list[str], get: Get, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    """The order that ``until="commit"`` is there to mend: this is what the tests here are able to see."""
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)

    @distributed_lockable(key="order")
    def view(request: HttpRequest) -> HttpResponse:
        return work(history)

    with pytest.warns(RuntimeWarning, match="commits after the lock is released"):
        get(view)
    assert history == ["BEGIN", "acquire", "view", "release", "COMMIT", "hook"]


def test_a_plain_function(history: list[str]) -> None:
    @distributed_lockable(key="order", until="commit")
    def task(number: int) -> int:
        work(history)
        return number + 1

    assert task(1) == 2
    assert history == WHOLE


def test_the_dispatch_of_a_class(history: list[str], atomic_requests: bool, get: Get) -> None:
    @method_decorator(distributed_lockable(key="order", until="commit"), name="dispatch")
    class Pay(View):
        def get(self, request: HttpRequest) -> HttpResponse:
            return work(history)

    get(Pay.as_view())
    assert history == WHOLE


def test_another_database(memory: None, other: str, get: Get, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connections[other].settings_dict, "ATOMIC_REQUESTS", True)
    seen: list[bool] = []

    @distributed_lockable(key="order", until="commit", database="other")
    def view(request: HttpRequest) -> HttpResponse:
        Group.objects.using("other").create(name="written")
        seen.extend((connections["other"].in_atomic_block, connection.in_atomic_block))
        return HttpResponse("done")

    get(view)
    assert seen == [True, False]
    assert Group.objects.using("other").count() == 1


# What does not commit ------------------------------------------------------------------------------------------------


def test_an_exception_rolls_back_and_reaches_the_caller(history: list[str], atomic_requests: bool, get: Get) -> None:
    @distributed_lockable(key="order", until="commit")
    def view(request: HttpRequest) -> HttpResponse:
        work(history)
        raise ZeroDivisionError("the view's own")

    with pytest.raises(ZeroDivisionError, match="the view's own"):
        get(view)
    assert history == ["acquire", "BEGIN", "view", "ROLLBACK", "release"]
    assert not written()


def test_set_rollback_rolls_back_and_answers(history: list[str], atomic_requests: bool, get: Get) -> None:
    @distributed_lockable(key="order", until="commit")
    def view(request: HttpRequest) -> HttpResponse:
        answer = work(history)
        transaction.set_rollback(True)
        return answer

    assert get(view).content == b"done"
    assert history == ["acquire", "BEGIN", "view", "ROLLBACK", "release"]
    assert not written()


def _refused(request: HttpRequest) -> HttpResponse:
    """The database said no, and the view has answered that: nothing can be read in this transaction any more."""
    Group.objects.create(name="written")
    try:
        Group.objects.create(name="written")
    except IntegrityError:
        transaction.set_rollback(True)
    return HttpResponse(status=409)


def _undone(request: HttpRequest) -> HttpResponse:
    Group.objects.create(name="written")
    transaction.set_rollback(True)
    return HttpResponse("done")


def _rest(request: HttpRequest) -> HttpResponse:
    """As REST framework answers an exception."""
    Group.objects.create(name="written")
    answer = HttpResponse(status=400)
    answer.exception = True  # type: ignore[attr-defined]
    return answer


@pytest.mark.parametrize("success", [None, lambda answer: Group.objects.exists(), lambda answer: True])
@pytest.mark.parametrize(("view", "status"), [(_refused, 409), (_undone, 200), (_rest, 400)])
@pytest.mark.parametrize(
    "decorator",
    [
        partial(distributed_lockable, hold_at_least=60),
        partial(once, keep=60),
    ],
    ids=["a lock", "once"],
)
def test_what_is_rolled_back_is_no_success(
    real_transactions: None, memory: None, get: Get, decorator: Any, view: Any, status: int, success: Any
) -> None:
    """Nobody asks the transaction, which cannot answer; and the lock is free, for there is work to do."""
    locked = decorator(key="order", until="commit", success=success)(view)
    assert [get(locked).status_code, get(locked).status_code] == [status, status]
    assert not written()


@pytest.mark.parametrize(
    "decorator", [partial(distributed_lockable, hold_at_least=60), partial(once, keep=60)], ids=["a lock", "once"]
)
def test_a_rule_of_success_that_rolls_back(real_transactions: None, memory: None, get: Get, decorator: Any) -> None:
    def undo(answer: object) -> bool:
        transaction.set_rollback(True)
        return True

    locked = decorator(key="order", until="commit", success=undo)(lambda request: HttpResponse("done"))
    assert [get(locked).status_code, get(locked).status_code] == [200, 200]


def _broken(result: object) -> bool:
    raise ZeroDivisionError("the rule's own")


@pytest.mark.parametrize(
    ("success", "returned", "error", "message"),
    [
        (_broken, lambda: None, ZeroDivisionError, "the rule's own"),
        (lambda result: True, lambda: (each for each in [1]), ConfigurationError, "returned a generator"),
    ],
    ids=["its success raises", "its body has not run"],
)
def test_what_fails_after_the_function_is_rolled_back_too(
    history: list[str], success: Callable[[object], bool], returned: Callable[[], object], error: type, message: str
) -> None:
    """It was committed, and the caller was told of an exception: a retry did it again."""

    @distributed_lockable(key="order", until="commit", hold_at_least=60, success=success)
    def task() -> object:
        work(history)
        return returned()

    with pytest.raises(error, match=message):
        task()
    assert history == ["acquire", "BEGIN", "view", "ROLLBACK", "release"]
    assert not written()


@pytest.mark.parametrize("on_lost", ["raise", "warn"])
def test_a_lease_that_is_lost_before_the_commit_writes_nothing(
    history: list[str], atomic_requests: bool, get: Get, on_lost: OnLost
) -> None:
    @distributed_lockable(key="order", until="commit", on_lost=on_lost)
    def view(request: HttpRequest) -> HttpResponse:
        lease = current_lease()
        assert lease is not None
        assert revoke(lease.name, lease.fence)
        return work(history)

    assert get(view, raises=False).status_code == 500
    assert history[:6] == ["acquire", "BEGIN", "revoke", "view", "extend", "ROLLBACK"]
    assert not written()
    with pytest.raises(LeaseLost):
        get(view)


def test_a_store_that_dies_before_the_commit_writes_nothing(
    history: list[str], injector: FaultInjector, atomic_requests: bool, get: Get
) -> None:
    @distributed_lockable(key="order", until="commit")
    def view(request: HttpRequest) -> HttpResponse:
        injector.cut()
        return work(history)

    assert get(view).status_code == 503
    assert not written()
    injector.mend()


def test_without_a_store_an_open_call_commits_all_the_same(
    memory: None, injector: FaultInjector, real_transactions: None
) -> None:
    injector.cut()

    @distributed_lockable(key="order", until="commit", on_backend_error="open")
    def task() -> None:
        work([])

    task()
    assert written()


@distributed_lockable(key="order", until="commit", methods=("POST",))
def form(request: HttpRequest) -> HttpResponse:
    Group.objects.create(name=f"shown {Group.objects.count()}")
    if "fail" in request.GET:
        raise LookupError
    return HttpResponse(f"{connection.in_atomic_block}")


@distributed_lockable(key="order", until="commit", methods=("POST",))
@transaction.non_atomic_requests
def opted_out(request: HttpRequest) -> HttpResponse:
    return HttpResponse(f"{connection.in_atomic_block}")


def test_a_method_that_is_not_locked_keeps_the_transaction_of_its_request(
    history: list[str], atomic_requests: bool, get: Get
) -> None:
    """The decorator takes the view out of ``ATOMIC_REQUESTS``, and a GET was left without a transaction."""
    assert get(form).content.decode() == f"{atomic_requests}"
    assert history == ["BEGIN", "COMMIT"] * atomic_requests
    assert get(form, raises=False, query="?fail").status_code == 500
    assert Group.objects.count() == (1 if atomic_requests else 2)
    assert get(opted_out).content == b"False"
    history.clear()
    assert Client().post("/view").content == b"True"
    assert history == ["acquire", "BEGIN", "extend", "COMMIT", "release"]
