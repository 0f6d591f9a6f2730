"""Locks in the tasks of Celery. Loaded by itself where Celery is, before the first function is decorated.

``on_busy="retry"``: a task that finds its lock taken is sent again, for when the lock may be free.
``unique(task).delay(...)``: the lock of the run is taken where the task is sent, and travels with the message.
"""

from __future__ import annotations

import inspect
import logging
import random
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any

from celery import current_task
from celery.exceptions import Ignore, Reject, Retry
from celery.signals import after_task_publish, before_task_publish, task_postrun, task_revoked, task_unknown
from celery.utils.time import maybe_iso8601, maybe_make_aware

from .core.config import Duration, check_seconds
from .core.errors import BackendUnavailable, ConfigurationError, DistLockError, LeaseLost, LockBusy, NotHeld
from .core.runtime import THREADS, drive, refuse_in_event_loop
from .locks import chain, ending, engine
from .locks.decorator import LockedFunction
from .locks.events import log_fields
from .locks.hooks import Integration, RunningTask, install
from .locks.lease import Lease
from .locks.lock import attach
from .locks.once import Once
from .locks.scope import Scope, Spec
from .locks.transfer import Ticket

__all__ = ["Unique", "unique"]

logger = logging.getLogger("distlock_web")

#: Seconds until a task is sent again, at least: the holder may release it and take it again meanwhile.
MIN_COUNTDOWN = 1.0
#: And at most: a broker that has no answer for longer delivers the message to another worker, too (in Redis an hour).
MAX_COUNTDOWN = 900.0
#: So much later each, at random, and never sooner: of many that found the lock taken not all come at once.
JITTER = 0.25

# Headers of a message. No argument: the signature of the task stays as it is, and no monitor shows the ticket.
_TICKET = "distlock_ticket"
_TRANSIT = "distlock_transit"

_NOT_FREED = "The lock of a task that is not run could not be freed. It ends after its transit: %s"


