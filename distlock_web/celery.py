"""Locks in the tasks of Celery. Loaded by itself where Celery is, before the first function is decorated.

``on_busy="retry"``: a task that finds its lock taken is sent again, for when the lock may be free.
``unique(task).delay(...)``: the lock of the run is taken where the task is sent, and travels with the message.
"""

from __future__ import annotations

import inspect
import logging
import random
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from celery import current_task, states
from celery.exceptions import Ignore, Retry
from celery.signals import before_task_publish, task_postrun, task_revoked
from celery.utils.time import maybe_iso8601, maybe_make_aware

from .core.config import Duration, check_seconds
from .core.errors import ConfigurationError, DistLockError, LeaseLost, LockBusy, NotHeld
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
                raise LockBusy("The running code is inside of its lock.", name=", ".join(spec.names))
            return Lease(drive(locked.acquire(scope)))
        except LockBusy as busy:
            fields = scope.log_fields("busy")
            logger.info("%s is not sent, for it is queued or running. %s", self._task.name, busy, extra=fields)
            return None


def unique(task: Any, *, transit: Duration = "1h") -> Unique:
    """Send a task of Celery only if it is neither queued nor running: ``unique(report).delay("May")``, or None.

    The task has ``@distributed_lockable(...)`` below what makes a task of it: the key says what is the same task. Its
    lock is taken here, travels with the message, and ends with the run, which another one cannot begin before that. It
    goes along when the task retries, and is freed when a worker drops the message as revoked or expired.

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


def _give_back(ticket: str) -> None:
    """Free the lock of a message that nobody will run."""
    try:
        attach(ticket).release()
    except NotHeld:  # a run has it, or had it
        pass
    except DistLockError as error:
        logger.warning(_NOT_FREED, error, extra=_fields(error))


def _fields(error: DistLockError) -> Mapping[str, object]:
    """For a log record: what the error knows of its lock."""
    return error.log_fields or log_fields("error", "", error.name or "", "", reason="transfer")


def _hand_on(headers: dict[str, Any] | None = None, **_: object) -> None:
    """A task that is sent again by its own run takes its lock along: here, before a worker can get the message."""
    task = current_task._get_current_object()
    scope = None if task is None else getattr(task.request, "distlock_scope", None)
    if scope is None or headers is None or (headers.get("id"), headers.get("task")) != (task.request.id, task.name):
        return
    try:
        transit = headers[_TRANSIT] + _seconds_until(task.app, headers.get("eta"))
        task.request.distlock_handed_on = headers[_TICKET] = drive(ending.detach(scope, transit, THREADS, nested=True))
    except DistLockError as error:
        text = "%s is sent again without its lock, which it takes when it runs: %s"
        logger.warning(text, task.name, error, extra=_fields(error))


def _end(task: Any = None, retval: object = None, state: str | None = None, **_: object) -> None:
    """The run is over, and with it its lock."""
    scope, ticket = (getattr(task.request, name, None) for name in ("distlock_scope", "distlock_handed_on"))
    if scope is None:
        return
    try:
        if ticket is None:
            if state == states.SUCCESS:
                drive(_locked(task).judge(retval, scope))
        elif state != states.RETRY:  # the message that has the lock was not sent: it is taken back, to be freed
            scope = Scope(scope.spec._replace(hold_at_least=0.0), THREADS)
            drive(engine.acquire(scope, Ticket.loads(ticket)))
        ending.end_now(scope, None if state == states.SUCCESS else Ignore())  # with any error it is no success
    except (LeaseLost, NotHeld):  # which the function was told of; which a run has
        pass
    except DistLockError as error:
        logger.warning(_NOT_FREED, error, extra=_fields(error))


def _dropped(request: Any = None, **_: object) -> None:
    """A worker drops the message: it was revoked, or has expired."""
    if ticket := (request.headers or {}).get(_TICKET):
        _give_back(ticket)


class CeleryTasks(Integration):
    """Knows which task runs."""

    def running_task(self) -> RunningTask | None:
        task = current_task._get_current_object()
        return None if task is None else Run(task)


class Run:
    """A run of a task of Celery's: a :class:`~distlock_web.locks.hooks.RunningTask`."""

    def __init__(self, task: Any) -> None:
        self._task = task

    def begin(self, locked: object, spec: Spec) -> None:
        """Take on the lock that came with the message, until the task ends. The function inside of it enters it again.

        Where it is gone, for the message was delivered twice or is late, the function takes its lock itself, or is
        refused. Not at the beginning of the task: a Flask app's context, which says where its locks are, begins later.
        """
        request = self._task.request
        text = (request.headers or {}).get(_TICKET)
        ours = getattr(self._task.run, "__distlock__", None) is locked
        if text is None or not ours or hasattr(request, "distlock_scope"):
            return
        request.distlock_scope = None  # asked for once in each run
        try:
            ticket = Ticket.loads(text)
            scope = Scope(spec._replace(names=tuple(ticket.fences), on_lost="raise"), THREADS)
            drive(engine.acquire(scope, ticket))
            request.distlock_scope = scope
        except DistLockError as error:
            message = "%s runs without the lock that came with it, and takes its own: %s"
            logger.info(message, self._task.name, error, extra=_fields(error))

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


task_postrun.connect(_end)
before_task_publish.connect(_hand_on)
task_revoked.connect(_dropped)
install(CeleryTasks())
