"""``once`` in Flask: who asks for what."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from io import BytesIO
from typing import Any

from flask import current_app, request, session
from werkzeug.exceptions import LengthRequired, RequestEntityTooLarge

from ..locks.hooks import Asked
from ..web.asked import (
    CREDENTIALS,
    MAX_COMPARED,
    File,
    asked_by,
    content_of,
    emptied,
    form_parts,
    is_form,
    read_before,
    user_parts,
    was_sent_empty,
    whole_body,
)

#: Where a session says whose it is: Flask-Login's successors, then Flask's own tutorial.
_USER = ("_user_id", "user_id")
_HOW = "request.get_data() or request.get_json()"


def asked() -> Asked:
    """Who asks for what, in the running request."""
    who = list(_who())
    # The query as bytes: it need not be text.
    where = (request.method, request.host, request.root_path + request.path, request.query_string, request.mimetype)
    who_before = (who[0], who[2]) if who[0] == "user" else who[: 2 + len(CREDENTIALS)]
    # Format 1 has failed for a query that is no text: there is no record of one.
    path = f"{request.root_path}{request.path}?{request.query_string.decode(errors='replace')}"
    before = (*who_before, request.method, request.host, path, request.mimetype)
    return asked_by(who, where, _body(), before=before)


def _who() -> Iterator[str]:
    login: Any = sys.modules.get("flask_login")
    if login is not None and hasattr(current_app, "login_manager"):
        # First, for it may know them by a header, or by a cookie that outlives the session.
        user: Any = login.current_user
        ident = user.get_id()
        if ident is not None or getattr(user, "is_authenticated", False):
            yield from user_parts(user, ident)
            return
    for name in _USER:
        if session.get(name) is not None:
            yield from ("user", name, str(session[name]))
            return
    yield from ("session", _session())
    yield from (request.headers.get(name, "") for name in CREDENTIALS)
    if request.remote_user:  # a login of the web server's
        yield from ("REMOTE_USER", request.remote_user)


def _session() -> str:
    """A session on a server has a key. One in a cookie has none: it is what it says, but for messages to show once.

    Nor has who sends no such key: Flask-Session makes a new one for each request.
    """
    sent = request.cookies.get(current_app.session_interface.get_cookie_name(current_app), "")
    if (key := getattr(session, "sid", None)) and str(key) in sent:  # there it may be signed
        return str(key)
    return content_of(session.items(), "_flashes")


def _body() -> Iterator[str | bytes]:
    """What the body says, so that the view still can read it."""
    length = _length()
    if is_form(request.mimetype) and not _is_no_form(length):
        _refuse_read()
        yield from _form(length)
        return
    if length is not None and length > MAX_COMPARED:
        yield from whole_body(length)
        return
    _refuse_read()
    yield from whole_body(_bytes(length))


def _length() -> int | None:
    """In bytes; None if the request does not say it."""
    if request.content_length is not None or "Transfer-Encoding" in request.headers:
        return request.content_length
    # HTTP/1 has a body with one of these headers alone, and a server may wait for another one for ever. HTTP/2 needs
    # neither.
    return 0 if request.environ.get("SERVER_PROTOCOL", "").startswith("HTTP/1") else None


def _is_no_form(length: int | None) -> bool:
    """Whether this is so long that the app does not take it for a form, and nothing has: then it is not read here."""
    limit, known = request.max_form_memory_size, _known()
    if request.mimetype == "multipart/form-data" or "form" in known or known.get("_cached_data") is not None:
        return False  # its files go to disk
    return length is not None and length > MAX_COMPARED and limit is not None and length > limit


def _refuse_read() -> None:
    """``ConfigurationError`` if other code has read the stream, and kept nothing of it."""
    known = _known()
    # A form leaves the stream of what is none as it was.
    if known.get("_cached_data") is None and "form" not in known and "stream" in known and _is_read(known["stream"]):
        raise read_before(_HOW)


def _known() -> dict[str, Any]:
    """What other code has asked of the request before."""
    running: Any = request
    known: dict[str, Any] = vars(running._get_current_object())
    return known


def _is_read(stream: Any) -> bool:
    try:
        return bool(stream.tell())
    except (AttributeError, OSError):  # a server's own: it was taken out to be read
        return True


def _bytes(length: int | None) -> bytes:
    """The body, which a view may read again, as a stream, too."""
    if (cached := _known().get("_cached_data")) is not None or length == 0:
        body: bytes = cached or b""
    else:
        body = _in_chunks() if length is None else request.get_data(cache=True)
        request.stream = BytesIO(body)
    if len(body) < (length or 0):
        raise read_before(_HOW)
    return body


def _in_chunks() -> bytes:
    """A body that does not say how long it is."""
    known, read = _known(), bytearray()
    untouched = "stream" not in known or not _is_read(known["stream"])
    # As a DELETE over HTTP/2: a look at request.form has taken the stream out, and not read it.
    announced = bool(request.content_type) or "Transfer-Encoding" in request.headers
    while chunk := request.stream.read(MAX_COMPARED + 1 - len(read)):
        read += chunk
    if not read and announced and not untouched:  # other code may have read all of it
        raise read_before(_HOW)
    if len(read) > MAX_COMPARED:
        raise LengthRequired(f"A body of more than {MAX_COMPARED:,} bytes has to say how long it is.")
    return bytes(read)


def _form(length: int | None) -> Iterator[str | bytes]:
    known = _known()
    if length == 0 and "form" not in known and not known.get("_cached_data"):
        return
    may_be_read = "stream" in known and not known.get("_cached_data")
    body = _form_as_sent(length)
    try:
        fields, files = list(request.form.lists()), list(request.files.items(multi=True))
    except RequestEntityTooLarge:
        if body is None:
            raise
        fields, files = [], []  # a view that does not read it as a form has no limit
    sent = [File(name, file.filename, file.content_type, file.stream) for name, file in files]
    of_rendering = current_app.config.get("WTF_CSRF_FIELD_NAME")  # Flask-WTF's
    yield from form_parts(fields, sent, (of_rendering,) if of_rendering else ())
    if not fields and not files:
        yield from _of_no_fields(body, length, may_be_read=may_be_read)
    if body is not None:  # as if it were not parsed, so that the view may read its bytes, too
        for _, file in files:
            file.close()
        for name in known.keys() & {"form", "files", "values"}:
            del known[name]
        request.stream = BytesIO(body)


def _form_as_sent(length: int | None) -> bytes | None:
    """The bytes of a form that is still unread, where they would be in memory, too, when it is parsed."""
    known = _known()
    if "form" in known or known.get("_cached_data") is not None:
        return None
    if request.mimetype == "multipart/form-data" and (length is None or length > MAX_COMPARED):
        return None
    body = _in_chunks() if length is None else request.stream.read()
    request.stream = BytesIO(body)
    return body


def _of_no_fields(body: bytes | None, length: int | None, *, may_be_read: bool) -> Iterator[str | bytes]:
    """For a form that says nothing: it was sent empty, or it is none, or it was read before."""
    if was_sent_empty(length, request.mimetype, request.mimetype_params.get("boundary", "")):
        return
    if body is not None:
        yield from whole_body(body)
    elif may_be_read:
        raise emptied(_HOW)
    else:
        yield from ("length", str(length))
