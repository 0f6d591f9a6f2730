"""``once`` in a view: who asks for what. A digest of that is in the record, and only the same gets the answer.

The rules that no framework owns. A framework brings the values of its request. What is not known is refused: a guess
would show one caller what another one was answered.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from hashlib import sha256
from typing import Any, NamedTuple

from ..core.errors import ConfigurationError, KeyUnavailable
from ..core.keys import text_of
from ..locks.hooks import Asked

#: Bytes of a request's body that are compared. A larger one is the view's alone, which may read it in pieces.
MAX_COMPARED = 2_621_440
#: Headers that say who a program is: of a request that has no user.
CREDENTIALS = ("Authorization", "X-Api-Key")
#: Fields of forms that differ from one rendering of a form to the next, whatever is filled in.
_OF_RENDERING = ("csrfmiddlewaretoken", "csrf_token")
#: What WTForms has between the prefix of a form and the name of a field.
_AFTER_PREFIX = "-_;:/."

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


def asked_by(
    who: Iterable[str], where: Iterable[str | bytes], body: Iterable[str | bytes], *, before: Iterable[str]
) -> Asked:
    """Who asks for what. ``before``: who and where in format 1."""
    sent = list(body)
    return Asked(digest_of(*who, *where, *sent), digest_of(*before, *_body_before(sent)))


def _body_before(sent: list[str | bytes]) -> Iterator[str | bytes]:
    """The same body in format 1: without a word for its kind, nor the media types of files."""
    if sent and sent[0] in ("body", "length", "data"):
        yield from sent[1:]
        return
    for part in sent:
        match json.loads(part):
            case ["field", *said]:
                yield json.dumps(said)
            case ["file", field, name, _media_type, digest]:
                yield json.dumps([field, name, digest])
            case _:  # as a parser of the project's own has made it
                yield part


# Who ------------------------------------------------------------------------------------------------------------------


def user_parts(user: Any, ident: object) -> tuple[str, ...]:
    """A user who is logged in: of this class, for two classes may number their users alike."""
    kind = user.__class__  # of what a lazy object stands for
    name = f"{kind.__module__}.{kind.__qualname__}"
    if ident is None:
        raise ConfigurationError(
            f"once does not know who asks: the user of this request is a {name}, which does not say who it is. "
            f"A user needs `is_authenticated`, and if that is true `pk` (Django), `get_id()` (Flask-Login) or "
            f"`identity`, `id`, `pk` or `username` (Starlette)."
        )
    return "user", name, str(ident)


def logged_in(user: Any, ident: Callable[[Any], object]) -> tuple[str, ...] | None:
    """The user of a request, by what ``ident`` finds; None: no user is logged in.

    A user object that does not say whether it is logged in stands for no user: that is refused.
    """
    # Not `is None`: a lazy object may stand for None.
    if isinstance(user, type(None)) or not getattr(user, "is_authenticated", True):
        return None
    return user_parts(user, ident(user) if hasattr(user, "is_authenticated") else None)


def nameless(auth: object) -> ConfigurationError:
    """For what a framework knows a program by, where it has no stable text: two programs would be one caller."""
    return ConfigurationError(
        f"once does not know who asks: request.auth is a {type(auth).__name__}, which does not say who it is. "
        f"What authenticates has to give a text or a row (the id of the client, its token), or set request.user."
    )


def content_of(session: Iterable[tuple[str, object]], *messages: str) -> str:
    """What a session in a cookie says, which has no other name; but for ``messages``, which are shown once."""
    said = {name: value for name, value in session if name not in messages}
    return json.dumps(said, default=_with_type, sort_keys=True)


def _with_type(value: object) -> dict[str, str]:
    return {f"{type(value).__module__}.{type(value).__qualname__}": str(value)}


# For what: a body -----------------------------------------------------------------------------------------------------


class File(NamedTuple):
    """A file of a form."""

    field: str
    name: str | None
    media_type: str | None
    content: Any  #: it is open, and read from its beginning


def whole_body(body: bytes | int) -> Iterator[str | bytes]:
    """A body that is no form; of one that is too long to be compared (:data:`MAX_COMPARED`), its length alone."""
    yield from ("length", str(body)) if isinstance(body, int) else ("body", body)


def is_form(media_type: str) -> bool:
    """Whether a body of this type is a form, which the framework reads."""
    return media_type in ("application/x-www-form-urlencoded", "multipart/form-data")


def form_parts(
    fields: Iterable[tuple[str, Iterable[Any]]], files: Iterable[File], of_rendering: tuple[str, ...] = ()
) -> Iterator[str]:
    """What a form says, in place of its body: the boundary between its parts is another one for each request.

    ``of_rendering``: the project's own names of fields that differ from one rendering to the next.
    """
    for name, values in fields:
        if not is_field_of_rendering(name, of_rendering):
            yield json.dumps(["field", name, *values], default=_of_no_json)
    for file in files:
        yield json.dumps(["file", file.field, *_said_of(file)])


def is_field_of_rendering(name: str, others: tuple[str, ...] = ()) -> bool:
    """Also in a form that has a prefix, for there are several on its page."""
    return name.endswith(_endings(others)) or name in _OF_RENDERING or name in others


@lru_cache
def _endings(others: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"{after}{field}" for field in (*_OF_RENDERING, *others) for after in _AFTER_PREFIX)


def _said_of(file: File) -> list[str | None]:
    return [file.name, file.media_type, _digest_of_content(file)]


def _digest_of_content(file: File) -> str:
    """It is left where it was found, for the view reads it, too. An earlier reader has left it at its end."""
    content = file.content
    try:
        place = content.tell()
        content.seek(0)
    except (AttributeError, OSError, ValueError) as error:  # an upload handler has sent it elsewhere, or it is closed
        raise ConfigurationError(
            f"once cannot compare the file {file.field!r} of this form: a {type(content).__name__} that cannot be read "
            f"twice ({error}). Use an upload handler that keeps the file, or put once on a function that the view "
            f"calls, with a digest of the file in its key."
        ) from error
    digest = sha256()
    while chunk := content.read(_CHUNK):
        digest.update(chunk)
    content.seek(place)
    return digest.hexdigest()


def was_sent_empty(length: int | None, media_type: str, boundary: str) -> bool:
    """Whether a form of so many bytes, or of an unknown length, can have no fields.

    Of a form that was sent empty, as a script's ``new FormData()``, there is the line that ends it.
    """
    ends = len(f"\r\n--{boundary}--\r\n") if media_type == "multipart/form-data" else 0
    return length is not None and length <= ends


def emptied(how: str) -> KeyUnavailable:
    """For a form that was not sent empty, and has no fields: it was looked at after other code had read it.

    ``how``: the way to read a body that keeps it.
    """
    return KeyUnavailable(f"once cannot compare this form: no field of it could be read. {_remedy(how)}")


def read_before(how: str) -> ConfigurationError:
    """For a body that was read as a stream before it could be compared."""
    return ConfigurationError(f"once cannot compare the body of this request: it is no longer there. {_remedy(how)}")


def _remedy(how: str) -> str:
    return f"What reads it before the view (a middleware, the key) has to read {how}, and not the stream."


def data_parts(data: object) -> Iterator[str]:
    """What a parser has made of a body whose bytes are gone."""
    yield json.dumps(data, default=_of_no_json)


def _of_no_json(value: Any) -> object:
    if hasattr(value, "read"):
        file = File(
            getattr(value, "name", ""), getattr(value, "name", None), getattr(value, "content_type", None), value
        )
        return {"file": _said_of(file)}
    if (text := text_of(value)) is not None:
        return {type(value).__name__: text}
    raise ConfigurationError(
        f"once cannot compare the data of this request: its parser has made a {type(value).__name__} of a part of it. "
        f"What reads it before the view (a permission, the key) has to read request.body."
    )
