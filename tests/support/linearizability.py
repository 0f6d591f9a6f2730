"""Whether a lock's history is one that a lock can have, by Porcupine's rules.

Each call takes effect at one moment between its beginning and its answer. There has to be an order of these moments in
which a lock that one can have at a time gives the same answers. A call without an answer may have taken effect, or not.

All orders are looked at together: the states in which the lock may be, each with the calls that have taken effect there
and are not answered yet. Where no state is left, no order explains the answer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import reduce
from typing import Literal, NamedTuple, TypeAlias

from distlock_web.core.backend import at_once

#: take: it was given to the caller. busy: somebody else had it. free: its holder had it no more. ghost: a call without
#: an answer, or with copies that may still arrive. It may have the lock meanwhile, again and again, and not at its end.
What: TypeAlias = Literal["take", "busy", "free", "ghost"]


@dataclass(frozen=True, slots=True, eq=False)
class Operation:
    """One call on one lock, between two moments. ``owner``: a number for each acquisition; of ghosts it is negative."""

    what: What
    owner: int
    begin: float
    end: float
    text: str = ""
    limit: int = 1  #: how many may have the lock, as far as this one is concerned


class _State(NamedTuple):
    owner: int | None
    done: frozenset[Operation]


def unexplained(operations: Iterable[Operation]) -> str | None:
    """The text of a refusal at no moment of which all others together could have left its caller no room; or None.

    For locks that several have at a time. It looks at no order: each of the others may have had the lock, or have stood
    in front, for as long as that is possible at all.
    """
    spans: dict[int, Operation] = {}
    refusals: list[Operation] = []
    for each in operations:
        if each.what == "busy":
            refusals.append(each)
        else:
            known = spans.get(each.owner, each)
            spans[each.owner] = replace(each, begin=min(known.begin, each.begin), end=max(known.end, each.end))
    for busy in refusals:
        others = [
            span for span in spans.values()
            if span.owner != busy.owner and span.begin <= busy.end and busy.begin <= span.end
        ]  # fmt: skip
        moments = [max(span.begin, busy.begin) for span in others]
        beside = ([span.limit for span in others if span.begin <= moment <= span.end] for moment in moments)
        if not any(len(limits) >= reduce(at_once, limits, busy.limit) for limits in beside):
            return busy.text
    return None


def impossible(operations: Iterable[Operation]) -> str | None:
    """The text of the first operation that no order explains; None: there is an order."""
    moments: list[tuple[float, bool, Operation]] = []
    for each in operations:
        moments += [(each.begin, False, each), (each.end, True, each)]
    pending: list[Operation] = []
    states = {_State(None, frozenset())}
    for _, over, operation in sorted(moments, key=lambda moment: moment[:2]):
        if not over:
            pending.append(operation)
            continue
        # A ghost that ends may have been what a call met that is not answered yet.
        met = any(each.what == "busy" for each in pending)
        if operation.what != "ghost" or met or any(state.owner == operation.owner for state in states):
            states = _reachable(states, pending)
        pending.remove(operation)
        if operation.what == "ghost":
            states = {state for state in states if state.owner != operation.owner}
        else:
            states = {_State(owner, done - {operation}) for owner, done in states if operation in done}
        if not states:
            return operation.text
    return None


def _reachable(states: set[_State], pending: list[Operation]) -> set[_State]:
    """These, and those that pending calls lead to."""
    found: set[_State] = set()
    todo = list(states)
    refusals = [operation for operation in pending if operation.what == "busy"]
    # The ghost that stays longest can do all that others can, but refuse its own call: hence two of them.
    ghosts = sorted((each for each in pending if each.what == "ghost"), key=lambda each: each.end)[-2:]
    while todo:
        owner, done = todo.pop()
        if owner is not None:
            done |= {each for each in refusals if each.owner != owner}  # as soon as it can be: nothing is lost by it
        if (state := _State(owner, done)) in found:
            continue
        found.add(state)
        if owner is None:
            todo += [_State(ghost.owner, done) for ghost in ghosts]
        elif owner < 0:
            todo.append(_State(None, done))
        for operation in pending:
            if operation in done:
                continue
            if operation.what == "take" and owner is None:
                todo.append(_State(operation.owner, done | {operation}))
            elif operation.what == "free" and owner == operation.owner:
                todo.append(_State(None, done | {operation}))
    return found
