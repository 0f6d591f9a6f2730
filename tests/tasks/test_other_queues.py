"""What docs/tasks.md says of django.tasks, django-tasks, RQ, Dramatiq and Huey, each with its own worker."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from contextvars import Context
from importlib import import_module
from types import ModuleType
from typing import Any, Protocol

import dramatiq
import huey
import pytest
import redis
import rq
import rq.decorators
from dramatiq.brokers.stub import StubBroker
from dramatiq.results import Results
from dramatiq.results.backends import StubBackend

from distlock_web import ConfigurationError, Lease, distributed_lockable, held_locks, lock
from tests.support.programs import queue_tasks as tasks
from tests.support.waiting import LONG, PATIENCE


class Failed(Exception):
    """A task has failed, with this text."""


class Queue(Protocol):
    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Make a task of the function, send it, and have a worker run it: what it returns. ``Failed``."""

    def above(self) -> Callable[[Callable[..., Any]], Any]:
        """What makes a task of a function."""


class RQ:
    def __init__(self, connection: redis.Redis) -> None:
        self.connection = connection
        self.queue = rq.Queue(connection=self.connection)

    def work(self) -> None:
        worker = rq.SimpleWorker([self.queue], connection=self.connection)
        Context().run(worker.work, burst=True)

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        job = self.queue.enqueue(function, *args)
        self.work()
        job.refresh()
        result = job.latest_result()
        assert result is not None
        if job.is_failed:
            raise Failed(result.exc_string)
        return job.return_value()

    def above(self) -> Callable[[Callable[..., Any]], Any]:
        return rq.decorators.job(self.queue, connection=self.connection)


class Dramatiq:
    def __init__(self) -> None:
        self.results = StubBackend()
        self.broker = StubBroker()
        self.broker.add_middleware(Results(backend=self.results, store_results=True))
        self.actor: Any = dramatiq.actor
        self.worker = dramatiq.Worker(self.broker, worker_timeout=10, worker_threads=1)

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        actor = self.actor(function, broker=self.broker, max_retries=0)
        message = actor.send(*args)
        self.worker.start()
        try:
            self.broker.join("default", timeout=1000 * int(PATIENCE), fail_fast=True)
            return message.get_result(backend=self.results)
        except Exception as error:
            raise Failed(repr(error)) from error
        finally:
            self.worker.stop()

    def above(self) -> Callable[[Callable[..., Any]], Any]:
        return self.actor(broker=self.broker)


class Huey:
    def __init__(self) -> None:
        self.huey = huey.MemoryHuey()

    def work(self) -> None:
        Context().run(self.huey.execute, self.huey.dequeue())

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        result = self.huey.task()(function)(*args)
        self.work()
        try:
            return result.get()
        except huey.exceptions.TaskException as error:
            raise Failed(str(error)) from error

    def above(self) -> Callable[[Callable[..., Any]], Any]:
        return self.huey.task()


class DjangoTasks:
    """Django 6's, or the package of the same form: at once, where they are sent."""

    def __init__(self, module: ModuleType) -> None:
        self.module = module

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        result = Context().run(self.module.task(function).enqueue, *args)
        if result.errors:
            raise Failed(result.errors[0].traceback)
        return result.return_value

    def above(self) -> Callable[[Callable[..., Any]], Any]:
        return self.module.task


@pytest.fixture
def own_signals() -> Iterator[None]:
    """RQ's worker has handlers of its own."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def django_tasks(module: str) -> DjangoTasks:
    with suppress(ModuleNotFoundError):
        return DjangoTasks(import_module(module))
    pytest.skip("Django before 6.0 has no tasks")


@pytest.fixture
def rq_queue(redis_store: str, own_signals: None) -> Iterator[RQ]:
    """Its worker is part of a cycle: a connection left open is closed in another test, with a ResourceWarning."""
    with redis.Redis.from_url(redis_store) as connection:
        yield RQ(connection)


DJANGO = ("django.tasks", "django_tasks")


@pytest.fixture(params=["rq", "dramatiq", "huey", *DJANGO])
def queue(request: pytest.FixtureRequest, redis_store: str) -> Iterator[Queue]:
    match request.param:
        case "rq":
            yield request.getfixturevalue("rq_queue")
        case "dramatiq":
            yield Dramatiq()
        case "huey":
            yield Huey()
        case module:
            yield django_tasks(module)


@pytest.fixture(params=DJANGO)
def django_queue(request: pytest.FixtureRequest, redis_store: str) -> DjangoTasks:
    return django_tasks(request.param)


def test_below_what_makes_a_task_of_it_each_run_is_under_the_lock(queue: Queue) -> None:
    assert queue.run(tasks.report, "May") == "May"
    assert held_locks() == []


def test_above_it_the_decorator_is_refused_by_name(queue: Queue) -> None:
    def unlocked() -> None: ...

    function = import_module("json").dumps if isinstance(queue, DjangoTasks) else unlocked
    with pytest.raises(ConfigurationError, match=r"goes below @[a-z_.]+.*task.*, next to its function"):
        distributed_lockable("a")(queue.above()(function))


def test_a_busy_lock_is_a_failure(queue: Queue, elsewhere: Callable[..., Lease]) -> None:
    elsewhere("report:May", expire=LONG)
    with pytest.raises(Failed, match=r"LockBusy.*'disLock:report:May'|'disLock:report:May'"):
        queue.run(tasks.report, "May")


def test_or_it_is_skipped(queue: Queue, elsewhere: Callable[..., Lease]) -> None:
    elsewhere("report:May", expire=LONG)
    assert queue.run(tasks.skipped, "May") is None


def test_a_lock_is_handed_over(queue: Queue) -> None:
    with lock("report:May", expire=10) as lease:
        ticket = lease.detach(LONG)
    assert queue.run(tasks.received, ticket) is True
    assert held_locks() == []


def test_at_once_it_runs_inside_of_the_locks_of_who_sends_it(django_queue: DjangoTasks) -> None:
    with lock("report:May", expire=10):
        assert django_queue.module.task(tasks.report).enqueue("May").return_value == "May"


def test_a_coroutine_is_a_task_of_django(django_queue: DjangoTasks) -> None:
    assert django_queue.run(tasks.areport, "May") == "May"


def test_rq_sends_it_again(rq_queue: RQ, elsewhere: Callable[..., Lease]) -> None:
    lease = elsewhere("report:May", expire=LONG)
    job = rq_queue.queue.enqueue(tasks.sent_again_by_rq, "May")
    rq_queue.work()
    assert job.get_status() == "scheduled"
    lease.release()
    rq_queue.queue.enqueue_job(job)  # as its scheduler does
    rq_queue.work()
    assert job.return_value(refresh=True) == "May"


def test_huey_sends_it_again(redis_store: str, elsewhere: Callable[..., Lease]) -> None:
    queue, lease = Huey(), elsewhere("report:May", expire=LONG)
    result = queue.huey.task()(tasks.sent_again_by_huey)("May")
    queue.work()
    [scheduled] = queue.huey.scheduled()
    lease.release()
    Context().run(queue.huey.execute, scheduled, scheduled.eta)
    assert result.get(preserve=True) == "May"


def test_dramatiq_sends_it_again(redis_store: str) -> None:
    queue = Dramatiq()
    actor = queue.actor(tasks.sent_again_by_dramatiq, broker=queue.broker, max_retries=None)
    lock("report:May", expire=1).acquire()  # and never released
    message = actor.send("May")
    queue.worker.start()
    try:
        assert message.get_result(backend=queue.results, block=True, timeout=1000 * int(PATIENCE)) == "May"
    finally:
        queue.worker.stop()
