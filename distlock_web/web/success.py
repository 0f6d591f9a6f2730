"""Whether a response says that the work was done: then ``hold_at_least`` keeps the lock."""

from __future__ import annotations

import re

_NEXT = re.compile(r"[^#]*\?(?:[^#]*&)?next=")
_ORIGIN = re.compile(r"(?:\w+:)?//[^/?#]*")


def is_failure(status: int, location: str | None = None, login_page: str = "") -> bool:
    """Whether a response is an error (4xx, 5xx), or a redirect to the login page.

    That is one to ``login_page``, or one whose address names where to come back to: ``?next=/orders/7``. Without this a
    single anonymous request would keep everybody out for as long as the work itself does.
    """
    if status >= 400:
        return True
    if not 300 <= status < 400 or not location:
        return False
    page = _ORIGIN.sub("", re.split("[?#]", location)[0], count=1)
    return _NEXT.match(location) is not None or (login_page != "" and page == _ORIGIN.sub("", login_page, count=1))
