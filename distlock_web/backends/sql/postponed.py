"""Claims that cannot be cancelled now, for the database does not answer, or this thread is in a transaction: later."""

from __future__ import annotations

import logging
from collections.abc import Callable

from ...core.backend import Claim
from ...core.errors import DistLockError
from ...core.runtime import now
from ...core.worker import Worker

logger = logging.getLogger("distlock_web")

#: Seconds between two tries.
RETRY = 0.5


class Postponed:
    """A thread while there are such claims. Each is given up when its lease must have ended by itself."""

    def __init__(self, cancel: Callable[[Claim], None]) -> None:
        self._cancel = cancel
        self._claims: dict[str, tuple[Claim, float]] = {}  # by token, with the end of their leases
        self._worker = Worker("distlock-sql-cancel", self._try_all, lambda: bool(self._claims))

    def add(self, claim: Claim) -> None:
        self._claims.setdefault(claim.token, (claim, now() + claim.expire))
        self._worker.start()

    def close(self) -> None:
        self._claims.clear()
        self._worker.stop()

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
