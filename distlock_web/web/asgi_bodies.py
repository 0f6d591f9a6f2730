"""The body of a request under ASGI, as it comes: what a form says, and what was read ahead of the app."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from tempfile import SpooledTemporaryFile
from urllib.parse import unquote_plus

from ..core.errors import ConfigurationError
from .asked import MAX_COMPARED, is_field_of_rendering

#: Bytes at the beginning of a field in which its name is looked for.
_HEAD = 8 * 1024
#: Pieces that are looked at one by one. What is after them counts as one piece: a body of little else than separators
#: would keep the event loop busy for seconds.
_MAX_PIECES = 10_000
#: Bytes that the app gets at a time of what was read ahead.
_CHUNK = 64 * 1024

_BOUNDARY = re.compile(r';\s*boundary=(?:"([^"]+)"|([^;\s]+))', re.IGNORECASE)
#: In quotes or without. Not in what is in quotes itself, such as the name of a file.
_NAME = re.compile(
    rb'^content-disposition:(?:[^"\r\n]|"(?:[^"\\\r\n]|\\.)*")*?;[ \t]*name=(?:"([^"\r\n]*)"|([^";\s]*))',
    re.IGNORECASE | re.MULTILINE,
)


class FormPieces:
    """What a form of any length says: a digest of its fields and files, but for those that differ at each rendering.

    Without the boundary between its parts, which is another one for each request.
    """

    def __init__(self, delimiter: bytes, name_in: Callable[[bytes], str]) -> None:
        self._delimiter = delimiter
        self._name_in = name_in
        self._said = sha256()
        self._left = _MAX_PIECES
        self._tail = b""  #: it may be the beginning of a delimiter
        self._begin()

    @classmethod
    def of(cls, content_type: str) -> FormPieces | None:
        """None: it is no form."""
        media_type = content_type.partition(";")[0].strip().lower()
        if media_type == "application/x-www-form-urlencoded":
            return cls(b"&", _name_of_field)
        found = _BOUNDARY.search(content_type) if media_type == "multipart/form-data" else None
        return None if found is None else cls(b"--" + (found[1] or found[2]).encode("latin-1"), _name_of_part)

    def add(self, chunk: bytes) -> None:
        *ended, rest = (self._tail + chunk).split(self._delimiter, self._left)
        for piece in ended:
            self._more(piece)
            self._end()
            self._left -= 1
        at = max(0, len(rest) - len(self._delimiter) + 1)
        self._more(rest[:at])
        self._tail = rest[at:]

    def digest(self) -> str:
        """When the form is whole."""
        self._more(self._tail)
        self._tail = b""
        self._end()
        return self._said.hexdigest()

    def _begin(self) -> None:
        self._length, self._head = 0, b""
        self._counts: bool | None = None  #: known when its name is

    def _more(self, data: bytes) -> None:
        self._length += len(data)
        if self._counts is None:
            self._head += data
            if len(self._head) >= _HEAD:
                self._look()
        elif self._counts:
            self._said.update(data)

    def _end(self) -> None:
        if self._length:  # "&&" says nothing
            if self._counts is None:
                self._look()
            if self._counts:
                # Behind each piece its length: else "a=1" and "2" would be "a=12".
                self._said.update(self._length.to_bytes(8, "big"))
            self._begin()

    def _look(self) -> None:
        # All that comes after the last piece that is looked at counts, whatever the name at its beginning.
        self._counts = not self._left or not is_field_of_rendering(self._name_in(self._head[:_HEAD]))
        if self._counts:
            self._said.update(self._head)
        self._head = b""


def _name_of_field(head: bytes) -> str:
    return unquote_plus(head.partition(b"=")[0].decode("latin-1"))


def _name_of_part(head: bytes) -> str:
    found = _NAME.search(head.partition(b"\r\n\r\n")[0])
    return "" if found is None else (found[1] or found[2] or b"").decode("latin-1")


class ReadAhead:
    """What was read of a body before the app asks for it. Of a long one it is in a file."""

    def __init__(self) -> None:
        self._file: SpooledTemporaryFile[bytes] | None = None
        self._put = self._taken = 0
        self._failed: OSError | None = None

    def __bool__(self) -> bool:
        return self._taken < self._put or self._failed is not None

    def put(self, chunk: bytes) -> None:
        with self._remembering():
            if self._file is None:
                self._file = SpooledTemporaryFile(MAX_COMPARED)  # noqa: SIM115 - closed with the request
            self._file.seek(self._put)
            self._put += self._file.write(chunk)

    def take(self) -> bytes:
        with self._remembering():
            if self._file is None:
                return b""
            self._file.seek(self._taken)
            chunk = self._file.read(_CHUNK)
            if not chunk and self._taken < self._put:  # the app would be given nothing for ever
                raise OSError("less can be read than was written")
        self._taken += len(chunk)
        return chunk

    def check(self) -> None:
        """Raise ``ConfigurationError`` if a chunk was lost: who reads on would get a body with a hole."""
        if self._failed is not None:
            raise ConfigurationError(
                f"once cannot keep a long body until its view reads it: the temporary directory has failed "
                f"({self._failed}). The process needs one that it can write to, and that has room: set TMPDIR."
            ) from self._failed

    @contextmanager
    def _remembering(self) -> Iterator[None]:
        self.check()
        try:
            yield
        except OSError as error:
            self._failed = error
            self.check()

    def close(self) -> None:
        if self._file is not None:
            with suppress(OSError):  # what it still has to write is for nobody
                self._file.close()
