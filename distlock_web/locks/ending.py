"""How a scope ends: once, to completion, and without hiding why (laws 3 and 8).

    the scope was           by                        sent to the store
    ---------------------   -----------------------   ------------------------------------------------------------
    released                ``end``, or by hand       release, of each hold; what fails ends with its lease
    lost                    the same                  cancel, of what an extension may have left
    handed over             ``handover.detach``       detach; if that fails, cancel of both owners
    never begun             ``abort``                 release of what it had; its caller hears what stopped it
    interrupted             any of them               the same again, by the blocking port
    done, with the          ``commit.py``, then       a record, in that transaction, which a loss rolls back; release
    transaction             ``end``
    its parent's            any of them               nothing: this is a fork

What the caller hears of it: docs/architecture.md, "The lease is lost", has one table of all cases.
Whatever comes meanwhile, what was begun is completed (``completion.py``). What cannot be released ends with its lease.

What Python does not allow: a signal's exception can come before the first instruction of ``__exit__``, or of a lease's
``__enter__``, and nothing of ours runs then; nor where a second one comes while we clean up after the first, nor
between ``acquire()`` and the line that keeps its lease. The lock is held until its lease ends; with ``renew``, until
``renew_for`` is over, or the process ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from ..core import integrations
from ..core.backend import Loss, Port, drift
from ..core.errors import BackendUnavailable, DistLockError, LeaseLost, LossReason, NotSent, add_note
from ..core.runtime import TASKS, THREADS, Runtime, drive, now
from . import kept
from .completion import cancel_quietly, note_unreleased, shielded, undo
from .hold import Hold
from .open_transaction import warn_once
from .reentry import chain
from .scope import Scope

logger = logging.getLogger("distlock_web")


async def end(scope: Scope, error: BaseException | None, runtime: Runtime = TASKS, *, by_hand: bool = False) -> None:
    """The scope is over: release what it took, once, whatever happens, and never hide the block's own exception."""
    first = scope.close(runtime)
    chain.leave(scope)
    if not first:
        if by_hand:
            raise scope.over_error()
        return
    # Of a cancellation: no further one is sent, and whatever comes of the release this one is over.
    ours = scope.cancelling is not None and scope.cancelling.take_back(by_hand)
    if scope.keep_for and error is None:
        scope.keep_taken()
    try:
        if scope.acquired:
            await shielded(scope, partial(release_all, scope, success=error is None))
        else:  # it only re-entered: there is nothing to send, so nothing to shield
            scope.let_go()
    except Exception as failure:
        # The work was done under the lock, and the lease ends by itself: no reason to fail the caller.
        if by_hand or not (error or isinstance(failure, DistLockError)):
            raise
        if runtime is THREADS and not isinstance(failure, DistLockError):  # a signal's may come before anything is sent
            await _leave_nothing(scope, failure, success=False)
        note_unreleased(scope, failure, error)
    loss = scope.why_lost
    for hold in scope.acquired:
        if hold.state == "lost":
            loss = hold.lost_error
            break
    if loss is not None:
        _tell_of_loss(scope, loss, error, by_hand, ours)
    elif error is None and integrations.installed.open_transactions:
        warn_once(scope)


def _tell_of_loss(
    scope: Scope, why: Callable[..., LeaseLost], error: BaseException | None, by_hand: bool, ours: bool
) -> None:
    """``ours``: the loss alone has cancelled the block, so ``LeaseLost`` is said in place of the cancellation."""
    unrecorded = " Its run is not recorded as done: the next call may run again."
    loss = why(unrecorded if scope.record_is_missing else "")
    fields = scope.log_fields("lost", reason=loss.reason)
    if error is None:
        if by_hand or scope.spec.on_lost in ("raise", "cancel"):
            raise loss
        logger.warning("%s Its block has finished all the same.", loss, extra=fields)
    elif isinstance(error, asyncio.CancelledError) and ours:
        raise loss from error
    elif not isinstance(error, LeaseLost):
        add_note(error, "%s", loss, fields=fields)


