"""``unique(task)``: the lock of the run is taken where the task is sent."""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from queue import Empty
from types import ModuleType
from typing import Any

import celery
import pytest
from celery.exceptions import Retry, SoftTimeLimitExceeded
from celery.signals import before_task_publish
from django.db import transaction
from kombu.exceptions import OperationalError

from distlock_web import (
    BackendUnavailable,
    ConfigurationError,
    Lease,
    LeaseLost,
    LockBusy,
    OpenTransactionWarning,
    aheld_locks,
    attach,
    distributed_lockable,
    events,
    held_locks,
    lock,
    once,
)
from distlock_web import celery as celery_of_ours
from distlock_web.celery import unique
from distlock_web.core.registry import registry
from distlock_web.locks import handover
from distlock_web.testing import expire_lock
from distlock_web.testing.fault_injector import FaultInjector
from tests.support.callers import unrelated
from tests.support.celery_mailbox import Mailbox
from tests.support.waiting import LONG, eventually

pytestmark = pytest.mark.usefixtures("store")


@pytest.fixture
def mailbox() -> Mailbox:
    return Mailbox()


@pytest.fixture
def report(mailbox: Mailbox) -> Any:
    @mailbox.task()
    @distributed_lockable("report:{month}", expire=10)
    def report(month: str) -> str:
        assert lock(f"report:{month}").locked()
        return month

    return report


def plain() -> None: ...


def states() -> dict[str, str]:
    return {row.lock.name: row.lock.state for row in held_locks()}


def test_a_task_that_is_queued_or_running_is_not_sent_again(mailbox: Mailbox) -> None:
    meanwhile: list[Any] = []

    @mailbox.task()
    @distributed_lockable("report:{month}", expire=10)
    def report(month: str) -> str:
        meanwhile.append(unique(report).delay(month))
        return month

    assert unique(report).delay("May").id
    assert unique(report).delay("May") is None
    assert unique(report).delay("June").id, "another one is"
    assert mailbox.next().run() == ("SUCCESS", "May")
    assert meanwhile == [None]
    assert states() == {"disLock:report:June": "transit"}
    assert unique(report).delay("May").id


def test_the_ticket_is_in_no_argument_and_not_where_monitors_look(report: Any, mailbox: Mailbox) -> None:
    unique(report).apply_async(["May"], headers={"tenant": "acme"})
    message = mailbox.next()
    ticket, transit, _again = message.headers["distlock"]
    assert (message.args, message.kwargs, message.headers["tenant"]) == (["May"], {}, "acme")
    assert transit == 3600
    assert ticket not in str({name: message.headers[name] for name in ("argsrepr", "kwargsrepr", "shadow")})


def test_of_two_deliveries_at_once_one_runs(mailbox: Mailbox) -> None:
    second: list[tuple[str, Any]] = []

    @mailbox.task()
    @distributed_lockable("report:{month}", expire=10)
    def report(month: str) -> str:
        second.append(message.run())
        return month

    unique(report).delay("May")
    message = mailbox.next()
    assert message.run() == ("SUCCESS", "May")
    [(state, error)] = second
    assert state == "FAILURE"
    assert isinstance(error, LockBusy)


def test_one_that_begins_later_than_its_transit_takes_it_anew(report: Any, mailbox: Mailbox) -> None:
    unique(report, transit=0.1).delay("May")
    late = mailbox.next()
    eventually(lambda: not lock("report:May").locked(), "the transit is over")
    assert unique(report).delay("May").id
    state, error = late.run()
    assert (state, type(error)) == ("FAILURE", LockBusy)
    assert mailbox.next().run() == ("SUCCESS", "May")
    assert late.run() == ("SUCCESS", "May")


@pytest.mark.parametrize("how", ["countdown", "eta"])
def test_the_time_until_it_may_begin_is_added_to_the_transit(report: Any, how: str) -> None:
    begins: dict[str, Any] = {"countdown": 1000, "eta": datetime.now(UTC) + timedelta(seconds=1000)}
    unique(report, transit="1m").apply_async(["May"], **{how: begins[how]})
    [row] = held_locks()
    assert 1000 < row.lock.remaining <= 1060


