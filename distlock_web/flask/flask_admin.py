"""The page "Held locks" in Flask-Admin: ``admin.add_view(HeldLocksView(may_see_locks))``."""

from __future__ import annotations

from inspect import iscoroutinefunction
from typing import Any

from flask import Response, current_app
from flask_admin import BaseView, expose
from markupsafe import Markup

from ..core.errors import ConfigurationError
from .lock_pages import Authorize, LockPages

_PAGE = """\
{% extends "admin/master.html" %}
{% block title %}{{ title }}{% endblock %}
{% block head_css %}{{ super() }}<link rel="stylesheet" href="{{ style }}">{% endblock %}
{% block page_title %}{% endblock %}
{% block body %}{{ body }}{% endblock %}
{% block tail %}{{ super() }}<script src="{{ script }}"></script>{% endblock %}
"""


class HeldLocksView(BaseView):  # type: ignore[misc]  # Flask-Admin has no types for it
    """A view for Flask-Admin. ``authorize`` is called with ``"view"`` or ``"release"``.

    It gives the name of who may do that, for the log, or True; for who may not, a false value (a 403), a response, such
    as a redirect to the login page, or an ``abort()``. The other arguments are those of Flask-Admin's ``BaseView``.
    """

    def __init__(
        self, authorize: Authorize, name: str = "Held locks", endpoint: str = "held_locks", **options: Any
    ) -> None:
        if not callable(authorize) or iscoroutinefunction(authorize):
            raise ConfigurationError(
                f"HeldLocksView({authorize!r}): it needs a plain function that says who may see the locks."
            )
        self._pages = LockPages(authorize, endpoint, self._page)
        super().__init__(name, endpoint=endpoint, **options)

    def is_visible(self) -> bool:
        """Whether the menu has it. Who may not see the page is refused by the page itself."""
        return self._pages.may("view")

    @expose("/")  # type: ignore[untyped-decorator]
    def index(self) -> Response:
        return self._pages.index()

    @expose("/lock/")  # type: ignore[untyped-decorator]
    def lock(self) -> Response:
        return self._pages.lock()

    @expose("/release/", methods=("GET", "POST"))  # type: ignore[untyped-decorator]
    def release(self) -> Response:
        return self._pages.release()

    @expose("/assets/<file>")  # type: ignore[untyped-decorator]
    def asset(self, file: str) -> Response:
        return self._pages.asset(file)

    def _page(self, title: str, body: Markup) -> str:
        template = current_app.jinja_env.from_string(_PAGE)
        style, script = (self._pages.asset_url(name) for name in ("held_locks.css", "held_locks.js"))
        page: str = self.render(template, title=title, body=body, style=style, script=script)
        return page
