"""What was begun for a scope is done, whatever comes meanwhile; what cannot be done ends with its lease.

A cancellation may come meanwhile, the end of the event loop, an exception that a signal's handler raises. ``shielded``
does the work all the same, and raises that after it. ``undo`` does so on the way out with an error, which stays the one
that is raised.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from ..core.backend import Claim, Port, retry_once
from ..core.errors import ConfigurationError, DistLockError, add_note
from ..core.runtime import TASKS, THREADS, in_event_loop
from .scope import Scope, names_of

logger = logging.getLogger("distlock_web")


async def shielded(scope: Scope, work: Callable[[Port], Coroutine[Any, Any, object]]) -> None:
    """Do work for a scope that may be done twice, to completion. What interrupts the caller is raised after it.

    A task that is cancelled has another one do the work again. The end of an event loop cancels that, too, and a
    signal's exception may come anywhere: then the blocking port does it, in this thread, which its timeouts bound.
    """
    # Else for threads, and for a coroutine that is closed after its loop: a task that we await would never run.
    in_loop = scope.runtime is TASKS and in_event_loop()
    try:
        await work(scope.spec.store.port(TASKS if in_loop else THREADS))
    except DistLockError:
        raise
    except BaseException as interruption:
        if in_loop and isinstance(interruption, asyncio.CancelledError):
            await _do_again_in_task(scope, work)
        else:
            await _do_again(scope, work)
        raise


async def _do_again_in_task(scope: Scope, work: Callable[[Port], Coroutine[Any, Any, object]]) -> None:
    task = asyncio.ensure_future(work(scope.spec.store.port(TASKS)))
    try:
        await TASKS.shield(task)
    except BaseException as error:
        if not task.done() or task.cancelled():
            await _do_again(scope, work)
        elif isinstance(failure := task.exception(), DistLockError):
            note_unreleased(scope, failure)
        elif failure is not None:  # an executor that has been shut down, for instance
            await _do_again(scope, work)
        if not isinstance(error, Exception | asyncio.CancelledError):  # a signal's, or the end of the coroutine
            raise


async def _do_again(scope: Scope, work: Callable[[Port], Coroutine[Any, Any, object]]) -> None:
    """What was interrupted, by the blocking port."""
    try:
        await work(scope.spec.store.port(THREADS))
    except Exception as failure:
        note_unreleased(scope, failure)


async def undo(error: BaseException, scope: Scope, work: Callable[[Port], Coroutine[Any, Any, None]]) -> None:
    """Do the work of cleaning up, to completion. The caller raises ``error`` then: a failure only adds a note to it.

    A cancellation is raised if the error is less than one: the task has to end, whatever is made of the error.
    """
    try:
        await shielded(scope, work)
    except asyncio.CancelledError:
        if isinstance(error, Exception):
            raise
    except Exception as failure:
        note_unreleased(scope, failure, error)


def note_unreleased(scope: Scope, failure: Exception, error: BaseException | None = None) -> None:
    """Log it, with the traceback of a bug; ``error``, which the caller raises, has a note of it."""
    text, names = "Lock %s could not be released, it ends within its lease: %s", names_of(scope)
    bug = None if isinstance(failure, DistLockError) else failure
    # Else nobody reads why it is done twice.
    doubt = " Its run may not be recorded as done: then the next call runs again." if scope.record_is_missing else ""
    fields = scope.log_fields("error", reason="release")
    logger.warning(text + doubt, names, failure, exc_info=bug, extra=fields)
    if error is not None:
        add_note(error, "could not be released: %s%s", failure, doubt, fields=fields)


async def cancel_quietly(scope: Scope, claims: Iterable[Claim], port: Port) -> None:
    """Nothing of these claims stays behind, neither in the queue nor held.

    An error that is not ours, a bug's or a signal's, is raised after the last one: the others are not kept for it.
    """
    unexpected: list[Exception] = []
    for claim in claims:
        try:
            await retry_once(port.cancel, claim)
        except ConfigurationError:
            pass  # a password, a right that is missing: the store has refused the acquisition, too
        except DistLockError as error:
            text = "Lock %s: a claim could not be cancelled, it ends within its lease: %s"
            logger.info(text, claim.name, error, extra=scope.log_fields("error", reason="cancel"))
        except Exception as error:
            unexpected.append(error)
    if unexpected:
        raise unexpected[0]
