"""``min_replicas``: a lock counts only when so many replicas have it.

WAIT is sent behind the script, in the same write, on the same connection: when they have all that was written until
then, or its time is over, it answers how many have.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from ....core.errors import BackendUnavailable
from ....core.runtime import now
from ..scripts import command
from .address import Address
from .errors import ErrorReply, as_error

#: Says of a script's answer whether it gives somebody a lock, so that the replicas have to have it.
GivesLock: TypeAlias = Callable[[Any], bool]

#: Seconds between two requests that have the whole time-out, while too few replicas answer.
PATIENT_EVERY = 1.0
#: The part of the time-out that the others have meanwhile: nobody's request should hang for what is known.
IMPATIENT = 0.1


class TooFewReplicas(BackendUnavailable):
    """The server did what it was asked, and too few replicas have it."""


class Replicas:
    """How many replicas there have to be, and whether they were there lately. Every change is one assignment."""

    def __init__(self, address: Address, doubt: Callable[[], None]) -> None:
        self._address = address
        self._doubt = doubt  #: called where too few answer: they may follow another master by now
        self._missing = False
        self._patient_at = 0.0

    def question(self, timeout: float | None = None) -> bytes:
        """The WAIT, packed. ``timeout`` bounds the request that it belongs to."""
        seconds = self._address.replica_timeout
        if timeout is not None:
            seconds = min(seconds, timeout / 2)
        if self._missing:
            moment = now()
            if moment < self._patient_at:
                seconds *= IMPATIENT
            else:
                self._patient_at = moment + PATIENT_EVERY
        return command("WAIT", self._address.min_replicas, max(1, round(seconds * 1000)))

    def check(self, answer: Any) -> None:
        """``TooFewReplicas`` if the answer to the WAIT says so."""
        if isinstance(answer, ErrorReply):
            raise as_error(answer, self._address)
        minimum = self._address.min_replicas
        if answer >= minimum:
            self._missing = False
            return
        if not self._missing:
            self._missing, self._patient_at = True, now() + PATIENT_EVERY
        self._doubt()
        raise TooFewReplicas(
            f"{self._address.name}: {answer} of the {minimum} replicas asked for by min_replicas confirmed the lock in "
            f"time (OPTIONS: replica_timeout, {self._address.replica_timeout:g} s), so it does not count."
        )
