"""Claims that cannot be cancelled now, for the database does not answer, or this thread is in a transaction: later."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from ...core.backend import Claim
from ...core.errors import DistLockError
from ...core.runtime import now
from ...core.worker import Worker
from .lease import GRACE, MICROSECONDS

logger = logging.getLogger("distlock_web")

#: Seconds between two tries.
RETRY = 0.5
#: Seconds that a place in the queue outlives two leases: those that one sleeps at most who stands there (``join``).
PLACE_OUTLIVES = GRACE / MICROSECONDS + 5.0
#: Seconds after which the end of the store, or of the program, waits for no further one.
MAX_DELAY = 2.0


class Postponed:
    """A thread while there are such claims. Each is kept until its place in the queue must have ended by itself."""

    def __init__(self, cancel: Callable[[Claim], None]) -> None:
        self._cancel = cancel
        self._claims: dict[str, tuple[Claim, float]] = {}  # by token, with their end
        self._worker = Worker("distlock-sql-cancel", self._try_all, lambda: bool(self._claims), last=self._finish)

    def add(self, claim: Claim) -> None:
        self._claims.setdefault(claim.token, (claim, now() + 2 * claim.expire + PLACE_OUTLIVES))
        self._worker.start()

    def close(self) -> None:
        """Cancel them, as far as the database answers now. Then they are dropped."""
        self._worker.stop()
        self._finish()
        self._claims.clear()

    def _finish(self) -> None:
        until = now() + MAX_DELAY
        while self._claims:
            for token, (claim, _) in list(self._claims.items()):
                if now() < until and self._cancelled(claim):
                    self._claims.pop(token, None)
            if now() >= until:
                break
            time.sleep(min(RETRY, MAX_DELAY) / 5)  # it may answer again, and that is not known yet

    def _try_all(self) -> float:
        """One that cannot be cancelled, for somebody keeps its row locked, is in nobody's way.

        A database that is silent refuses each of them at once.
        """
        for token, (claim, until) in list(self._claims.items()):
            if not self._worker.is_current():
                break  # closed
            if now() >= until or self._cancelled(claim):
                self._claims.pop(token, None)
        return RETRY if self._claims else 0.0

    def _cancelled(self, claim: Claim) -> bool:
        try:
            self._cancel(claim)
        except DistLockError as error:
            logger.debug("Lock %s: a claim could not be cancelled yet: %s", claim.name, error)
            return False
        except Exception:  # it may be about this one alone: the others are tried all the same
            logger.exception("Lock %s: a claim could not be cancelled yet", claim.name)
            return False
        return True
