"""Locks in the tasks of Celery. Loaded by itself where Celery is, before the first function is decorated.

``on_busy="retry"``: a task that finds its lock taken is sent again, for when the lock may be free.
``unique(task).delay(...)``: the lock of the run is taken where the task is sent, and travels with the message.
``unique(task, again=True).delay(...)``: a second lock does, the one of the place in the queue. It is free when the run
begins, so that what is sent from then on is one more run.
"""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from celery import current_task
from celery.exceptions import Ignore, Retry
from celery.signals import after_task_publish, before_task_publish, task_postrun, task_revoked
from celery.utils.time import maybe_iso8601, maybe_make_aware

from .core.backend import retry_once
from .core.errors import BackendUnavailable, ConfigurationError, DistLockError, LockBusy, NotHeld
from .core.runtime import DICE, TASKS, THREADS, drive, now, refuse_in_event_loop
from .core.setting import Duration, check_flag, check_seconds
from .locks import ending, engine, events, handover
from .locks.attach import aattach, attach
from .locks.call import Call, LockedFunction, acquire
from .locks.events import log_fields
from .locks.handover import Ticket
from .locks.hooks import Integration, RunningTask, install
from .locks.lease import Lease, scope_of
from .locks.reentry import chain
from .locks.scope import Scope, Spec

__all__ = ["Unique", "unique"]

logger = logging.getLogger("distlock_web")

#: Seconds until a task is sent again, at least: the holder may release it and take it again meanwhile.
MIN_COUNTDOWN = 1.0
#: And at most: a broker that has no answer for longer delivers the message to another worker, too (in Redis an hour).
MAX_COUNTDOWN = 900.0
#: So much later each, at random, and never sooner: of many that found the lock taken not all come at once.
JITTER = 0.25

#: The header of a message that has the ticket of its lock, and the transit of that. No argument: the signature of the
#: task stays as it is, and no monitor shows the ticket.
_HEADER = "distlock"

#: Of ``again=True``, what the names of the place in the queue begin with, after the prefix.
_QUEUED = "again:"
#: Seconds that a run may take from its lock to the freeing of its place. A worker that is killed in between holds up
#: the next sender for so long.
_BEGINNING = 5.0


