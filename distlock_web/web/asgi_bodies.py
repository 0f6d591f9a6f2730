"""The body of a request under ASGI, as it comes: what a form says, and what was read ahead of the app."""

from __future__ import annotations

import re
from collections.abc import Callable
from hashlib import sha256
from tempfile import SpooledTemporaryFile
from urllib.parse import unquote_plus

from .asked import MAX_COMPARED, is_field_of_rendering

#: Bytes at the beginning of a field in which its name is looked for.
_HEAD = 8 * 1024
#: Bytes that the app gets at a time of what was read ahead.
_CHUNK = 64 * 1024

_BOUNDARY = re.compile(r'boundary=(?:"([^"]+)"|([^;\s]+))', re.IGNORECASE)
_NAME = re.compile(rb'\bname="([^"]*)"')


class FormPieces:
    """What a form of any length says: a digest of its fields and files, but for those that differ at each rendering.

    Without the boundary between its parts, which is another one for each request.
    """

    def __init__(self, delimiter: bytes, name_in: Callable[[bytes], str]) -> None:
        self._delimiter = delimiter
        self._name_in = name_in
        self._said = sha256()
        self._tail = b""  #: it may be the beginning of a delimiter
        self._piece, self._head = sha256(), b""

    @classmethod
    def of(cls, content_type: str) -> FormPieces | None:
        """None: it is no form."""
        media_type = content_type.partition(";")[0].strip().lower()
        if media_type == "application/x-www-form-urlencoded":
            return cls(b"&", _name_of_field)
        found = _BOUNDARY.search(content_type) if media_type == "multipart/form-data" else None
        return None if found is None else cls(b"--" + (found[1] or found[2]).encode("latin-1"), _name_of_part)

    def add(self, chunk: bytes) -> None:
        *ended, rest = (self._tail + chunk).split(self._delimiter)
        for piece in ended:
            self._more(piece)
            self._end()
        at = max(0, len(rest) - len(self._delimiter) + 1)
        self._more(rest[:at])
        self._tail = rest[at:]

    def digest(self) -> str:
        """When the form is whole."""
        if self._tail or self._head:
            self._more(self._tail)
            self._end()
            self._tail = b""
        return self._said.hexdigest()

    def _more(self, data: bytes) -> None:
        self._piece.update(data)
        self._head += data[: _HEAD - len(self._head)]

    def _end(self) -> None:
        if not self._head and self._name_in is _name_of_field:
            return  # "&&" says nothing, and a body may be full of it
        if not is_field_of_rendering(self._name_in(self._head)):
            self._said.update(self._piece.digest())
        self._piece, self._head = sha256(), b""


def _name_of_field(head: bytes) -> str:
    return unquote_plus(head.partition(b"=")[0].decode("latin-1"))


def _name_of_part(head: bytes) -> str:
    found = _NAME.search(head.partition(b"\r\n\r\n")[0])
    return "" if found is None else found[1].decode("latin-1")


class ReadAhead:
    """What was read of a body before the app asks for it. Of a long one it is in a file."""

    def __init__(self) -> None:
        self._file: SpooledTemporaryFile[bytes] | None = None
        self._put = self._taken = 0

    def __bool__(self) -> bool:
        return self._taken < self._put

    def put(self, chunk: bytes) -> None:
        if self._file is None:
            self._file = SpooledTemporaryFile(MAX_COMPARED)  # noqa: SIM115 - closed with the request
        self._file.seek(self._put)
        self._put += self._file.write(chunk)

    def take(self) -> bytes:
        if self._file is None:
            return b""
        self._file.seek(self._taken)
        chunk = self._file.read(_CHUNK)
        self._taken += len(chunk)
        return chunk

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
