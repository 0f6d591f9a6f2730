"""``once`` in Flask: who asks for what."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from io import BytesIO
from typing import Any

from flask import current_app, request, session

from ..web.asked import CREDENTIALS, digest_of, form_parts, is_comparable, is_form

#: Where a session says whose it is: Flask-Login's and its successors' first, then that of Flask's own tutorial.
_USER = ("_user_id", "user_id")


def asked() -> str:
    """Who asks for what, in the running request."""
    # The query as bytes: it need not be text.
    where = (request.method, request.host, request.root_path + request.path, request.query_string)
    return digest_of(*_who(), *where, request.mimetype, *_body())


def _who() -> Iterator[str]:
    user = _user()
    if user is not None:
        yield from ("user", str(user))
        return
    yield from ("session", _session())
    yield from (request.headers.get(name, "") for name in CREDENTIALS)


def _user() -> object:
    login: Any = sys.modules.get("flask_login")
    if login is not None and hasattr(current_app, "login_manager"):
        # First, for it may know them by a header, or by a cookie that outlives the session.
        user: object = login.current_user.get_id()
        if user is not None:
            return user
    return next((session[name] for name in _USER if session.get(name) is not None), None)


def _session() -> str:
    """A session on a server has a key. One in a cookie has none: it is what it says, but for messages to show once.

    Nor has who sends no such key: Flask-Session makes a new one for each request.
    """
    sent = request.cookies.get(current_app.session_interface.get_cookie_name(current_app), "")
    if (key := getattr(session, "sid", None)) is not None and str(key) in sent:  # there it may be signed
        return str(key)
    said = {name: value for name, value in session.items() if name != "_flashes"}
    return json.dumps(said, sort_keys=True, default=str)


def _body() -> Iterator[str | bytes]:
    """What the body says, so that the view still can read it."""
    if is_form(request.mimetype):
        files = ((name, file.filename, file.stream) for name, file in request.files.items(multi=True))
        yield from form_parts(request.form.lists(), files)
    elif is_comparable(request.content_length):
        body = request.get_data(cache=True)
        request.stream = BytesIO(body)  # which a view may read itself
        yield body
    else:
        yield str(request.content_length)
