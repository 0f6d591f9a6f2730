"""What is tried: one fault at one step of one scenario, by name; and the strike that brings it there."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple, Self

from distlock_web.core.runtime import now


class Fault(StrEnum):
    """What happens to one message. A connection on which one was lost carries nothing more in that direction."""

    REQUEST_LOST = "request-lost"  #: it never arrives, and nothing says so
    ANSWER_LOST = "answer-lost"  #: it is carried out, and its answer never arrives; of a pushed message, itself
    CUT_BEFORE = "cut-before"  #: the connection breaks, and it was not carried out
    CUT_AFTER = "cut-after"  #: it is carried out, and the connection breaks in place of the answer
    SLOW = "slow"  #: its answer comes late, but in time: meanwhile its sender does something else
    LATE = "late"  #: it arrives when its sender has given up waiting for the answer
    LATER = "later"  #: it arrives when a lease is over, whoever has closed the connection meanwhile
    TWICE = "twice"  #: the server gets it a second time, and the second answer goes nowhere
    STOPPED = "stopped"  #: the process that sent it, or gets it, stands still for one and a half leases
    AWAY = "away"  #: its server is away for all, from here on, for two and a half leases; what it knows it keeps


#: Of a message that the server sends by itself.
OF_PUSHED = (Fault.ANSWER_LOST, Fault.CUT_BEFORE, Fault.LATE, Fault.STOPPED)


#: These are over later.
LASTING = (Fault.LATE, Fault.LATER, Fault.STOPPED, Fault.AWAY)


class Step(NamedTuple):
    """One message: the ``number``th of this kind that this party sends, or gets if it is ``pushed``."""

    party: str
    kind: str  #: of the store's own words; with ``<`` in front: the server sends it by itself
    number: int

    @property
    def pushed(self) -> bool:
        return self.kind.startswith("<")

    def __str__(self) -> str:
        return f"{self.party}:{self.kind}#{self.number}"

    @classmethod
    def read(cls, text: str) -> Self:
        party, _, rest = text.partition(":")
        kind, _, number = rest.rpartition("#")
        return cls(party, kind, int(number))


@dataclass(frozen=True, order=True)
class Combination:
    """``redis/threads/handed/a:acquire#1/late``; without a fault it is the scenario's clean run."""

    way: str
    mode: str
    scenario: str
    step: Step | None = None
    fault: Fault | None = None

    def __str__(self) -> str:
        return "/".join([self.way, self.mode, self.scenario, *([str(self.step), str(self.fault)] if self.step else [])])

    @classmethod
    def read(cls, text: str) -> Self:
        way, mode, scenario, *rest = text.split("/")
        return cls(way, mode, scenario, *((Step.read(rest[0]), Fault(rest[1])) if rest else ()))


class Strike:
    """Counts the messages of all parties of one run, and says when it is the one that the fault is for.

    Whoever carries messages calls ``meets`` for each, in the order of their coming, and does what it answers.
    """

    def __init__(self, step: Step | None, fault: Fault | None, stop: Callable[[str], None]) -> None:
        self.step = step
        self.fault = fault
        self.seen: list[Step] = []
        self.over = True  #: no fault, or it has done what it can do
        self.until = float("-inf")  #: when it was over
        self.struck = False
        self.away: int | None = None  #: the port of a server that is away now
        self.wires: list[Any] = []  #: all of this run
        self._stop = stop
        self._counts: Counter[tuple[str, str]] = Counter()
        self._lock = threading.Lock()

    def meets(self, party: str, kind: str) -> Fault | None:
        with self._lock:
            self._counts[party, kind] += 1
            step = Step(party, kind, self._counts[party, kind])
            self.seen.append(step)
            if step != self.step or self.struck:
                return None
            self.struck, self.over = True, self.fault not in LASTING
            self.until = now()
        if self.fault is Fault.STOPPED:
            self._stop(party)
        return self.fault

    def end(self) -> None:
        """What was late has come, who was stopped goes on."""
        self.until, self.over = now(), True
