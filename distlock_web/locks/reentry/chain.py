"""Which scopes the running code is inside of: re-entry follows the call chain, not a thread or a task (law 2).

The chain is the value of one context variable, and immutable: to enter or leave a scope sets a new value, and tasks and
threads that have inherited the old one keep it. That a scope has ended is noted in the scope. The variable is never
reset by its token, for a block may end in another context than it began in. Blocks nest, leases do not: a lease that
was taken by hand is here for blocks to enter, and one that a ``with`` has entered is where that stands, alone.

References are weak, for a lease that no code has any more is over: left to its time (``if lock(...).try_acquire():
...``), it must not make the next job of the same thread a nested one. A ``with`` block that runs is in ``_blocks``.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
import weakref
from collections.abc import Callable
from contextvars import ContextVar
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR
from types import FrameType
from typing import TypeAlias

from ...core.errors import ConfigurationError
from ...core.process import Process, after_fork, check_process
from ...core.registry import Store
from ..hold import Hold
from ..scope import Scope

#: A scope, the chain that it is nested in, and how long the chain is at most. None: inside of no scope.
Chain: TypeAlias = "tuple[weakref.ref[Scope], Chain, int] | None"

#: Inside of no scope.
OUTSIDE: Chain = None

#: When the chain grows past a power of two, from this length on, it is freed of scopes that are over.
_COMPACT_FROM = 64

_chain: ContextVar[Chain] = ContextVar("distlock_chain", default=OUTSIDE)

#: The scopes whose ``with lock(...):`` has not ended yet, of all threads, in the order in which they began. Each
#: operation on it is one step of C.
_blocks: dict[Scope, None] = {}
after_fork(_blocks.clear)  # they go on in the parent; most of their threads are not here

#: Where a block stands whose frame is a call's, and whether that is ``contextlib``'s: an ``ExitStack`` has entered it.
#: Its frame is not kept, as that of a generator or a coroutine is, which stands still and may go on anywhere.
CALLED, STACKED = "called", "stacked"
STANDS_STILL = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR
STACKS = vars(contextlib)

#: The thread that collects garbage just now, before Python 3.12, which collects between two instructions only.
_collecting: int | None = None


def _note_collection(phase: str, _: dict[str, int]) -> None:
    global _collecting
    _collecting = threading.get_ident() if phase == "start" else None


if sys.version_info < (3, 12):
    gc.callbacks.append(_note_collection)


def enter(scope: Scope) -> None:
    """From now on the running code is inside of this scope."""
    chain = _chain.get()
    if chain is not None:
        chain = _current(chain)
    if chain is not None and chain[2] >= _COMPACT_FROM and chain[2].bit_count() == 1:
        chain = _without(chain, None)
    if scope.opener is not None:
        _blocks[scope] = None
    _chain.set((scope.entry or weakref.ref(scope), chain, 1 if chain is None else chain[2] + 1))


def leave(scope: Scope) -> None:
    """The running code is no longer inside of this scope, which has ended, or goes on (under a streaming response)."""
    chain = _chain.get()
    if chain is None:
        return
    if _collecting is not None and _collecting == threading.get_ident():
        # ContextVar.set() may collect garbage whose block ends here. Setting it again would free what the outer call
        # works on: a crash. What has ended is passed over where it is met.
        return
    if scope in _blocks:  # released by hand inside of its block, it stays until the block ends
        return
    if chain[0]() is scope:
        chain = chain[1]
    elif scope.alive:
        chain = _without(chain, scope)
    _chain.set(chain and _current(chain))


def is_inside(scope: Scope) -> bool:
    """Whether the running code is inside of this scope."""
    chain = _chain.get()
    while chain is not None:
        if _inside_by(chain[0]) is scope:
            return True
        chain = chain[1]
    return False


def place_of(frame: FrameType) -> FrameType | str:
    """Where a block stands: in this frame, if that may go on in another context; else in a call."""
    if frame.f_globals is STACKS:
        return STACKED
    return frame if frame.f_code.co_flags & STANDS_STILL else CALLED


def find_block(opener: object, frame: FrameType, closed: bool) -> Scope | None:
    """The scope whose ``with`` block on this object ends here. None: it began in the process that forked this one.

    Several threads, tasks and generators may use one lock object: it is the innermost block of this call chain that
    stands where this one ends. A generator may go on in another context, and be closed in anybody's call chain, by
    garbage collection: ``closed``.
    """
    if frame.f_globals is STACKS:
        place: FrameType | str = STACKED
    else:
        place = frame if frame.f_code.co_flags & STANDS_STILL else CALLED
    chain = None if closed and place is STACKED else _chain.get()
    while chain is not None:
        scope = chain[0]()
        if (
            scope is not None
            and (known := scope.opener) is not None
            and known[1] is place
            and known[0] is opener
            and scope in _blocks
        ):
            return scope
        chain = chain[1]
    return _find_elsewhere(opener, place, closed)


def exit_block(scope: Scope) -> None:
    """Its ``with`` block ends here."""
    _blocks.pop(scope, None)
    scope.opener = None  # it may have a frame, which may have the lease


def _find_elsewhere(opener: object, place: FrameType | str, closed: bool) -> Scope | None:
    """The block ends in another context than it began in, or has begun in another place."""
    blocks = [scope for scope in list(_blocks) if (known := scope.opener) is not None and known[0] is opener]
    here = [scope for scope in blocks if (known := scope.opener) is not None and known[1] is place]
    if here and isinstance(place, FrameType):
        return here[-1]
    blocks = here or blocks
    if closed:  # the innermost of this call chain may be another's that is still inside
        blocks = [scope for scope in blocks if scope.state not in ("held", "unsure")] or blocks
    chain = _chain.get()
    while chain is not None:
        scope = chain[0]()
        if scope is not None and scope in blocks:
            return scope
        chain = chain[1]
    if len(blocks) > 1:
        # Guessing among several live ones could release the lock of one that is still inside.
        blocks = [scope for scope in blocks if not scope.alive]
        if not blocks:
            raise ConfigurationError(
                "Several blocks use one lock object, and one of them ends in another context than it began in: "
                "make a lock(...) for each block."
            )
    if not blocks and not Process.generation:
        raise ConfigurationError("A block on this lock object ends, but it has not begun, or has ended before.")
    return blocks[0] if blocks else None


def innermost_scope() -> Scope | None:
    """The innermost live scope that the running code is inside of."""
    check_process()
    chain = _chain.get()
    while chain is not None:
        scope = _inside_by(chain[0])
        if scope is not None and scope.alive:
            return scope
        chain = chain[1]
    return None


def find_enclosing(
    store: Store, name: str, passes: Callable[[Scope, Hold], bool] | None = None
) -> tuple[Scope, Hold] | None:
    """The innermost live scope of the call chain that holds this name, and its hold. It ``passes`` by those that it
    says so of."""
    chain = _chain.get()
    while chain is not None:
        scope = _inside_by(chain[0])
        if scope is not None and name in scope.spec.names and scope.spec.store is store and scope.alive:
            for hold in scope.holds:
                if hold.claim.name == name and (passes is None or not passes(scope, hold)):
                    return scope, hold
        chain = chain[1]
    return None


def current_chain() -> Chain:
    """The scopes that the running code is inside of, to go back there with :func:`swap_scopes`."""
    return _chain.get()


def swap_scopes(chain: Chain = OUTSIDE) -> Chain:
    """Go inside of these scopes instead of those that the running code was inside of, which are returned.

    A request begins inside of none: a lease that an earlier one left behind in this thread is not its own.
    """
    before = _chain.get()
    if before is not chain:
        _chain.set(chain)
    return before


def _inside_by(reference: weakref.ref[Scope]) -> Scope | None:
    """The scope that one is inside of who has this in his chain. None: it is gone, or was entered elsewhere since."""
    scope = reference()
    return scope if scope is not None and (scope.entry is None or scope.entry is reference) else None


def _counts(reference: weakref.ref[Scope]) -> bool:
    scope = _inside_by(reference)
    return scope is not None and (scope.alive or scope in _blocks)


def _current(chain: Chain) -> Chain:
    """The chain without scopes in front that are over."""
    while chain is not None and not _counts(chain[0]):
        chain = chain[1]
    return chain


def _without(chain: Chain, left: Scope | None) -> Chain:
    """The chain without this scope, and without any that is over."""
    kept: list[weakref.ref[Scope]] = []
    while chain is not None:
        if chain[0]() is not left and _counts(chain[0]):
            kept.append(chain[0])
        chain = chain[1]
    for length, reference in enumerate(reversed(kept), 1):
        chain = (reference, chain, length)
    return chain
