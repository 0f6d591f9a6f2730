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

from ..web.held_locks import LockRow, printable

STATES = {
    "held": _("held"),
    "cooldown": _("cooldown"),
    "transit": _("in transit"),
}


class LockPresenter:
    def __init__(self, row: LockRow, search: str = "") -> None:
        self.row = row
        self.alias = row.alias
        self.lock = row.lock
        self.holder = row.holder
        self.name = printable(row.lock.name)
        self.state = STATES.get(row.lock.state, row.lock.state)
        self.since = _moment(row.lock.since) if row.lock.since else None
        self.id = f"{row.alias}/{row.lock.name}/{row.lock.fence}"
        chosen = {"store": row.alias, "name": row.lock.name, "fence": str(row.lock.fence)}
        self.query = urlencode({**chosen, "q": search} if search else chosen)

    @property
    def today(self) -> bool:
        return self.since is not None and _date(self.lock.since) == _date(time.time())

    @property
    def age(self) -> str:
        """How long it has been held, as two units at most."""
        return _span(time.time() - self.lock.since)

    @property
    def left(self) -> str:
        return _span(self.lock.remaining)

    @property
    def percent(self) -> int:
        """What is left of the lease: 0 to 100."""
        expire = self.holder.expire
        whole = expire if 0 < expire < math.inf else self.lock.remaining
        return min(100, max(0, round(100 * self.lock.remaining / whole))) if whole > 0 else 0

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
