"""Who holds a lock, in words for people: stored beside the token, shown on the admin page, proof of nothing."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import astuple, dataclass

from .request_id import current_origin

_HOST = socket.gethostname()
_LONGEST = 200  # characters of one field: a path comes from a stranger and would be stored with every lock


@dataclass(frozen=True, slots=True)
class Holder:
    request_id: str = ""
    path: str = ""  #: method and path of the request
    what: str = ""  #: the view or function that took the lock
    host: str = ""
    pid: int = 0
    expire: float = 0.0  #: the whole of the lease, in seconds: what is left is drawn against it

    @classmethod
    def current(cls, what: str = "", expire: float = 0.0) -> Holder:
        origin = current_origin()
        request_id, path = (origin.request_id, origin.path) if origin else ("", "")
        return cls(request_id, path[:_LONGEST], what[:_LONGEST], _HOST, os.getpid(), expire)

    def dumps(self) -> str:
        return json.dumps(astuple(self))

    @classmethod
    def loads(cls, text: str) -> Holder:
        """The holder in a store's words; empty where the words are not ours (an older version, a stranger)."""
        try:
            request_id, path, what, host, pid, expire = json.loads(text)
            return cls(str(request_id), str(path), str(what), str(host), int(pid), float(expire))
        except (ValueError, TypeError):
            return cls()
