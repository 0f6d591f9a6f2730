"""``once`` in a view: who asks for what. A digest of that is in the record, and only the same gets the answer.

The rules that no framework owns. A framework brings the values of its request.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from hashlib import sha256
from typing import Protocol

#: Bytes of a request's body that are compared. A larger one is the view's alone, which may read it in pieces.
MAX_COMPARED = 2_621_440
#: Headers that say who a program is: of a request that has no user.
CREDENTIALS = ("Authorization", "X-Api-Key")
#: Fields of forms that differ from one rendering of a form to the next, whatever is filled in.
_OF_RENDERING = frozenset({"csrfmiddlewaretoken", "csrf_token"})

#: Bytes that are read of a file at a time.
_CHUNK = 64 * 1024


def digest_of(*parts: str | bytes) -> str:
    """A digest that no other sequence of parts has (SHA-256)."""
    digest = sha256()
    for part in parts:
        data = part if isinstance(part, bytes) else part.encode("utf-8", "surrogatepass")
        digest.update(b"%d:" % len(data))
        digest.update(data)
    return digest.hexdigest()


class Upload(Protocol):
    """An open file of a form."""

    def read(self, size: int, /) -> bytes: ...
    def seek(self, offset: int, /) -> object: ...
    def tell(self) -> int: ...


def form_parts(
    fields: Iterable[tuple[str, Iterable[str]]], files: Iterable[tuple[str, str | None, Upload]]
) -> Iterator[str]:
    """What a form says, in place of its body: the boundary between its parts is another one for each request.

    ``files``: field, name and content of each. It is left where it was found, for the view reads it, too.
    """
    for name, values in fields:
        if name not in _OF_RENDERING:
            yield json.dumps([name, *values])
    for name, file_name, upload in files:
        yield json.dumps([name, file_name, _content(upload)])


def _content(upload: Upload) -> str:
    """A digest of a file's content; "" of one that cannot be read twice."""
    try:
        place = upload.tell()
        upload.seek(place)
    except (AttributeError, OSError, ValueError):  # an upload handler of the project's own has sent it elsewhere
        return ""
    digest = sha256()
    while chunk := upload.read(_CHUNK):
        digest.update(chunk)
    upload.seek(place)
    return digest.hexdigest()


def is_comparable(length: int | None) -> bool:
    """Whether a body that is no form, and has so many bytes, is compared; None: who sends it does not say."""
    return length is not None and length <= MAX_COMPARED


def is_form(media_type: str) -> bool:
    """Whether a body of this type is a form, which the framework reads."""
    return media_type in ("application/x-www-form-urlencoded", "multipart/form-data")
