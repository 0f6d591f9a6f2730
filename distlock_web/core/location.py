"""The text of a ``LOCATION``: the hosts in it, and what a message may show of it."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import urlsplit

#: For messages about a URL that cannot be read.
ENCODED = (
    "in a user name or password / ? # : @ [ ] and % have to be percent-encoded, / as %2F, and behind the ? an @ as %40"
)


def has_stray_at(has_password: bool, place: str, query: str) -> bool:
    """Whether an ``@`` in a query was to end a password, of which ``place``, the hosts and the path, are a part.

    It is a value's where the password stands in front of the place, or no ``:`` with which one begins is in it. A
    place without a path may be the rest of a password with an ``@`` in it: ``user:pass@word?a=b@host``.
    """
    may_be_a_value = place.partition("/")[2] and (has_password or ":" not in place)
    return "@" in query and not may_be_a_value


class Location(NamedTuple):
    """A URL with several hosts, ``scheme://user:password@host:1,host:2/path?query``, in its parts. Nothing is decoded.

    What stands in front of the last ``@`` of the hosts is never a part of one: it may be a password.
    """

    scheme: str
    credentials: str  #: with the ``@`` behind them
    hosts: list[str]  #: some of them may be empty
    path: str  #: without the ``/`` in front of it
    query: str

    @property
    def cut_short(self) -> bool:
        """An ``@`` behind the hosts. It was to end a password with a / ? or # in it, of which the hosts are a part."""
        place = f"{','.join(self.hosts)}/{self.path}"
        in_fragment = "@" in f"{self.credentials}{place}?{self.query}".partition("#")[2]  # a driver's hosts end at a #
        return in_fragment or "@" in self.path or has_stray_at(":" in self.credentials, place, self.query)

    def of_host(self, host: str, scheme: str, path: str) -> str:
        """The URL of one host, under another scheme. An ``@`` in the query is a value's, and encoded in it."""
        query = self.query.replace("@", "%40")  # in front of it may stand less now, with which it was a value's
        return f"{scheme}://{self.credentials}{host}/{path}" + (f"?{query}" if query else "")


def split_location(location: str) -> Location:
    scheme, _, rest = location.partition("://")
    rest, _, query = rest.partition("?")
    authority, _, path = rest.partition("/")
    credentials, at, hosts = authority.rpartition("@")
    return Location(scheme, credentials + at, hosts.split(","), path, query)


def host_and_port(given: str, default: int) -> tuple[str, int] | None:
    """Of ``host``, ``host:port`` or ``[::1]:port``; None: it is none of these."""
    try:
        parts = urlsplit(f"//{given}")
        port = parts.port
    except ValueError:  # a port that is none, a bracket that is not closed
        return None
    if not parts.hostname or parts.netloc != given or "@" in given or given.endswith(":") or port == 0:
        return None
    host = (given if port is None else given.rpartition(":")[0]).removeprefix("[").removesuffix("]")
    return None if "]" in host else (host, default if port is None else port)


def without_credentials(location: str) -> str:
    """A URL as a message may show it. Also one that is wrong, where the password cannot be told from the rest."""
    scheme, mark, rest = location.partition("://") if "://" in location else ("", "", location)
    _, at, place = rest.rpartition("@")  # the last: a password that should have been encoded may have one
    if not at and place.startswith(":"):  # the host and its @ were forgotten
        place = ":***"
    return scheme + mark + ("***@" if at else "") + re.sub(r"(?i)(\w*pass\w*=)[^&]*", r"\1***", place)
