"""Whether the database answers: while it hangs a request costs milliseconds, and not a time-out each."""

from __future__ import annotations

import logging
from collections.abc import Callable

from ...core.errors import BackendUnavailable, DistLockError
from ...core.runtime import now
from ...core.worker import Worker
from .address import Address

logger = logging.getLogger("distlock_web")

#: Seconds between two questions to a database that refuses at once; one that hangs is waited for anyway.
RETRY_AFTER = 0.1


class Silence:
    """Begins when a request has waited in vain. Then one thread asks until there is an answer, and nobody else does."""

    def __init__(self, address: Address, ask: Callable[[], object]) -> None:
        self._address = address
        self._ask = ask  #: raises ``BackendUnavailable`` while it does not answer
        self._since: float | None = None  #: changed in single steps
        self._worker = Worker("distlock-sql-silent", self._find_out, lambda: self._since is not None)

    def refuse(self) -> None:
        """``BackendUnavailable`` at once where a request would only wait for its time-out."""
        since = self._since
        if since is not None and self._watch():
            raise BackendUnavailable(
                f"{self._address.name} does not answer, for {now() - since:.1f} s now; it is asked again meanwhile."
            )

    def begin(self) -> None:
        if self._since is None:
            self._since = now()
            self._watch()

    def _watch(self) -> bool:
        """Have a thread ask. False, and it is over: none is to be had, and nobody would find out when it answers."""
        if not self._worker.start():
            self._since = None
            return False
        return True

    def end(self) -> None:
        self._since = None

    def _find_out(self) -> float:
        since = self._since
        try:
            self._ask()
        except BackendUnavailable as error:
            logger.debug("%s", error)
            return RETRY_AFTER
        except DistLockError as error:  # an answer all the same: whoever asks next is told
            logger.debug("%s", error)
        except Exception:  # whoever asks next may see it, too: better than that nobody asks any more
            logger.exception("%s was asked whether it answers; that failed in an unexpected way", self._address.name)
        if self._since == since:  # else it has begun anew, after this was asked
            self._since = None
        return 0.0
