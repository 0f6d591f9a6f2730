"""A held lock as the admin page's templates show it."""

from __future__ import annotations

import math
import time
from datetime import UTC, date, datetime

from django.conf import settings
from django.utils.http import urlencode
from django.utils.timezone import localtime
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from ..web.held_locks import LockRow
from ..web.printable import printable

STATES = {
    "held": _("held"),
    "cooldown": _("cooldown"),
    "transit": _("in transit"),
}


class LockPresenter:
    """One held lock in words and numbers to show. Its texts are printable; a template escapes them."""

    def __init__(self, row: LockRow, search: str = "") -> None:
        lock, holder = row.lock, row.holder
        self.store = row.alias
        self.name = printable(lock.name)
        self.exact_name = lock.name  #: as the store has it
        self.fence = None if lock.fence is None else str(lock.fence)  #: not a number that a template groups by digits
        self.waiters = lock.waiters
        self.state = STATES.get(lock.state, lock.state)
        self.path, self.function, self.request_id = holder.path, holder.function, holder.request_id
        self.host, self.pid = holder.host, str(holder.pid)
        self.since = _moment(lock.since) if lock.since else None
        self.key = f"{row.alias}/{lock.name}/{lock.fence}"
        chosen = {"store": row.alias, "name": lock.name, "fence": str(lock.fence)}
        #: The query of the page that releases it.
        self.query = urlencode({**chosen, "q": search} if search else chosen)
        self._since, self._remaining, self._expire = lock.since, lock.remaining, holder.expire

    @property
    def today(self) -> bool:
        return self.since is not None and _date(self._since) == _date(time.time())

    @property
    def age(self) -> str:
        """How long it has been held, as two units at most."""
        return _span(time.time() - self._since)

    @property
    def left(self) -> str:
        return _span(self._remaining)

    @property
    def percent(self) -> int:
        """What is left of the lease: 0 to 100."""
        whole = self._expire if 0 < self._expire < math.inf else self._remaining
        return min(100, max(0, round(100 * self._remaining / whole))) if whole > 0 else 0

    @property
    def urgency(self) -> str:
        return "low" if self.percent <= 20 else "middle" if self.percent <= 50 else "high"


def _moment(since: float) -> datetime:
    """In the terms that template filters show in local time: naive where the project has no time zones."""
    moment = datetime.fromtimestamp(since, UTC)
    return moment if settings.USE_TZ else moment.astimezone().replace(tzinfo=None)


def _date(seconds: float) -> date:
    moment = _moment(seconds)
    return (localtime(moment) if settings.USE_TZ else moment).date()


def _span(seconds: float) -> str:
    """A length of time in its two largest units: ``7 s``, ``2 min 5 s``, ``3 h 10 min``."""
    whole = max(0, math.floor(seconds))
    if whole < 60:
        return gettext("%d s") % whole
    if whole < 3600:
        return gettext("%(minutes)d min %(seconds)d s") % {"minutes": whole // 60, "seconds": whole % 60}
    if whole < 86400:
        return gettext("%(hours)d h %(minutes)d min") % {"hours": whole // 3600, "minutes": whole % 3600 // 60}
    days = whole // 86400
    return ngettext("%(days)d day %(hours)d h", "%(days)d days %(hours)d h", days) % {
        "days": days,
        "hours": whole % 86400 // 3600,
    }
