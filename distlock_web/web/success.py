"""Whether a response says that the work was done: then ``hold_at_least`` keeps the lock."""

from __future__ import annotations

import re

_NEXT = re.compile(r"[^#]*\?(?:[^#]*&)?next=")
_ORIGIN = re.compile(r"(?:\w+:)?//[^/?#]*")


def is_failure(status: int, location: str | None = None, login_page: str = "", *, is_for_others: bool = False) -> bool:
    """Whether a response is an error (4xx, 5xx), or a redirect to the login page.

    ``is_for_others``: and whether it is nothing that others may be told. A 304 is for who has the page already, for
    whom a decorator may have made it without the view.

    That is one to ``login_page``, or one whose address names where to come back to: ``?next=/orders/7``. Without this a
    single anonymous request would keep everybody out for as long as the work itself does. A login page at "/" tells
    nothing: that is also where a success leads.
    """
    if status >= 400 or (status == 304 and is_for_others):
        return True
    if not 300 <= status < 400 or not location:
        return False
    page, login = (_ORIGIN.sub("", re.split("[?#]", each)[0], count=1) for each in (location, login_page))
    return _NEXT.match(location) is not None or (page == login and login not in ("", "/"))
