"""The pages of held locks: who may, the forms' own CSRF token, and the views. Made of ``web/lock_pages``."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable
from inspect import iscoroutinefunction
from typing import Any

from flask import Blueprint, Response, abort, current_app, make_response, render_template, request, url_for
from jinja2 import Environment, FileSystemLoader, TemplateNotFound, pass_context
from markupsafe import Markup
from werkzeug.exceptions import HTTPException
from werkzeug.wrappers import Response as AnyResponse

from ..core.errors import ConfigurationError
from ..web.lock_pages import Viewer, list_context, lock_context
from ..web.lock_presenter import Links
from ..web.page_assets import TEMPLATES, VERSION, asset
from ..web.release_pages import choose, list_url, release, release_context
from ..web.texts import _, language

#: Called with ``"view"`` or ``"release"``: gives the name of who may, for the log, or True; a false value: 403; a
#: response (a redirect to the login page) is sent as it is, and what it aborts with. Any other outcome refuses.
Authorize = Callable[[str], object]

FIELD = "distlock_csrf"
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)

#: The same where the project's own page is around them: what that loads is its business.
CONTENT_SECURITY_POLICY_AROUND = "base-uri 'none'; frame-ancestors 'none'"

#: A project's own page around them, where it has one: a template that is given ``title``, ``body`` and the addresses
#: ``held_locks_css`` and ``held_locks_js``.
PAGE = "distlock_web/page.html"

environment = Environment(loader=FileSystemLoader(TEMPLATES), autoescape=True)
# It needs no context. Without one Jinja would translate a text once, when it compiles the template.
environment.filters["t"] = pass_context(lambda context, text: _(text))


def held_locks_blueprint(authorize: Authorize) -> Blueprint:
    """The pages of held locks, for ``app.register_blueprint(..., url_prefix="/ops/locks")``; by default ``/distlock``.

    ``authorize`` is called at each request with ``"view"`` or ``"release"``. It gives the name of who may do that, or
    True; None or False refuses, and a response is sent as it is. ``ConfigurationError`` if it is no plain function.
    """
    if not callable(authorize) or iscoroutinefunction(authorize):
        raise ConfigurationError(
            f'held_locks_blueprint({authorize!r}): it has to be given a plain function that is called with "view" or '
            f'"release" and gives the name of who may do that, or None. Without it everybody could release every lock.'
        )
    return LockPages(authorize).blueprint()


class LockPages:
    """The views, for whom ``authorize`` lets in."""

    def __init__(self, authorize: Authorize) -> None:
        self._authorize = authorize

    def blueprint(self) -> Blueprint:
        blueprint = Blueprint("distlock", __name__, url_prefix="/distlock")
        blueprint.add_url_rule("/", "index", self.index)
        blueprint.add_url_rule("/lock/", "lock", self.lock)
        blueprint.add_url_rule("/release/", "release", self.release, methods=["GET", "POST"])
        blueprint.add_url_rule("/assets/<file>", "asset", self.asset)
        blueprint.after_request(_protect)
        return blueprint

    def index(self) -> Response:
        """The list; with ``?fragment`` only what goes on by itself."""
        self._who("view")
        return _live("list", list_context(request.args, self._viewer()), _("Held locks"))

    def lock(self) -> Response:
        """One lock; with ``?fragment`` only what goes on by itself."""
        self._who("view")
        context = lock_context(request.args, self._viewer())
        return _live("lock", context, context["name"])

    def release(self) -> Response:
        """Ask before, then take each lock from exactly the holder that was shown."""
        self._who("view")
        name = self._who("release")
        posted = request.method == "POST"
        if posted:
            _check_csrf(name)
        given = request.form if posted else request.args
        viewer, meant = self._viewer(), choose(given.getlist("lock"))
        if meant.rows and not (posted and "confirmed" in given):  # a GET may have a form, too
            context = release_context(meant, viewer, given)
            return _send("release.html", context, context["title"])
        by = name or f"somebody at {request.remote_addr}"
        messages = release(meant, by, audit=lambda row, what: None)  # the log has it
        context = {"messages": messages, "list_url": list_url(viewer, given)}
        return _send("released.html", context, _("What was done"))

    def asset(self, file: str) -> Response:
        """A style sheet or a script. No secret: it needs no login."""
        found = asset(file, request.args.get("v"))
        if found is None:
            abort(404)
        return Response(found[0], headers=found[1])

    def _who(self, action: str) -> str:
        """The name of who does it, as far as it is known. Ends the request where they may not."""
        answer = self._ask(action)
        if isinstance(answer, HTTPException):
            raise answer
        if isinstance(answer, AnyResponse):
            abort(answer)
        if not answer:
            abort(403)
        return _name(answer)

    def _ask(self, action: str) -> AnyResponse | HTTPException | str | bool:
        """Raises ``ConfigurationError`` for what is no answer, and true all the same: ``("no", 401)``, a coroutine."""
        try:
            answer = self._authorize(action)
        except HTTPException as refusal:  # abort(403): asked for a button, it must not end the request
            return refusal
        if isinstance(answer, AnyResponse | str | bool):
            return answer
        if not answer:
            return False
        raise ConfigurationError(
            f"The function that says who may see the locks returned a {type(answer).__name__}; it has to return a "
            f"name, True, False, None or a response. Access was refused."
        )

    def _viewer(self) -> Viewer:
        answer = self._ask("release")
        may_release = bool(answer) and isinstance(answer, str | bool)
        return Viewer(_links(), may_release, _csrf_inputs(_name(answer)) if may_release else "")


def _links() -> Links:
    return Links(*(url_for(f".{name}") for name in ("index", "lock", "release")))


def _live(name: str, context: dict[str, Any], title: str) -> Response:
    if "fragment" in request.args:
        return _finish(environment.get_template(f"{name}_live.html").render(context))
    return _send(f"{name}.html", context, title)


def _send(template: str, context: dict[str, Any], title: str) -> Response:
    body = Markup(environment.get_template(template).render(context))  # noqa: S704 - the engine has escaped it
    css, js = (_asset_url(name) for name in ("held_locks.css", "held_locks.js"))
    context = {"title": title, "body": body, "held_locks_css": css, "held_locks_js": js}
    try:
        own = current_app.jinja_env.get_template(PAGE)
    except TemplateNotFound as missing:
        if missing.name != PAGE:  # one that it extends
            raise
        ours = {"language": language(), "page_css": _asset_url("page.css")}
        return _finish(environment.get_template("page.html").render(context, **ours))
    response = _finish(render_template(own, **context))
    response.headers["Content-Security-Policy"] = CONTENT_SECURITY_POLICY_AROUND
    return response


def _asset_url(name: str) -> str:
    return url_for(".asset", file=name, v=VERSION)


def _finish(html: str) -> Response:
    response = make_response(html)
    response.headers["Cache-Control"] = "no-store"
    response.headers["Referrer-Policy"] = "same-origin"
    response.headers["X-Frame-Options"] = "DENY"  # a click on a page that frames this one must not release a lock
    if not request.cookies.get(FIELD):
        response.set_cookie(
            FIELD, _csrf_cookie(), path=_links().list, httponly=True, samesite="Lax", secure=request.is_secure
        )
    return response


def _protect(response: Response) -> Response:
    response.headers.setdefault("Content-Security-Policy", CONTENT_SECURITY_POLICY)
    response.headers["X-Content-Type-Options"] = "nosniff"
    return response


def _name(answer: object) -> str:
    return answer if isinstance(answer, str) else ""


def _csrf_cookie() -> str:
    """That of this browser, which no other site can read."""
    known = request.cookies.get(FIELD)
    if known:
        return known
    if FIELD not in request.environ:
        request.environ[FIELD] = secrets.token_urlsafe(32)
    return str(request.environ[FIELD])


def _csrf_token(name: str) -> str:
    """What a form repeats. Made of the cookie and of whose form it is, where the app has a secret.

    For a neighbour (another subdomain) cannot read the cookie, but it can plant one, and would know what to repeat.
    """
    secret = current_app.secret_key
    if not secret:
        return _csrf_cookie()
    key = secret.encode() if isinstance(secret, str) else secret
    return hmac.new(key, f"{FIELD} {_csrf_cookie()} {name}".encode("utf-8", "backslashreplace"), "sha256").hexdigest()


def _csrf_inputs(name: str) -> Markup:
    """Ours, and that of Flask-WTF where it protects the whole app."""
    inputs = Markup('<input type="hidden" name="{}" value="{}">').format(FIELD, _csrf_token(name))
    of_the_app = current_app.jinja_env.globals.get("csrf_token")
    if callable(of_the_app):
        inputs += Markup('<input type="hidden" name="csrf_token" value="{}">').format(of_the_app())
    return inputs


def _check_csrf(name: str) -> None:
    known, given = request.cookies.get(FIELD), request.form.get(FIELD, "")
    same_site = request.headers.get("Sec-Fetch-Site", "same-origin") in ("same-origin", "none")
    if not (known and same_site and secrets.compare_digest(_csrf_token(name).encode(), given.encode())):
        abort(400, _("The form is too old or comes from another site: go back, reload the page and try again."))
