"""Which orders are tried: those with few preemptions first, each of them once.

An order is its beginning, after which each caller runs as long as it can. What was seen of one gives those that differ
from it in one place: there another caller goes on. So a tree is searched, depth first, and no order comes twice. Two
preemptions show nearly every race that there is (Musuvathi and Qadeer, *CHESS*); the others follow at random.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from math import factorial, prod

from .scheduler import Choice

BOUND = 2  #: preemptions, of those that are all tried before any with more


class Search:
    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._waiting: dict[int, list[tuple[int, ...]]] = {0: [()]}

    def next(self) -> tuple[int, tuple[int, ...]] | None:
        """The preemptions of an order, and its beginning; None: all have been tried."""
        left = sorted(cost for cost, beginnings in self._waiting.items() if beginnings)
        if not left:
            return None
        cost = left[0]
        if cost <= BOUND:
            return cost, self._waiting[cost].pop()
        cost = self._random.choice(left)
        beginnings = self._waiting[cost]
        chosen = self._random.randrange(len(beginnings))
        beginnings[chosen], beginnings[-1] = beginnings[-1], beginnings[chosen]
        return cost, beginnings.pop()

    def seen(self, beginning: Sequence[int], choices: Sequence[Choice]) -> None:
        """What the order with this beginning has come to: the places where another one parts from it."""
        cost, taken = 0, tuple(choice.taken for choice in choices)
        for place, choice in enumerate(choices):
            if place >= len(beginning):
                for other in choice.ready:
                    if other != choice.taken:
                        more = cost + choice.is_preemption(other)
                        self._waiting.setdefault(more, []).append((*taken[:place], other))
            cost += choice.preempts


def count(lengths: Sequence[int]) -> int:
    """How many orders there are of callers with so many steps, of which none waits for another one."""
    return factorial(sum(lengths)) // prod(map(factorial, lengths))


def is_serial(choices: Sequence[Choice]) -> bool:
    """Whether each caller has ended before the next one began."""
    taken = [choice.taken for choice in choices]
    blocks = sum(1 for place, each in enumerate(taken) if place == 0 or taken[place - 1] != each)
    return blocks == len(set(taken))
