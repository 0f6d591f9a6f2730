"""The request id at the edge: the header that it travels in, and the bounds of one request."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from functools import cache, partial
from pkgutil import resolve_name
from typing import Any

from ..core.errors import ConfigurationError
from ..core.request_id import MAX_FIELD_CHARS, PROXY_HEADER, Origin, acceptable, current_origin
from ..core.setting import check_plain
from ..locks.request_context import RequestBounds
from .neighbours import named_in_context, usable

logger = logging.getLogger("distlock_web")

# Narrower than RFC 9110's token. No underscore: servers drop such a header, or hand "Req_Id" on as "Req-Id", so that it
# would be accepted here and never arrive. Single hyphens between letters and digits, as in every registered name.
_HEADER = re.compile(r"[A-Za-z0-9]+(-[A-Za-z0-9]+)*", re.ASCII)


def header_name(given: object, setting: str) -> str:
    """The value of ``DISTLOCK_REQUEST_ID_HEADER``, checked. Raises ``ConfigurationError``."""
    if isinstance(given, str) and _HEADER.fullmatch(given):
        return given
    raise ConfigurationError(
        f"{setting} is {given!r}; it has to be the name of a header: letters, digits and hyphens between them."
    )


def environ_key(header: str) -> str:
    """The key of a header in a WSGI environment."""
    return "HTTP_" + header.upper().replace("-", "_")


def proxy_header(*, is_chosen: bool) -> str | None:
    """Where a proxy names the request: read beside our own header, unless the project has chosen that."""
    return None if is_chosen else PROXY_HEADER


def user_hook(given: Any, setting: str) -> Callable[[Any], object] | None:
    """``DISTLOCK_USER``: says of a request whose it is, for the page of held locks. None: it is not set.

    A callable that is given the request, or the dotted path of one. Raises ``ConfigurationError``.
    """
    if given is None:
        return None
    try:
        # With a colon it imports the module as it is named. With dots alone it would hide why that cannot be imported.
        found = given if callable(given) else resolve_name(":".join(given.rsplit(".", 1)))
    except (AttributeError, ImportError, TypeError, ValueError) as error:
        raise ConfigurationError(f"{setting} is {given!r}, which cannot be imported: {error}.") from error
    if not callable(found):
        raise ConfigurationError(f"{setting} is {given!r}, which cannot be called with a request.")
    return check_plain(found, setting)  # type: ignore[no-any-return]


class WebRequestBounds(RequestBounds):
    """One request, of whose header we know: entered by the middleware, and each time that the framework goes on.

    ``user`` says whose it is: asked once, when its first lock is taken. ``path`` says for people what runs, or is a
    function that does, asked for each lock; where the framework tells that later, :func:`note_route`. ``header`` is
    what our header says, ``proxy`` what the proxy's does. ``named`` asks what other code has called the request where
    the framework keeps such things; it may not raise.
    """

    __slots__ = ()

    def __init__(
        self,
        header: str | None,
        path: str | Callable[[], str] = "",
        user: Callable[[], object] | None = None,
        *,
        proxy: str | None = None,
        named: Callable[[], object] | None = None,
    ) -> None:
        own = header if header is not None and acceptable(header) else None
        proxy = usable(proxy) if own is None else None
        origin = Origin.new(own or proxy, path, None if user is None else cache(partial(_words_of_user, user)))
        origin.is_named = proxy is not None
        origin.named = partial(_name_of_neighbour, named, origin.request_id)
        super().__init__(origin)

    @property
    def request_id(self) -> str:
        """A neighbour's, else from the header if that is a fit one, else a fresh one."""
        return self._origin.known_as()

    @property
    def is_named_elsewhere(self) -> bool:
        """Whether other code has named it and answers with that name as it likes: then we add no header of our own."""
        return self._origin.is_named

    def settle(self) -> str:
        """Its answer is made. From here on the id stays: neighbours end now, and may name the thread's next request."""
        request_id = self.request_id
        self._origin.named = None
        return request_id


def _words_of_user(ask: Callable[[], object]) -> str:
    """Whose request it is, where the project wants that, in few words. What ``ask`` raises is logged."""
    try:
        return str(ask() or "")[:MAX_FIELD_CHARS]
    except Exception as error:
        if type(error) not in _told:  # once each: its text may be another one for every request
            _told.add(type(error))
            what = f"{type(error).__name__}: {error}"
            logger.warning("DISTLOCK_USER failed, so the lock has no user: %s", what)
        return ""


_told: set[type[Exception]] = set()


def _name_of_neighbour(named: Callable[[], object] | None, made: str) -> str | None:
    """``made``: the id that we have given the request, where the framework may keep it as a neighbour's."""
    name = None if named is None else usable(named())
    return named_in_context() if name is None or name == made else name


def note_route(method: str | None, route: str) -> None:
    """The running request has been routed: a lock that it takes from now on is shown with its method and route.

    Never with its path, whose values may be secrets: the token of a reset link, of an invitation, of a webhook.
    """
    if (origin := current_origin()) is not None:
        origin.path = f"{method} {route}"