class Unique:
    """A task that is sent only if it is neither queued nor running: made by :func:`unique`."""

    def __init__(self, task: Any, transit: float) -> None:
        self._task = task
        self._transit = transit

    def delay(self, *args: Any, **kwargs: Any) -> Any:
        """Send the task with these arguments. Its ``AsyncResult``, or None if it is queued or running."""
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
        lease = self._take(args, kwargs)
        if lease is None:
            return None
        with lease:
            if not lease.acquired:  # on_backend_error="open"
                return self._task.apply_async(args, kwargs, **options)
            wait = options.get("countdown") or _seconds_until(self._task.app, options.get("eta"))
            ticket = lease.detach(self._transit + wait)
        try:
            headers = {**(options.pop("headers", None) or {}), _TICKET: ticket, _TRANSIT: self._transit}
            return self._task.apply_async(args, kwargs, headers=headers, **options)
        except BaseException:  # a message that was sent all the same takes the lock when it runs
            _give_back(ticket)
            raise

    def _take(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Lease | None:
        """The lock of the run; None if somebody has it, be it the running task itself."""
        locked = _locked(self._task)
        # The options are those of the run. Here nothing waits, nothing is released, and all is over in a moment.
        spec = drive(locked.spec(THREADS, _with_self(self._task, args), kwargs))
        scope = Scope(spec._replace(wait=0.0, on_lost="raise", hold_at_least=0.0), THREADS)
        scope.warned = True
        try:
            if any(chain.find_enclosing(spec.store, name) is not None for name in spec.names):
                self._refuse_in_a_block(spec)
                raise LockBusy("The running code is inside of its lock.", name=", ".join(spec.names))
            return Lease(drive(locked.acquire(scope)))
        except LockBusy as busy:
            fields = scope.log_fields("busy")
            logger.info("%s is not sent, for it is queued or running. %s", self._task.name, busy, extra=fields)
            return None

    def _refuse_in_a_block(self, spec: Spec) -> None:
        """None would say that the task is queued or running."""
        running = current_task._get_current_object()
        if running is None or running.name != self._task.name:
            raise ConfigurationError(
                f"{self._task.name} cannot be sent by unique inside a block that holds its lock "
                f"{', '.join(map(repr, spec.names))}: hand the lock over by detach(), or send the task after the block."
            )


def unique(task: Any, *, transit: Duration = "1h") -> Unique:
    """Send a task of Celery only if it is neither queued nor running: ``unique(report).delay("May")``, or None.

    The task has ``@distributed_lockable(...)`` below what makes a task of it: the key says what is the same task. Its
    lock is taken here, travels with the message, and is free when the function has returned; after an error, when the
    run is over. It goes along when the task retries. It is freed when a worker drops the message: revoked, or expired.

    ``transit`` (seconds, a ``timedelta``, or text such as ``"1h"``) is how long the lock lives on its way. A task that
    begins later has to take it anew: another one may have been sent meanwhile, but no two run at one time. A message
    that gets lost blocks the next one until then.

    Raises ``ConfigurationError`` for what is no such task.
    """
    _locked(task)
    return Unique(task, check_seconds(transit, "transit"))


def _locked(task: Any) -> LockedFunction:
    """What the run of a task carries."""
    locked = getattr(getattr(task, "run", None), "__distlock__", None)
    if locked is None:
        raise ConfigurationError(
            f"unique is for tasks of Celery that run under a lock, and {task!r} does not: put "
            f"@distributed_lockable(key=...) below what makes a task of it."
        )
    if isinstance(locked, Once):
        raise ConfigurationError(f"{task!r} is done once for each key, however often it is sent: unique adds nothing.")
    return locked  # type: ignore[no-any-return]


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


def _take_on(ticket: str, spec: Spec) -> Scope:
    """The lock that a ticket stands for, as ``spec`` says."""
    parsed = Ticket.loads(ticket)
    scope = Scope(spec._replace(names=tuple(parsed.fences), on_lost="raise", hold_at_least=0.0), THREADS)
    drive(engine.acquire(scope, parsed))
    return scope


def _give_back(ticket: str, spec: Spec | None = None) -> None:
    """Free the lock of a message that nobody will run. ``spec`` knows the store also outside of a Flask app."""
    try:
        (attach(ticket) if spec is None else Lease(_take_on(ticket, spec))).release()
    except NotHeld:  # a run has it, or had it
        pass
    except DistLockError as error:
        logger.warning(_NOT_FREED, error, extra=_fields(error))


def _fields(error: DistLockError) -> Mapping[str, object]:
    """For a log record: what the error knows of its lock."""
    return error.log_fields or log_fields("error", "", error.name or "", "", reason="transfer")


def _header(request: Any, name: str) -> Any:
    """Of a message. Tracers put headers of their own into its ``headers``, in place of ours; or copies of old ones."""
    return request.get(name) or (request.headers or {}).get(name)


class CeleryTasks(Integration):
    """Knows which task runs."""

    def running_task(self) -> RunningTask | None:
        task = current_task._get_current_object()
        return None if task is None else Run.of(task)


class Run:
    """A run of a task of Celery's: a :class:`~distlock_web.locks.hooks.RunningTask`.

    The lock that came with its message is in one place at a time: in ``_ticket`` while nobody else is sure to take it
    on; in ``_scope`` while the function runs; with another message, or gone, where both are None.
    """

    def __init__(self, task: Any) -> None:
        self._task = task
        self._came_with: str | None = _header(task.request, _TICKET)
        self._ticket = self._came_with
        self._scope: Scope | None = None
        self._call: Scope | None = None  # of the task's function, the outermost

    @classmethod
    def of(cls, task: Any) -> Run:
        """The one that the task is in now."""
        request = task.request
        if not hasattr(request, "distlock_run"):
            request.distlock_run = cls(task)
        run: Run = request.distlock_run
        return run

    def begin(self, locked: object, scope: Scope) -> None:
        """Take on the lock that came with the message. The function inside of it enters it again.

        Where it is gone, for the message was delivered twice or is late, the function takes its lock itself, or is
        refused. Not at the beginning of the task: a Flask app's context, which says where its locks are, begins later.
        """
        ours = getattr(self._task.run, "__distlock__", None) is locked
        if self._ticket is None or not ours or self._call is not None:
            return
        self._call = scope
        try:
            self._scope, self._ticket = _take_on(self._ticket, scope.spec), None
        except BackendUnavailable:  # the lock is on its way still, where the function would find it taken
            raise
        except DistLockError as error:
            self._ticket = None
            message = "%s runs without the lock that came with it, and takes its own: %s"
            logger.info(message, self._task.name, error, extra=_fields(error))

    def returned(self, scope: Scope) -> None:
        """With the outermost call: before Celery sends the callbacks, and stores the result."""
        if scope is self._call and self._scope is not None:
            self._scope.spec = self._scope.spec._replace(hold_at_least=scope.spec.hold_at_least)  # as it was judged
            self._release(None)

    def _release(self, error: Exception | None) -> None:
        if self._scope is not None:
            with suppress(LeaseLost):  # which the function was told of
                ending.end_now(self._scope, error)
            self._scope = None

    def end(self, retval: object) -> None:
        """It is over. After an error the lock is kept until here: Celery may have sent the task again."""
        self._release(Ignore())  # with any error it is no success
        comes_back = isinstance(retval, Reject) and retval.requeue and self._ticket == self._came_with
        if self._ticket is not None and not comes_back:
            _give_back(self._ticket, None if self._call is None else self._call.spec)

    def hand_on(self, headers: dict[str, Any]) -> None:
        """The task is sent again, with these headers: the lock goes along."""
        if self._scope is not None:
            transit = _header(self._task.request, _TRANSIT) + _seconds_until(self._task.app, headers.get("eta"))
            try:
                self._ticket = drive(ending.detach(self._scope, transit, THREADS, nested=True))
                self._scope = None
            except DistLockError as error:
                text = "%s is sent again without its lock, which it takes when it runs: %s"
                logger.warning(text, self._task.name, error, extra=_fields(error))
        if self._ticket is not None:
            headers.update({_TICKET: self._ticket, _TRANSIT: _header(self._task.request, _TRANSIT)})

    def handed_on(self, headers: dict[str, Any]) -> None:
        """The message was sent: whose the lock is now."""
        if headers.get(_TICKET) == self._ticket:
            self._ticket = None

    def retry(self, error: LockBusy) -> Exception:
        """Not ``task.retry``, which counts: waiting for a lock is no failure, and leaves ``max_retries`` to those."""
        request = self._task.request
        if request.called_directly or request.is_eager:  # nobody would send it, or it would come back at once
            return error
        soonest = min(max(error.estimate, MIN_COUNTDOWN), MAX_COUNTDOWN)
        countdown = soonest * random.uniform(1, 1 + JITTER)  # noqa: S311 - no secret
        again = self._task.signature_from_request(request, countdown=countdown)
        again.apply_async()
        retry: Exception = Retry(exc=error, when=countdown, sig=again)
        return retry


def _sent_again(headers: Any) -> Run | None:
    """The run that sends its own task again, in the message with these headers; None: it is another one's."""
    task = current_task._get_current_object()
    if task is None or headers is None or (headers.get("id"), headers.get("task")) != (task.request.id, task.name):
        return None
    return Run.of(task)


def _before_publish(headers: Any = None, **_: object) -> None:
    """A worker cannot get the message yet."""
    if run := _sent_again(headers):
        run.hand_on(headers)


def _after_publish(headers: Any = None, **_: object) -> None:
    if run := _sent_again(headers):
        run.handed_on(headers)


def _end(task: Any = None, retval: object = None, **_: object) -> None:
    Run.of(task).end(retval)


def _dropped(request: Any = None, **_: object) -> None:
    """A worker drops the message: it was revoked, or has expired."""
    if ticket := _header(request, _TICKET):
        _give_back(ticket)


def _unknown(message: Any = None, **_: object) -> None:
    """A worker drops the message of a task that it does not know: an older version, perhaps."""
    if ticket := (getattr(message, "headers", None) or {}).get(_TICKET):
        _give_back(ticket)


before_task_publish.connect(_before_publish)
after_task_publish.connect(_after_publish)
task_postrun.connect(_end)
task_revoked.connect(_dropped)
task_unknown.connect(_unknown)
install(CeleryTasks())
