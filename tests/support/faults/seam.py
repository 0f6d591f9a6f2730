"""What is between one party and its driver, where the store is in the process."""

from __future__ import annotations

import time

from .steps import Fault, Strike


class Seam:
    """``meets`` before each call of the driver: it does what takes time, and answers what is left to be done."""

    def __init__(self, party: str, strike: Strike, *, late: float, later: float, stopped: float) -> None:
        self.party, self.strike = party, strike
        self.held = {Fault.LATE: late, Fault.LATER: later}
        self._stopped = stopped
        self._still_until = 0.0

    def meets(self, kind: str) -> Fault | None:
        fault = self.strike.meets(self.party, kind)
        if fault is Fault.STOPPED:
            self._still_until = time.monotonic() + self._stopped
        while (left := self._still_until - time.monotonic()) > 0:  # also for the party's other threads
            time.sleep(left)
        if fault is Fault.STOPPED:
            self.strike.end()
        return fault

    def hold(self, fault: Fault) -> None:
        """What comes late waits here."""
        try:
            time.sleep(self.held[fault])
        finally:
            self.strike.end()