def test_a_retry_keeps_the_lock(mailbox: Mailbox) -> None:
    @mailbox.task(bind=True)
    @distributed_lockable("report:{month}", expire=10)
    def report(self: Any, month: str) -> int:
        if self.request.retries < 2:
            raise self.retry(countdown=500)
        return self.request.retries

    assert unique(report, transit="1m").delay("May").id
    for _ in range(2):
        state, _ = mailbox.next().run()
        assert state == "RETRY"
        assert states() == {"disLock:report:May": "transit"}
        assert 500 < held_locks()[0].lock.remaining <= 560
        assert unique(report).delay("May") is None
    assert mailbox.next().run() == ("SUCCESS", 2)
    assert states() == {}


def test_so_does_one_by_itself_after_an_error(mailbox: Mailbox) -> None:
    @mailbox.task(bind=True, autoretry_for=(OSError,), retry_backoff=True)
    @distributed_lockable("report:{month}", expire=10)
    def report(self: Any, month: str) -> str:
        if self.request.retries == 0:
            raise OSError
        return month

    unique(report).delay(month="May")
    assert mailbox.next().run()[0] == "RETRY"
    assert unique(report).delay(month="May") is None
    assert mailbox.next().run() == ("SUCCESS", "May")


def test_a_retry_that_is_not_sent_frees_it(mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody would ever run it: the lock was in transit for an hour."""

    @mailbox.task(bind=True)
    @distributed_lockable("report:{month}", expire=10, hold_at_least=500)
    def report(self: Any, month: str) -> None:
        monkeypatch.setattr("kombu.messaging.Producer.publish", no_broker)
        raise self.retry(countdown=500)

    unique(report).delay("May")
    assert mailbox.next().run()[0] == "REJECTED"
    assert states() == {}


def test_another_task_that_it_sends_takes_nothing_along(report: Any, mailbox: Mailbox) -> None:
    @mailbox.task()
    def other() -> None: ...

    @mailbox.task()
    @distributed_lockable("sender", expire=10)
    def sender() -> str:
        other.delay()
        return states()["disLock:sender"]

    unique(sender).delay()
    assert mailbox.next().run() == ("SUCCESS", "held")
    assert "distlock" not in mailbox.next().headers


def no_broker(*args: object, **options: object) -> None:
    raise OperationalError("no broker")


@pytest.mark.parametrize("fails", [False, True])
def test_a_retry_inside_of_a_nested_block_takes_it_along(
    mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """If it cannot be handed on it is free at the end of the run: until its lease was over nobody could have it."""

    async def refuse(*args: Any, **options: Any) -> str:
        raise BackendUnavailable("away")

    @mailbox.task(bind=True)
    @distributed_lockable("report", expire=60)
    def report(self: Any) -> int:
        with lock("report"):
            if self.request.retries == 0:
                raise self.retry(countdown=0)
        return self.request.retries

    unique(report).delay()
    if fails:
        monkeypatch.setattr(handover, "detach", refuse)
    assert mailbox.next().run()[0] == "RETRY"
    assert states() == ({} if fails else {"disLock:report": "transit"})
    assert mailbox.next().run() == ("SUCCESS", 1)


def test_who_is_interrupted_before_it_is_sent_frees_its_lock(report: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was in transit, and nobody had the ticket."""

    class Interrupted(Lease):
        def __exit__(self, *error: Any) -> None:
            super().__exit__(*error)
            raise SoftTimeLimitExceeded

    monkeypatch.setattr(celery_of_ours, "Lease", Interrupted)
    with pytest.raises(SoftTimeLimitExceeded):
        unique(report).delay("May")
    assert states() == {}


def test_what_is_not_sent_frees_its_lock(report: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kombu.messaging.Producer.publish", no_broker)
    with pytest.raises(OperationalError):
        unique(report).delay("May")
    assert states() == {}


def test_what_is_revoked_before_it_runs_frees_its_lock(report: Any, mailbox: Mailbox) -> None:
    unique(report).delay("May")
    mailbox.next().drop()
    assert states() == {}


@pytest.mark.parametrize("again", [False, True])
def test_no_end_but_that_of_the_run_is_kept_as_its_options_say(mailbox: Mailbox, again: bool) -> None:
    """Neither what a worker drops nor a place in the queue: nothing was done there."""

    @mailbox.task()
    @distributed_lockable("report:{month}", expire=10, hold_at_least=500)
    def report(month: str) -> str:
        return month

    unique(report, again=again).delay("May")
    mailbox.next().drop()
    assert states() == {}
    unique(report, again=again).delay("May")
    assert mailbox.next().run() == ("SUCCESS", "May")
    assert states() == {"disLock:report:May": "cooldown"}


@pytest.mark.parametrize("nested", [False, True])
def test_a_retry_that_is_revoked_or_fails_is_no_success(mailbox: Mailbox, nested: bool) -> None:
    """It was kept for an hour, and nothing was sent in that time. What a nested block has done stays done."""

    @mailbox.task(bind=True)
    @distributed_lockable("report:{month}", expire=10, hold_at_least=0 if nested else 500)
    def report(self: Any, month: str) -> None:
        if self.request.retries == 0:
            if nested:
                with lock(f"report:{month}", hold_at_least=500):
                    pass
            raise self.retry(countdown=500)
        raise OSError

    for month in ("May", "June"):
        unique(report).delay(month)
    for _ in range(2):
        assert mailbox.next().run()[0] == "RETRY"
    mailbox.next().drop()
    assert mailbox.next().run()[0] == "FAILURE"
    kept = {"disLock:report:May": "cooldown", "disLock:report:June": "cooldown"}
    assert states() == (kept if nested else {})


def test_inside_a_lease_of_its_lock_nothing_is_sent_and_inside_a_block_it_is_refused(report: Any) -> None:
    lease = lock("report:May").acquire()
    assert unique(report).delay("May") is None
    with lease, pytest.raises(ConfigurationError, match="outermost"):
        unique(report).delay("May")
    assert states() == {}


def test_who_is_revoked_while_it_runs_loses_nothing_to_that(mailbox: Mailbox) -> None:
    @mailbox.task()
    @distributed_lockable("report:{month}", expire=10)
    def report(month: str) -> str:
        message.drop()
        return states()["disLock:report:May"]

    unique(report).delay("May")
    message = mailbox.next()
    assert message.run() == ("SUCCESS", "held")


def test_a_method_and_a_bound_task_have_the_keys_of_their_runs(mailbox: Mailbox) -> None:
    class Monthly(mailbox.app.Task):  # type: ignore[name-defined]
        name = "monthly"

        @distributed_lockable("monthly:{self.name}:{month}", expire=10)
        def run(self, month: str = "May") -> str:
            return month

    task = mailbox.app.register_task(Monthly())
    assert unique(task).delay().id
    assert unique(task).delay(month="May") is None
    assert states() == {"disLock:monthly:monthly:May": "transit"}
    assert mailbox.next().run() == ("SUCCESS", "May")
    assert states() == {}


def test_eagerly_it_runs_at_once_under_its_lock(report: Any, mailbox: Mailbox) -> None:
    mailbox.app.conf.task_always_eager = True
    assert unique(report).delay("May").get() == "May"
    assert states() == {}
    lease = unrelated("report:May")
    assert unique(report).delay("May") is None
    lease.release()


def test_a_store_that_does_not_answer(mailbox: Mailbox, report: Any) -> None:
    injector = FaultInjector(registry().store("default"))

    @mailbox.task()
    @distributed_lockable("open", expire=10, on_backend_error="open")
    def open_task() -> str:
        return "ran"

    injector.cut()
    try:
        with pytest.raises(BackendUnavailable):
            unique(report).delay("May")
        with pytest.raises(Empty):
            mailbox.next()
        assert unique(open_task).delay().id
        assert mailbox.next().run() == ("SUCCESS", "ran")
    finally:
        injector.mend()


async def test_a_blocking_call_in_an_event_loop_is_refused_with_the_remedy(report: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"asyncio\.to_thread"):
        unique(report).delay("May")


@pytest.mark.parametrize("header", ["a text", 7, {"a": 1}, [1, 2, 3], ["ticket", "1h"]])
def test_a_header_of_that_name_that_is_not_ours_means_nothing(report: Any, mailbox: Mailbox, header: object) -> None:
    report.apply_async(["May"], headers={"distlock": header})
    message = mailbox.next()
    assert message.run() == ("SUCCESS", "May")
    message.drop()


def test_what_has_no_lock_is_refused_by_name(mailbox: Mailbox) -> None:
    task = mailbox.task(name="shop.plain")(plain)
    with pytest.raises(ConfigurationError, match=r"shop\.plain.* below what makes a task of it"):
        unique(task)
    with pytest.raises(ConfigurationError, match="below what makes a task of it"):
        unique(len)
    with pytest.raises(ConfigurationError, match="once"):
        unique(mailbox.task(name="shop.once")(once("a", keep=10)(plain)))
    with pytest.raises(ConfigurationError, match="transit is 0"):
        unique(mailbox.task(name="shop.locked")(distributed_lockable("a")(plain)), transit=0)


def test_a_lock_with_several_holders_is_refused(mailbox: Mailbox) -> None:
    task = mailbox.task(name="shop.two")(distributed_lockable("a", limit=2)(plain))
    with pytest.raises(ConfigurationError, match="several holders"):
        unique(task).delay()
    assert states() == {}


def test_after_a_success_it_is_kept_as_its_options_say(mailbox: Mailbox) -> None:
    @mailbox.task()
    @distributed_lockable("report:{month}", expire=10, hold_at_least=500, success=bool)
    def report(month: str) -> str:
        return "" if month == "empty" else month

    unique(report).delay("May")
    unique(report).delay("empty")
    assert mailbox.next().run() == ("SUCCESS", "May")
    assert mailbox.next().run() == ("SUCCESS", "")
    assert states() == {"disLock:report:May": "cooldown"}
    assert unique(report).delay("May") is None


def test_after_an_error_it_is_free(mailbox: Mailbox) -> None:
    @mailbox.task()
    @distributed_lockable("report", expire=10, hold_at_least=500)
    def report() -> None:
        raise OSError

    unique(report).delay()
    assert mailbox.next().run()[0] == "FAILURE"
    assert states() == {}


def test_a_loss_is_said_though_the_task_may_be_sent_again(mailbox: Mailbox) -> None:
    """In place of our own cancellation, and as a note of an error that is the function's."""

    class Loop(celery.Task):
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return asyncio.run(self.run(*args, **kwargs))

    @mailbox.task(base=Loop)
    @distributed_lockable("report", expire=10, on_lost="cancel")
    async def cancelled() -> None:
        expire_lock("report")
        await asyncio.sleep(LONG)

    @mailbox.task()
    @distributed_lockable("report", expire=10)
    def failing() -> None:
        expire_lock("report")
        raise OSError

    unique(cancelled).delay()
    state, error = mailbox.next().run()
    assert (state, type(error)) == ("FAILURE", LeaseLost)
    unique(failing).delay()
    state, error = mailbox.next().run()
    assert (state, type(error)) == ("FAILURE", OSError)
    assert "no longer held" in error.__notes__[0]


@pytest.mark.django_db(transaction=True)
def test_sent_inside_a_transaction_it_warns_of_nothing(report: Any, mailbox: Mailbox) -> None:
    """Nothing is released there before the commit."""
    with transaction.atomic():
        assert unique(report).delay("May").id
        with pytest.warns(OpenTransactionWarning), lock("other"):
            pass
    assert mailbox.next().run() == ("SUCCESS", "May")


class Refusing(celery.Task):
    """It does not come to the function."""

    error: Exception = OSError()

    def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
        raise self.error


def test_a_run_that_does_not_come_to_its_function_frees_it(mailbox: Mailbox) -> None:
    @mailbox.task(base=Refusing)
    @distributed_lockable("report:{month}", expire=10)
    def report(month: str) -> None: ...

    unique(report).delay("May")
    assert mailbox.next().run()[0] == "FAILURE"
    assert states() == {}


def test_a_store_that_hiccups_where_the_run_begins(mailbox: Mailbox) -> None:
    """It is no busy lock: the run would be skipped, for the lock that came with its own message."""

    @mailbox.task()
    @distributed_lockable("report", expire=10, on_busy="skip")
    def report() -> None: ...

    unique(report).delay()
    FaultInjector(registry().store("default")).lose("attach", "request", "request")
    state, error = mailbox.next().run()
    assert (state, type(error)) == ("FAILURE", BackendUnavailable)
    assert states() == {}


def test_it_is_free_where_the_function_has_returned(mailbox: Mailbox) -> None:
    """Before its callbacks are sent and its result can be read: who starts on these finds it free."""
    when: dict[str, Any] = {}

    class Watched(celery.Task):
        def on_success(self, *_: object) -> None:
            when["on_success"] = states()

    @mailbox.task()
    def publish(month: str) -> None: ...

    @mailbox.task(base=Watched)
    @distributed_lockable("report:{month}", expire=10)
    def report(month: str) -> str:
        return month

    def sent(sender: str, **_: object) -> None:
        if sender == publish.name:
            when["callback"] = states()

    unique(report).apply_async(["May"], link=publish.s())
    message = mailbox.next()
    before_task_publish.connect(sent)
    try:
        assert message.run() == ("SUCCESS", "May")
    finally:
        before_task_publish.disconnect(sent)
    assert when == {"callback": {}, "on_success": {}}


def test_sent_again_with_other_headers_it_keeps_it(mailbox: Mailbox) -> None:
    @mailbox.task(bind=True)
    @distributed_lockable("report", expire=10)
    def report(self: Any) -> int:
        match self.request.retries, self.request.replaced_task_nesting:
            case 0, _:
                raise self.retry(headers={"tenant": "acme"}, countdown=500)
            case 1, 0:
                self.replace(self.s().set(retries=2))
        return self.request.retries

    unique(report, transit="1m").delay()
    assert mailbox.next().run()[0] == "RETRY"
    assert 500 < held_locks()[0].lock.remaining <= 560
    assert mailbox.next().run()[0] == "IGNORED"
    assert states() == {"disLock:report": "transit"}
    assert unique(report).delay() is None
    assert mailbox.next().run() == ("SUCCESS", 2)
    assert states() == {}


def test_a_retry_that_was_sent_keeps_it_whatever_becomes_of_this_run(mailbox: Mailbox) -> None:
    @mailbox.task(bind=True)
    @distributed_lockable("report", expire=10, on_lost="warn")
    def report(self: Any) -> None:
        if self.request.retries == 0:
            with suppress(Retry):
                self.retry(countdown=500)
            raise OSError

    unique(report).delay()
    assert mailbox.next().run()[0] == "FAILURE"
    assert states() == {"disLock:report": "transit"}
    assert mailbox.next().run() == ("SUCCESS", None)
    assert states() == {}


class Loop(celery.Task):
    """Of a function that is a coroutine: each run has an event loop of its own."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        result = asyncio.run(self.run(*args, **kwargs))
        return result, states()


def test_so_it_is_with_a_coroutine(mailbox: Mailbox) -> None:
    @mailbox.task(base=Loop)
    @distributed_lockable("report", expire=10)
    async def report() -> dict[str, str]:
        return {row.lock.name: row.lock.state for row in await aheld_locks()}

    unique(report).delay()
    assert mailbox.next().run() == ("SUCCESS", ({"disLock:report": "held"}, {}))


def test_inside_of_a_block_that_holds_its_lock_it_is_refused(report: Any) -> None:
    """It was never sent, and None said that it was queued."""
    with lock("report:May"), pytest.raises(ConfigurationError, match="detach it from the outermost"):
        unique(report).delay("May")


def test_a_module_of_that_name_that_is_another_hurts_no_decorator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "distlock_web.celery")
    monkeypatch.setitem(sys.modules, "celery", ModuleType("celery"))
    assert distributed_lockable("a")(plain)() is None


# One more run ---------------------------------------------------------------------------------------------------------


def test_again_queued_nothing_running_exactly_one_more(mailbox: Mailbox) -> None:
    meanwhile: list[Any] = []

    @mailbox.task()
    @distributed_lockable("report:{month}", expire=10)
    def report(month: str) -> str:
        if not meanwhile:
            meanwhile.extend(unique(report, again=True).delay(month) for _ in range(3))
        return month

    again = unique(report, again=True)
    assert [again.delay("May") is None for _ in range(3)] == [False, True, True]
    assert again.delay("June").id, "another one is"
    assert mailbox.next().run() == ("SUCCESS", "May")
    assert [each is None for each in meanwhile] == [False, True, True]
    assert states() == {"disLock:again:report:May": "transit", "disLock:again:report:June": "transit"}
    assert [mailbox.next().run() for _ in range(2)] == [("SUCCESS", "June"), ("SUCCESS", "May")]
    assert states() == {}
    with pytest.raises(Empty):
        mailbox.next()


@pytest.mark.parametrize("on_busy", ["raise", "skip", "retry"])
def test_what_follows_comes_back_until_the_running_one_has_ended(mailbox: Mailbox, on_busy: Any) -> None:
    @mailbox.task()
    @distributed_lockable("report:{month}", expire=10, on_busy=on_busy)
    def report(month: str) -> str:
        return month

    running = unrelated("report:May")
    unique(report, again=True).delay("May")
    for _ in range(2):
        state, retry = mailbox.next().run()
        assert (state, type(retry)) == ("RETRY", Retry)
        assert unique(report, again=True).delay("May") is None, "it has kept its place"
    running.release()
    assert mailbox.next().run() == ("SUCCESS", "May")
    assert states() == {}


@pytest.mark.parametrize("base", [celery.Task, Loop])
@pytest.mark.parametrize("verb", ["acquire", "attach"])
def test_again_it_stays_queued_while_the_store_does_not_answer(mailbox: Mailbox, verb: str, base: Any) -> None:
    ran: list[str] = []

    def work(month: str) -> None:
        ran.append(month)

    async def work_in_loop(month: str) -> None:
        ran.append(month)

    function = work_in_loop if base is Loop else work
    report = mailbox.task(base=base, name="report")(distributed_lockable("report:{month}", expire=600)(function))
    unique(report, again=True).delay("May")
    injector = FaultInjector(registry().store("default"))
    injector.lose(verb, "request", "request")
    state, retry = mailbox.next().run()
    assert (state, type(retry)) == ("RETRY", Retry)
    assert ran == []
    eventually(lambda: not lock("report:May").locked(), "the lock of the run is free")
    assert mailbox.next().run()[0] == "SUCCESS"
    assert ran == ["May"]


def test_again_a_retry_is_one_that_follows_too(mailbox: Mailbox) -> None:
    @mailbox.task(bind=True)
    @distributed_lockable("report:{month}", expire=10)
    def report(self: Any, month: str) -> int:
        if not self.request.retries:
            raise self.retry(countdown=500)
        return self.request.retries

    assert unique(report, again=True).delay("May").id
    assert mailbox.next().run()[0] == "RETRY"
    running = unrelated("report:May")
    assert mailbox.next().run()[0] == "RETRY", "it is not refused"
    running.release()
    assert mailbox.next().run() == ("SUCCESS", 1)
    assert states() == {}


def test_again_a_worker_that_dies_before_the_run_begins_holds_up_the_next_sender_for_a_moment(
    report: Any, mailbox: Mailbox
) -> None:
    unique(report, again=True).delay("May")
    ticket, *_ = mailbox.next().headers["distlock"]
    dying = attach(ticket, expire=0.3)
    assert unique(report, again=True).delay("May").id, "nobody runs: it is sent"
    with suppress(LeaseLost):
        dying.release()


def test_again_wants_one_key(mailbox: Mailbox) -> None:
    @mailbox.task()
    @distributed_lockable(["{a}", "{b}"], expire=10)
    def move(a: str, b: str) -> None: ...

    with pytest.raises(ConfigurationError, match="one key"):
        unique(move, again=True).delay("a", "b")


def test_who_drops_it_frees_its_place(report: Any, mailbox: Mailbox) -> None:
    unique(report, again=True).delay("May")
    mailbox.next().drop()
    assert states() == {}
    assert unique(report, again=True).delay("May").id


@pytest.mark.parametrize("again", [False, True])
def test_an_event_says_what_was_not_sent(report: Any, again: bool) -> None:
    heard: list[tuple[str, str]] = []

    def hear(event: Any) -> None:
        heard.append((event.kind, event.name))

    unique(report, again=again).delay("May")
    events.subscribe(hear, inline=True)
    try:
        unique(report, again=again).delay("May")
    finally:
        events.unsubscribe(hear)
    name = "disLock:again:report:May" if again else "disLock:report:May"
    assert heard == [("busy", name), ("unsent", name)]