class Unique:
    """A task that is sent only if it is neither queued nor running: made by :func:`unique`."""

    def __init__(self, task: Any, transit: float, again: bool) -> None:
        self._task = task
        self._transit = transit
        self._again = again

    def delay(self, *args: Any, **kwargs: Any) -> Any:
        """Send the task with these arguments. Its ``AsyncResult``, or None if it is not sent."""
        return self.apply_async(args, kwargs)

    def apply_async(
        self, args: Iterable[Any] | None = None, kwargs: Mapping[str, Any] | None = None, **options: Any
    ) -> Any:
        """The same with the options of Celery's ``apply_async``; ``countdown`` and ``eta`` are added to ``transit``.

        Raises ``BackendUnavailable`` if the store does not answer, and what Celery raises if the message is not sent:
        the lock is given back then.
        """
        refuse_in_event_loop("`await asyncio.to_thread(unique(task).delay, ...)`")
        args, kwargs = tuple(args or ()), dict(kwargs or {})
        scope = self._scope(args, kwargs)
        lease = self._take_place(scope) if self._again else self._take(scope)
        if lease is None:
            claimant = scope.claimant()
            for name in scope.spec.names:
                events.publish("unsent", scope.spec.store.alias, name, scope.spec.template, claimant=claimant)
            return None
        ticket = None
        try:
            with lease:
                if not lease.acquired:  # on_backend_error="open"
                    return self._task.apply_async(args, kwargs, **options)
                wait = options.get("countdown") or _seconds_until(self._task.app, options.get("eta"))
                ticket = lease.detach(self._transit + wait)
            headers = {**(options.pop("headers", None) or {}), _HEADER: (ticket, self._transit, self._again)}
            return self._task.apply_async(args, kwargs, headers=headers, **options)
        except BaseException:  # a message that was sent all the same takes the lock when it runs
            if ticket is not None:
                _give_back(ticket)
            raise

    def _scope(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Scope:
        """What is taken here: the lock of the run, or its place in the queue."""
        locked = _locked(self._task)
        # The options are those of the run. Here nothing waits, no end is a success, and all is over in a moment.
        runtime = TASKS if locked.asynchronous else THREADS
        spec = drive(Call(locked, self._task.run, _with_self(self._task, args), kwargs).spec(runtime))
        if self._again:
            spec = _place(spec)
        scope = Scope(spec._replace(wait=0.0, on_lost="raise"), THREADS, in_block=False)
        scope.warned = True
        return scope

    def _take(self, scope: Scope) -> Lease | None:
        """The lock of the run; None if it is held, be it by the running task itself."""
        locked, spec = _locked(self._task), scope.spec
        running = current_task._get_current_object()
        try:
            if (
                running is not None
                and running.name == self._task.name
                and any(chain.find_enclosing(spec.store, name) for name in spec.names)
            ):
                raise LockBusy("The running code is inside of its lock.", name=", ".join(spec.names))
            return Lease(drive(acquire(locked, scope)))
        except LockBusy as busy:
            fields = scope.log_fields("busy")
            logger.info("%s is not sent, for it is queued or running. %s", self._task.name, busy, extra=fields)
            return None

    def _take_place(self, scope: Scope) -> Lease | None:
        """The place in the queue; None if a run is queued that has not begun: it will see what was done before this.

        Its holder is just sending it, or begins. That is over in a moment; or the holder has died, and none runs.
        """
        locked, spec = _locked(self._task), scope.spec
        until = now() + spec.expire + _BEGINNING
        while True:
            try:
                return Lease(drive(acquire(locked, Scope(spec, THREADS, in_block=False))))
            except LockBusy as busy:
                held = drive(retry_once(spec.store.port(THREADS).inspect, spec.names))
                if any(lock.state == "transit" for lock in held):
                    fields = scope.log_fields("unsent")
                    logger.info("%s is not sent, for it is queued. %s", self._task.name, busy, extra=fields)
                    return None
                if now() > until:
                    raise
                time.sleep(DICE.uniform(0.005, 0.02))


def _place(spec: Spec) -> Spec:
    """Of the lock of a run, its place in the queue: one, however many may run."""
    if len(spec.names) > 1:  # with other names beside one of these it is another run, which would not see the change
        raise ConfigurationError(f"unique(again=True) needs one key, and {spec.function} has {len(spec.names)}.")
    names = tuple(f"{spec.prefix}{_QUEUED}{name.removeprefix(spec.prefix)}" for name in spec.names)
    return spec._replace(names=names, limit=1, renew=False)


def unique(task: Any, *, transit: Duration = "1h", again: bool = False) -> Unique:
    """Send a task of Celery only if it is neither queued nor running: ``unique(report).delay("May")``, or None.

    The task has ``@distributed_lockable(...)`` below what makes a task of it: the key says what is the same task. Its
    lock is taken here, travels with the message, and is free when the function has returned; after an error, when the
    run is over. It goes along when the task retries. It is freed when a worker drops the message: revoked, or expired.

    ``transit`` (seconds, a ``timedelta``, or text such as ``"1h"``) is how long the lock lives on its way. A task that
    begins later has to take it anew: another one may have been sent meanwhile, but no two run at one time. A message
    that gets lost blocks the next one until then.

    ``again``: send it also if it is running, once. None: a run is queued already, and has not begun. It will see all
    that was done before the call. It begins when the running one has ended, whatever ``on_busy`` says.

    Raises ``ConfigurationError`` for what is no such task.
    """
    _locked(task)
    return Unique(task, check_seconds(transit, "transit"), check_flag(again, "again"))


def _locked(task: Any) -> LockedFunction:
    """What the run of a task carries."""
    locked: LockedFunction | None = getattr(getattr(task, "run", None), "__distlock__", None)
    if locked is None:
        raise ConfigurationError(
            f"unique is for tasks of Celery that run under a lock, and {task!r} does not: put "
            f"@distributed_lockable(key=...) below what makes a task of it."
        )
    if locked.once is not None:
        raise ConfigurationError(f"{task!r} is done once for each key, however often it is sent: unique adds nothing.")
    return locked


def _with_self(task: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments that the task's function is called with: ``bind=True`` or a class give it the task, too."""
    run = inspect.unwrap(task.run, stop=inspect.ismethod)  # autoretry_for wraps it
    return (run.__self__, *args) if inspect.ismethod(run) else args


def _seconds_until(app: Any, eta: Any) -> float:
    if eta is None:
        return 0.0
    aware: datetime = maybe_make_aware(maybe_iso8601(eta), None if app.conf.enable_utc else app.timezone)
    now: datetime = app.now()
    return max(0.0, (aware - now).total_seconds())


def _give_back(ticket: str) -> None:
    """Free the lock of a message that will never run."""
    try:
        ending.end_now(scope_of(attach(ticket)), Ignore())  # no success: nothing is kept for a run that never was
    except NotHeld:  # a run has it, or had it
        pass
    except DistLockError as error:
        text = "The lock of a task that is not run could not be freed. It ends after its transit: %s"
        logger.warning(text, error, extra=_fields(error))


async def _free_place(ticket: str, scope: Scope) -> None:
    """Raises ``BackendUnavailable``: nothing could be sent until its transit is over, and this run would miss it."""
    try:
        if scope.runtime is TASKS:
            await ending.end(scope_of(await aattach(ticket, expire=_BEGINNING)), Ignore())
        else:
            ending.end_now(scope_of(attach(ticket, expire=_BEGINNING)), Ignore())
    except NotHeld:  # the message was delivered twice, or is late
        pass


def _fields(error: DistLockError) -> Mapping[str, object]:
    """For a log record: what the error knows of its lock."""
    return error.log_fields or log_fields("error", "", error.name or "", "", reason="transfer")


def _header(request: Any) -> tuple[str | None, float, bool]:
    """The ticket that a message came with, its transit, and whether it is that of a place in the queue.

    An eager task has it in its ``headers`` alone.
    """
    match request.get(_HEADER) or (request.headers or {}).get(_HEADER):
        case str() | None as ticket, int() | float() as transit, bool() as again:
            return ticket, transit, again
    return None, 0.0, False  # there is none, or another program's


class CeleryTasks(Integration):
    """Knows which task runs."""

    def running_task(self) -> RunningTask | None:
        task = current_task._get_current_object()
        return None if task is None else CeleryRun.of(task)


class CeleryRun:
    """A run of a task of Celery's: a :class:`~distlock_web.locks.hooks.RunningTask`.

    The lock that came with its message is in one place at a time: in ``_ticket`` before the function, or when that has
    handed it on; in ``_scope``, the function's own, from then on.
    """

    def __init__(self, task: Any) -> None:
        self._task = task
        self._ticket, self._transit, self._again = _header(task.request)
        self._scope: Scope | None = None

    @classmethod
    def of(cls, task: Any) -> CeleryRun:
        """The one that the task is in now."""
        request = task.request
        if not hasattr(request, "distlock_run"):
            request.distlock_run = cls(task)
        run: CeleryRun = request.distlock_run
        return run

    async def begin(self, locked: object, scope: Scope) -> Scope:
        """Take on the lock that came with the message, for the task's own function.

        Where it is gone, for the message was delivered twice or is late, the function takes its lock itself, or is
        refused. Not at the beginning of the task: a Flask app's context, which says where its locks are, begins later.
        """
        if getattr(self._task.run, "__distlock__", None) is not locked:
            return scope
        if self._again:
            return await self._begin_queued(scope)
        if self._ticket is None:
            return scope
        try:
            ticket = Ticket.loads(self._ticket)
            if set(ticket.fences) != set(scope.spec.names):
                return scope  # the arguments make another key here: what came is freed at the end of the run
            await engine.acquire(scope, ticket)
        except NotHeld as error:
            message = "%s runs without the lock that came with it, and takes its own: %s"
            logger.info(message, self._task.name, error, extra=_fields(error))
            self._ticket = None
            return Scope(scope.spec, scope.runtime)
        self._scope, self._ticket = scope, None
        return scope

    async def _begin_queued(self, scope: Scope) -> Scope:
        """Take the lock of the run, and free its place in the queue: what is sent from now on is one more run.

        Where either cannot be done, it stays queued: its sender was told that it will run.
        """
        try:
            await engine.acquire(scope)
            if self._ticket is not None:
                await _free_place(self._ticket, scope)
                self._ticket = None
        except (LockBusy, BackendUnavailable) as error:
            raise self.retry(error) from None
        return scope

    def keeps(self, scope: Scope) -> bool:
        """After an error the lock is kept until the end of the run: Celery may send the task again.

        One that is lost is not: its end says so, in the error.
        """
        return scope is self._scope and scope.alive and all(hold.state != "lost" for hold in scope.holds)

    def hand_on(self, headers: dict[str, Any]) -> None:
        """The task is sent again, with these headers: the lock goes along."""
        scope = self._scope
        if scope is not None and scope.alive:
            transit = self._transit + _seconds_until(self._task.app, headers.get("eta"))
            try:
                self._ticket = drive(handover.detach(scope, transit, THREADS, nested=True))
                self._scope = None  # not sooner: what could not be handed on ends with the run
            except DistLockError as error:
                text = "%s is sent again without its lock, which it takes when it runs: %s"
                logger.warning(text, self._task.name, error, extra=_fields(error))
        if self._ticket is not None or self._again:
            headers[_HEADER] = self._ticket, self._transit, self._again

    def handed_on(self) -> None:
        """The message was sent: the lock is the next run's."""
        self._ticket = None

    def end(self) -> None:
        """It is over."""
        if self._scope is not None:
            ending.end_now(self._scope, Ignore())  # with any error it is no success; nothing, where it has ended
        if self._ticket is not None:
            _give_back(self._ticket)

    def retry(self, error: LockBusy | BackendUnavailable) -> Exception:
        """Not ``task.retry``, which counts: waiting for a lock is no failure, and leaves ``max_retries`` to those."""
        request = self._task.request
        if request.called_directly or request.is_eager:  # it would not be sent, or it would come back at once
            return error
        estimate = error.estimate if isinstance(error, LockBusy) else MIN_COUNTDOWN
        soonest = min(max(estimate, MIN_COUNTDOWN), MAX_COUNTDOWN)
        countdown = soonest * DICE.uniform(1, 1 + JITTER)
        again = self._task.signature_from_request(request, countdown=countdown)
        again.apply_async()
        retry: Exception = Retry(exc=error, when=countdown, sig=again)
        return retry


def _sent_again(headers: Any) -> CeleryRun | None:
    """The run that sends its own task again, in the message with these headers; None: it is another one's."""
    task = current_task._get_current_object()
    if task is None or headers is None or (headers.get("id"), headers.get("task")) != (task.request.id, task.name):
        return None
    return CeleryRun.of(task)


def _before_publish(headers: Any = None, **_: object) -> None:
    """A worker cannot get the message yet."""
    if run := _sent_again(headers):
        run.hand_on(headers)


def _after_publish(headers: Any = None, **_: object) -> None:
    if run := _sent_again(headers):
        run.handed_on()


def _end(task: Any = None, **_: object) -> None:
    CeleryRun.of(task).end()


def _dropped(request: Any = None, **_: object) -> None:
    """A worker drops the message: it was revoked, or has expired."""
    ticket, _transit, _again = _header(request)
    if ticket is not None:
        _give_back(ticket)


before_task_publish.connect(_before_publish)
after_task_publish.connect(_after_publish)
task_postrun.connect(_end)
task_revoked.connect(_dropped)
install(CeleryTasks())
