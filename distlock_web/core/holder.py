"""Who holds a lock, in words for people: stored beside the token, shown on the admin page, proof of nothing."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from .request_id import current_origin, request_token

_HOST = socket.gethostname()
_MAX_FIELD_CHARS = 200  # characters of one field: a path comes from outside and would be stored with every lock
_SHOWN_DIGITS = 8  # of the request's token, which has 24: the others stay secret

_quoted: Callable[[str], str] = json.encoder.encode_basestring_ascii


@lru_cache(maxsize=1024)
def _constant(function: str, expire: float, pid: int) -> str:
    return f"{_quoted(function[:_MAX_FIELD_CHARS])},{_quoted(_HOST)},{pid},{expire}"


@dataclass(frozen=True, slots=True)
class HolderInfo:
    request_id: str = ""
    path: str = ""  #: method and path of the request
    function: str = ""  #: that took the lock: a view, a task, a method
    host: str = ""
    pid: int = 0
    expire: float = 0.0  #: the whole of the lease, in seconds: what is left is drawn against it
    #: The beginning of the request's token: the same for all locks of one request (task, process), and for no other's,
    #: which a request id does not promise. No proof of anything.
    request: str = ""

    @classmethod
    def current(cls, function: str = "", expire: float = 0.0) -> str:
        """Whoever runs now, in the words that :meth:`loads` reads. Made for every lock that is taken: it is quick."""
        origin = current_origin()
        constant = _constant(function, expire, os.getpid())
        if origin is None:
            return f'["","",{constant},"{request_token()[:_SHOWN_DIGITS]}"]'
        path = _quoted(origin.path[:_MAX_FIELD_CHARS])
        return f'[{_quoted(origin.request_id)},{path},{constant},"{origin.token[:_SHOWN_DIGITS]}"]'

    @classmethod
    def loads(cls, text: str) -> HolderInfo:
        """The holder in a store's words; empty where the words are not ours (an older version, another program)."""
        try:
            request_id, path, function, host, pid, expire, request = json.loads(text)
            return cls(str(request_id), str(path), str(function), str(host), int(pid), float(expire), str(request))
        except (ValueError, TypeError):
            return cls()

    def describe(self) -> str:
        """In one printable line, for messages and logs; empty if nothing is known."""
        if self == HolderInfo():
            return ""
        what = self.function or self.path or "a process"
        request = f", request {self.request_id}" if self.request_id else ""
        line = f"{what} on {self.host or 'an unknown host'} (pid {self.pid}){request}"
        return line if line.isprintable() else ascii(line)[1:-1]
