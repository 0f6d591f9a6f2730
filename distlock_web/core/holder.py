"""Who holds a lock, in words for people: stored beside the token, shown on the admin page, proof of nothing."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from .request_id import current_origin

_HOST = socket.gethostname()
_MAX_FIELD_CHARS = 200  # characters of one field: a path comes from outside and would be stored with every lock


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

    @classmethod
    def current(cls, function: str = "", expire: float = 0.0) -> str:
        """Whoever runs now, in the words that :meth:`loads` reads. Made for every lock that is taken: it is quick."""
        origin = current_origin()
        request_id, path = (origin.request_id, origin.path[:_MAX_FIELD_CHARS]) if origin else ("", "")
        return f"[{_quoted(request_id)},{_quoted(path)},{_constant(function, expire, os.getpid())}]"

    @classmethod
    def loads(cls, text: str) -> HolderInfo:
        """The holder in a store's words; empty where the words are not ours (an older version, another program)."""
        try:
            request_id, path, function, host, pid, expire = json.loads(text)
            return cls(str(request_id), str(path), str(function), str(host), int(pid), float(expire))
        except (ValueError, TypeError):
            return cls()
