"""``once`` in Flask: who asks for what."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from io import BytesIO
from typing import Any

from flask import current_app, request, session
from werkzeug.wsgi import LimitedStream

from ..web.asked import (
    CREDENTIALS,
    MAX_COMPARED,
    File,
    content_of,
    digest_of,
    form_parts,
    is_form,
    read_before,
    refuse_emptied,
    user_parts,
)

#: Where a session says whose it is: Flask-Login's successors, then Flask's own tutorial.
_USER = ("_user_id", "user_id")
_HOW = "request.get_data() or request.get_json()"


def asked() -> str:
    """Who asks for what, in the running request."""
    # The query as bytes: it need not be text.
    where = (request.method, request.host, request.root_path + request.path, request.query_string, request.mimetype)
    return digest_of(*_who(), *where, *_body())


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


def _session() -> str:
    """A session on a server has a key. One in a cookie has none: it is what it says, but for messages to show once.

    Nor has who sends no such key: Flask-Session makes a new one for each request.
    """
    sent = request.cookies.get(current_app.session_interface.get_cookie_name(current_app), "")
    if (key := getattr(session, "sid", None)) and str(key) in sent:  # there it may be signed
        return str(key)
    return content_of((name, said) for name, said in session.items() if name != "_flashes")


def _body() -> Iterator[str | bytes]:
    """What the body says, so that the view still can read it."""
    length = request.content_length
    if is_form(request.mimetype):
        yield from _form(length or 0)
    elif length is not None and length <= MAX_COMPARED:
        body = request.get_data(cache=True)
        if len(body) < length:
            raise read_before(_HOW)
        request.stream = BytesIO(body)  # which a view may read itself
        yield from ("body", body)
    else:
        yield from ("length", str(length))


def _form(length: int) -> Iterator[str]:
    running: Any = request
    known = vars(running._get_current_object())
    fresh = "form" not in known and known.get("_cached_data") is None
    if fresh and isinstance(request.stream, LimitedStream) and request.stream.tell():
        raise read_before(_HOW)
    fields = list(request.form.lists())
    files = [
        File(name, file.filename, file.content_type, file.stream) for name, file in request.files.items(multi=True)
    ]
    if not fields and not files:
        refuse_emptied(length, request.mimetype, request.mimetype_params.get("boundary", ""), _HOW)
    yield from form_parts(fields, files)
