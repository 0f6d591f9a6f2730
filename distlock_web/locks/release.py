"""Releasing: once, to completion, and without hiding why (laws 3 and 8).

    release_all          the holds of a scope, the last one first
    cancel_quietly       one claim that was never answered
    run_to_completion    such work, whatever interrupts its caller
    clean_up_after       the same on the way out with an error, which stays the one that is raised
    retry_once           a verb whose answer did not come
    engine.end, release  at the end of a block, which logs what fails; by hand, which raises it
    engine.abort         a block that does not begin, or whose end was interrupted

A release that has begun is completed, whatever comes meanwhile: a cancellation, the end of the event loop, an exception
that a signal's handler raises. What fails is logged and hides nothing: the block's own exception, or the first one on
the way into it, is what the caller hears of. What cannot be released ends with its lease.

What Python does not allow: a signal's exception can come before the first instruction of ``__exit__``, and nothing of
ours runs then. The lock is held until its lease ends; with ``renew``, until ``renew_for`` is over, or some leases after
the end of the thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar, TypeVarTuple

from ..core.backend import Claim, Loss, Port
from ..core.errors import BackendUnavailable, ConfigurationError, DistLockError, LossReason
from ..core.runtime import TASKS, THREADS, in_event_loop, now
from . import events
from .hold import Hold
from .log_fields import of_hold, of_scope
from .scope import Scope, Spec, names_of

logger = logging.getLogger("distlock_web")
Args = TypeVarTuple("Args")
T = TypeVar("T")


async def run_to_completion(scope: Scope, work: Callable[[Port], Coroutine[Any, Any, T]]) -> T:
    """Do work for a scope that may be done twice, to completion. What interrupts the caller is raised after it.

    The end of an event loop cancels the shielded work, too, and a signal's exception may come anywhere: then it is done
    by the blocking port, in this thread, which its timeouts bound.
    """
    if scope.runtime is TASKS and in_event_loop():
        return await _complete_in_task(scope, work)
    # For threads, and for a coroutine that is closed after its loop: nobody would ever run a task that we await.
    try:
        return await work(scope.spec.store.port(THREADS))
    except DistLockError:
        raise
    except BaseException:
        await _do_again(scope, work)
        raise


async def _complete_in_task(scope: Scope, work: Callable[[Port], Coroutine[Any, Any, T]]) -> T:
    task = asyncio.ensure_future(work(scope.spec.store.port(TASKS)))
    try:
        return await TASKS.shield(task)
    except DistLockError:
        raise
    except BaseException:
        if not task.done() or task.cancelled():
            await _do_again(scope, work)
        elif isinstance(failure := task.exception(), DistLockError):
            _warn_of_unreleased(scope, failure)
        elif failure is not None:  # an executor that has been shut down, for instance
            await _do_again(scope, work)
        raise


async def _do_again(scope: Scope, work: Callable[[Port], Coroutine[Any, Any, object]]) -> None:
    """What was interrupted, by the blocking port."""
    try:
        await work(scope.spec.store.port(THREADS))
    except Exception as failure:
        _warn_of_unreleased(scope, failure)


def _warn_of_unreleased(scope: Scope, failure: Exception) -> None:
    text, names = "Lock %s could not be released, it ends within its lease: %s", names_of(scope)
    logger.warning(text, names, failure, extra=of_scope("error", scope, reason="release"))


async def clean_up_after(error: BaseException, scope: Scope, work: Callable[[Port], Coroutine[Any, Any, None]]) -> None:
    """Do the work of cleaning up, to completion. The caller raises ``error`` then: a failure only adds a note to it.

    A cancellation is raised if the error is less than one: the task has to end, whatever is made of the error.
    """
    try:
        await run_to_completion(scope, work)
    except asyncio.CancelledError:
        if isinstance(error, Exception):
            raise
    except Exception as failure:
        _warn_of_unreleased(scope, failure)
        error.add_note(f"distlock_web: could not be released: {failure}")


async def release_all(scope: Scope, port: Port, success: bool = False) -> None:
    """Release every acquired hold, the last one first, and leave the re-entered ones; then raise the first failure.

    Called again, it goes on where it was interrupted.
    """
    scope.stop_watching()
    scope.leave_gates()
    failure: DistLockError | None = None
    hold_at_least = scope.spec.hold_at_least if success else 0.0
    kept: list[events.Event] = []
    try:
        for hold in reversed(scope.acquired):
            interrupted = hold.state == "releasing"
            if not hold.begin_release(kept.append):
                if (claim := hold.to_cancel) is not None:
                    await cancel_quietly(scope, port, claim)
                    hold.cancelled()
                continue
            cooldown = _cooldown_of(hold, hold_at_least) if hold_at_least else 0.0
            loss: LossReason | None
            failed: DistLockError | None = None
            try:
                loss = await _release(port, hold, cooldown, interrupted)
            except DistLockError as error:
                failure, failed = failure or error, error
                loss = "unreachable" if now() >= hold.deadline else None
            if loss is not None:
                hold.lose(loss, kept.append)
            else:
                hold.released("unreachable" if failed else "", kept.append)
            if failed is not None:
                hold.tell_of_failure("release", failed, kept.append)
            if success and loss is None:
                _record(scope.spec, hold, cooldown)
    finally:
        events.tell_all(kept)  # not sooner: a slow listener would hold up the releases that are still to come
    if failure is not None:
        raise failure


def _cooldown_of(hold: Hold, hold_at_least: float) -> float:
    """Seconds that the name stays taken after its release, to have been taken for ``hold_at_least`` in all."""
    return max(0.0, hold.since + hold_at_least - now())


def _record(spec: Spec, hold: Hold, cooldown: float) -> None:
    """How long it was taken, for the ``Retry-After`` of those that come later."""
    spec.store.hold_times.record(spec.function, hold.name, now() - hold.since + cooldown)


async def _release(port: Port, hold: Hold, cooldown: float, sent_before: bool) -> Loss | None:
    claim = hold.claim_to_the_end
    if not sent_before:
        try:
            return await port.release(claim, cooldown)
        except BackendUnavailable:
            pass
    loss = await port.release(claim, cooldown)
    if loss is None or loss == "revoked":
        return loss
    # The first release may have been done and its answer lost: then "not yours" is no loss.
    logger.warning(
        "Lock %s: the answer to its release did not come, and it is not held any more. Most likely the release was "
        "done; if the store lost the lock before, the block was not alone to its end.",
        claim.name,
        extra=of_hold("released", hold, reason="unclear"),
    )
    return None


async def cancel_quietly(scope: Scope, port: Port, claim: Claim) -> None:
    """Nothing of this claim stays behind, neither in the queue nor held."""
    try:
        await retry_once(port.cancel, claim)
    except ConfigurationError:
        pass  # a password, a right that is missing: the store has refused the acquisition, too
    except DistLockError as error:
        text = "Lock %s: a claim could not be cancelled, it ends within its lease: %s"
        logger.info(text, claim.name, error, extra=of_scope("error", scope, reason="cancel"))


async def retry_once(verb: Callable[[*Args], Awaitable[T]], *args: *Args) -> T:
    """Ask again, once, if the answer did not come: every verb may be sent twice (law 3)."""
    try:
        return await verb(*args)
    except BackendUnavailable:
        return await verb(*args)
