"""Claims that cannot be cancelled now, for the database does not answer, or this thread is in a transaction: later."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from ...core.backend import Claim
from ...core.errors import DistLockError
from ...core.runtime import now

logger = logging.getLogger("distlock_web")

#: Seconds between two tries.
RETRY = 0.5


class Postponed:
    """A thread while there are such claims. Each is given up when its lease must have ended by itself."""

    def __init__(self, cancel: Callable[[Claim], None]) -> None:
        self._cancel = cancel
        self._claims: dict[str, tuple[Claim, float]] = {}  # by token, with the end of their leases
        self._lock = threading.RLock()  # reentrant: garbage that is collected inside may cancel a claim of its own
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()

    def add(self, claim: Claim) -> None:
        with self._lock:
            self._claims.setdefault(claim.token, (claim, now() + claim.expire))
            self._closed.clear()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="distlock-sql-cancel", daemon=True)
                self._thread.start()

    def close(self) -> None:
        with self._lock:
            self._claims.clear()
            self._closed.set()

    def _run(self) -> None:
        while self._is_wanted():
            self._closed.wait(RETRY)
            for token, (claim, until) in list(self._claims.items()):
                if now() < until and not self._cancelled(claim):
                    break  # nor are the others
                self._claims.pop(token, None)

    def _is_wanted(self) -> bool:
        """In one step: a claim is added either before, and seen here, or after, and begins another thread."""
        with self._lock:
            if not self._claims:
                self._thread = None
            return self._thread is not None

    def _cancelled(self, claim: Claim) -> bool:
        try:
            self._cancel(claim)
        except DistLockError as error:
            logger.debug("Lock %s: a claim could not be cancelled yet: %s", claim.name, error)
            return False
        except Exception:  # the thread has the others to cancel
            logger.exception("Lock %s: a claim could not be cancelled yet", claim.name)
            return False
        return True
