"""Which scopes the running code is inside of: re-entry follows the call chain, not a thread or a task (law 2).

The chain is the value of one context variable, and immutable: to enter or leave a scope sets a new value, and tasks and
threads that have inherited the old one keep it. That a scope has ended is noted in the scope. The variable is never
reset by its token, for a block may end in another context than it began in.

References are weak, for a lease that nobody has any more is nobody's: left to its time (``if lock(...).try_acquire():
...``), it must not make the next job of the same thread a nested one. A ``with`` block that runs is in ``_blocks``.
"""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from contextvars import ContextVar
from typing import TypeAlias

from ..core.errors import ConfigurationError
from ..core.registry import Store
from ..core.runtime import Process, after_fork, check_process
from .hold import Hold
from .scope import Scope

#: A scope, and what it is nested in.
Link: TypeAlias = "tuple[weakref.ref[Scope], Link | None]"


#: By store and name the innermost scope that holds it: found at once, and copied at C's speed.
Holders: TypeAlias = "dict[tuple[Store, str], Link]"

#: The scopes around the running code: the innermost, how many there are at most, and who holds what.
Chain: TypeAlias = "tuple[Link | None, int, Holders]"

#: Inside of no scope.
OUTSIDE: Chain = (None, 0, {})

#: When the chain grows past a power of two, from this length on, it is freed of scopes that are over.
_COMPACT_FROM = 64

_chain: ContextVar[Chain] = ContextVar("distlock_chain", default=OUTSIDE)

#: The scopes whose ``with lock(...):`` has not ended yet, of all threads. Each operation on it is one step of C.
_blocks: set[Scope] = set()
after_fork(_blocks.clear)  # they go on in the parent; most of their threads are not here

#: The thread that collects garbage just now, before Python 3.12, which collects between two instructions only.
_collecting: int | None = None


def _note_collection(phase: str, _: dict[str, int]) -> None:
    global _collecting
    _collecting = threading.get_ident() if phase == "start" else None


if sys.version_info < (3, 12):
    gc.callbacks.append(_note_collection)


def enter(scope: Scope) -> None:
    """From now on the running code is inside of this scope."""
    reference = weakref.ref(scope)
    innermost, length, holders = _chain.get()
    holders, length = holders.copy(), length + 1
    for hold in scope.holds:
        key = (hold.store, hold.claim.name)
        outer = holders.get(key)
        holders[key] = (reference, outer and _current(outer))
    chain: Chain = ((reference, innermost and _current(innermost)), length, holders)
    if length >= _COMPACT_FROM and length & (length - 1) == 0:
        chain = _compacted(chain)
    if scope.opener is not None:
        _blocks.add(scope)
    _chain.set(chain)


def leave(scope: Scope) -> None:
    """The running code is no longer inside of this scope, which has ended, or goes on (under a streaming response)."""
    innermost, length, holders = chain = _chain.get()
    if chain is OUTSIDE:
        return
    if _collecting is not None and _collecting == threading.get_ident():
        # ContextVar.set() may collect garbage whose block ends here. Setting it again would free what the outer call
        # works on: a crash. What has ended is passed over where it is met.
        return
    if scope not in _blocks:  # released by hand inside of its block, it stays until the block ends
        if innermost is not None and innermost[0]() is scope:
            if innermost[1] is None:  # the outermost: nothing is left
                _chain.set(OUTSIDE)
                return
            length -= 1
        innermost = _without(innermost, scope)
    keys = [key for hold in scope.holds if (key := (hold.store, hold.name)) in holders]
    if keys:
        holders = holders.copy()
        for key in keys:
            link = _without(holders[key], scope)
            if link is None:
                del holders[key]
            else:
                holders[key] = link
    _chain.set((innermost, length, holders) if innermost or holders else OUTSIDE)


def is_inside(scope: Scope) -> bool:
    """Whether the running code is inside of this scope."""
    link = _chain.get()[0]
    while link is not None:
        if link[0]() is scope:
            return True
        link = link[1]
    return False


def find_block(opener: object) -> Scope | None:
    """The scope whose ``with`` block on this object ends here. None: it began in the process that forked this one.

    Several threads and tasks may use one lock object: it is the innermost block of this call chain, if there is one.
    """
    link = _chain.get()[0]
    while link is not None:
        scope = link[0]()
        if scope is not None and scope.opener is opener and scope in _blocks:
            break
        link = link[1]
    else:
        scope = _block_of_another_context(opener)
    return scope


def exit_block(scope: Scope) -> None:
    """Its ``with`` block ends here."""
    _blocks.discard(scope)
    if not scope.alive:
        leave(scope)


def _block_of_another_context(opener: object) -> Scope | None:
    """The block ends in another context than it began in, as a generator's may."""
    blocks = [scope for scope in _blocks.copy() if scope.opener is opener]
    if len(blocks) > 1:
        # Guessing among several live ones could release the lock of somebody who is still inside.
        blocks = [scope for scope in blocks if not scope.alive]
        if not blocks:
            raise ConfigurationError(
                "Several blocks use one lock object, and one of them ends in another context than it began in: "
                "make a lock(...) for each block."
            )
    if not blocks and not Process.generation:
        raise ConfigurationError("A block on this lock object ends that has not begun, or has ended before.")
    return blocks[0] if blocks else None


def innermost_scope() -> Scope | None:
    """The innermost live scope that the running code is inside of."""
    check_process()
    return _alive(_chain.get()[0])


def find_enclosing(store: Store, name: str) -> tuple[Scope, Hold] | None:
    """The innermost live scope of the call chain that holds this name, and its hold."""
    link = _chain.get()[2].get((store, name))
    if link is None or (scope := _alive(link)) is None:
        return None
    return scope, next(hold for hold in scope.holds if hold.store is store and hold.name == name)


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


def _counts(scope: Scope | None) -> bool:
    return scope is not None and (scope.alive or scope in _blocks)


def _current(link: Link | None) -> Link | None:
    """The link without scopes in front that are over."""
    while link is not None and not _counts(link[0]()):
        link = link[1]
    return link


def _alive(link: Link | None) -> Scope | None:
    """The innermost scope of the link that is not over."""
    while link is not None:
        scope = link[0]()
        if scope is not None and scope.alive:
            return scope
        link = link[1]
    return None


def _without(link: Link | None, scope: Scope) -> Link | None:
    if link is not None and link[0]() is scope:
        return _current(link[1])
    # Further out, a scope that has ended is passed over where it is met.
    return _linked(_references(link, scope)) if scope.alive else link


def _compacted(chain: Chain) -> Chain:
    innermost, _, holders = chain
    references = _references(innermost)
    holders = {key: current for key, link in holders.items() if (current := _current(link)) is not None}
    return _linked(references), len(references), holders


def _references(link: Link | None, left: Scope | None = None) -> list[weakref.ref[Scope]]:
    """The scopes of the link that are not over, innermost first."""
    found = []
    while link is not None:
        scope = link[0]()
        if scope is not left and _counts(scope):
            found.append(link[0])
        link = link[1]
    return found


def _linked(references: list[weakref.ref[Scope]]) -> Link | None:
    link: Link | None = None
    for reference in reversed(references):
        link = (reference, link)
    return link