def end_now(scope: Scope, error: BaseException | None, *, by_hand: bool = False) -> None:
    """:func:`end` for blocking callers: a signal's exception anywhere in it does not leave the lock held."""
    try:
        drive(end(scope, error, THREADS, by_hand=by_hand))
    except DistLockError:
        raise
    except BaseException as interruption:
        scope.runtime = THREADS
        drive(_leave_nothing(scope, interruption, success=error is None))
        raise


async def abort(scope: Scope, error: BaseException, *, success: bool = False) -> None:
    """The block does not begin, or its end was interrupted: nothing of it stays. The caller raises ``error`` then."""
    chain.exit_block(scope)
    await _leave_nothing(scope, error, success=success)


async def _leave_nothing(scope: Scope, error: BaseException, *, success: bool) -> None:
    scope.close(scope.runtime)
    chain.leave(scope)
    if success and scope.keep_for:
        scope.keep_taken()
    scope.let_go()
    if scope.acquired:
        await undo(error, scope, partial(release_all, scope, success=success))


# What is sent -------------------------------------------------------------------------------------------------------


async def release_all(scope: Scope, port: Port, success: bool) -> None:
    """Release every acquired hold, the last one first, and leave the re-entered ones; then raise the first failure.

    An error that is not ours, a bug's or a signal's, goes before any of ours: of a block's end ours are only logged.

    Called again, it goes on where it was interrupted, and tries again what has failed with another error than ours.
    """
    scope.let_go()
    failures: list[Exception] = []
    for hold in reversed(scope.acquired):
        failed: DistLockError | None = None
        try:
            if not (begun := hold.begin_release()):
                if (claim := hold.to_cancel) is not None:
                    await cancel_quietly(scope, [claim], port)
                    hold.cancelled()
                continue
            keeps = scope.keep_for or hold.keep_until
            cooldown, record = kept.at_release(scope, hold, success) if keeps else (0.0, None)
            loss = await _release(port, hold, cooldown, record, sent_before=begun == "again")
        except Exception as error:
            failures.append(error)
            if not isinstance(error, DistLockError):  # the others are not kept for it
                continue
            failed = error
            loss = "unreachable" if now() >= hold.deadline else None
        if loss is not None and not hold.recorded:  # else its holder now has found the record, or cannot commit
            hold.lose(loss)
        else:
            hold.released("unreachable" if failed else "")
        if failed is not None:
            hold.tell_of_failure("release", failed)
        if success and loss is None:  # for the ``Retry-After`` of those that come later
            taken = now() - hold.since + (cooldown if record is None else 0.0)
            scope.spec.store.hold_times.note(scope.spec.function, hold.claim.name, taken)
    if failures:
        raise min(failures, key=lambda error: isinstance(error, DistLockError))  # of two such the first


async def _release(port: Port, hold: Hold, cooldown: float, record: str | None, sent_before: bool) -> LossReason | None:
    args = (hold.claim_to_the_end, cooldown, *(() if record is None else (record,)))  # not every store has records
    begun = now()
    if not sent_before:
        try:
            return await port.release(*args)
        except BackendUnavailable as error:
            if isinstance(error, NotSent):
                if not cooldown:  # the store goes on with it when it can
                    raise
                return await port.release(*args)  # nothing of the first was done, so what is said now is so
    return await _release_again(port, hold, args, begun, logging.INFO if sent_before else logging.WARNING)


async def _release_again(port: Port, hold: Hold, args: tuple[Any, ...], begun: float, level: int) -> Loss | None:
    loss: Loss | None = await port.release(*args)
    cooldown: float = args[1]
    there_until = begun + cooldown - drift(cooldown)  # had the first been done
    if loss is None or loss == "revoked" or now() < there_until:
        return loss
    # The first release may have been done and its answer lost: then "not yours" is no loss. Where a cancellation has
    # interrupted it, it was nearly always done. Where an unexpected error has (a driver's executor that was shut down),
    # perhaps nothing was sent, and a loss is passed over: the error does not say.
    text = (
        "Lock %s: the answer to its release was lost, and it is no longer held. Most likely it was released. If the "
        "store had lost it before, the block was not alone until its end."
    )
    logger.log(level, text, hold.name, extra=hold.log_fields("released", reason="unclear"))
    return None
