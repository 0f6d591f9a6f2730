"""What other programs in this process call the running request: those that name requests, too.

Their id is on their log lines, in their answers and perhaps in a proxy's log. A second id beside it would lead nowhere.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from ..core.request_id import acceptable

#: The module that a neighbour keeps the id in, and how that is asked. One that is not imported names nothing.
_NEIGHBOURS: tuple[tuple[str, Callable[[Any], object]], ...] = (
    ("django_guid.context", lambda module: module.guid.get()),
    ("asgi_correlation_id.context", lambda module: module.correlation_id.get()),
    ("structlog.contextvars", lambda module: module.get_contextvars().get("request_id")),  # django-structlog's
)


def named_in_context() -> str | None:
    """The id of the running request in a neighbour's context variable; None if it has no name."""
    for name, ask in _NEIGHBOURS:
        module = sys.modules.get(name)
        if module is not None:
            try:
                found = usable(ask(module))
            except Exception:  # theirs has changed, or fails: no reason to fail the request
                found = None
            if found is not None:
                return found
    return None


def usable(found: object) -> str | None:
    """What a neighbour says, if it can be an id. It may have taken it from a client as it came."""
    return found if isinstance(found, str) and acceptable(found) else None
