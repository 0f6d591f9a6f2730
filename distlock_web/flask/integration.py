"""What Flask offers to locks: the stores of the running app, and its streamed responses."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from flask import current_app, g, has_request_context, request, session, url_for
from flask.views import View
from werkzeug.exceptions import HTTPException, NotFound
from werkzeug.routing import BuildError
from werkzeug.wrappers import Response

from ..locks.hooks import Answer, Args, Asked, Kwargs
from ..web.framework import Given, WebIntegration, is_hidden_view, is_view
from . import asked, kept_answers
from .state import app_registry
from .streaming import is_stream, send_under_lock
from .views import apps_with_stores, functions_of_request, refuse_registered


class FlaskIntegration(WebIntegration):
    """One for all apps of the process: it looks at the app that is running."""

    streaming = (Iterator,)
    is_stream = staticmethod(is_stream)
    send_under_lock = staticmethod(send_under_lock)
    no_such_page = NotFound
    app_registry = staticmethod(app_registry)
    in_request = staticmethod(has_request_context)
    check_function = staticmethod(refuse_registered)

    def called_view(self, args: Args, kwargs: Kwargs, locked: Any) -> Any | None:
        views = functions_of_request()
        return request if is_view(locked, views) or is_hidden_view(locked, views) else None

    def answer(self, result: Any, view_request: Any | None, locked: Any) -> Given | None:
        if not isinstance(result, Response):
            if view_request is None or not isinstance(result, tuple | HTTPException):
                return None
            result = kept_answers.head_of(result)
        return Given(result.status_code, result.headers.items())

    async def who_asks(self, view_request: Any, args: Args, kwargs: Kwargs, locked: Any) -> Asked:
        return asked.asked()

    async def kept_of(self, result: Any, view_request: Any, locked: Any) -> dict[str, Any]:
        return kept_answers.answer_of(result, locked)

    def replayed(self, kept: dict[str, Any], view_request: Any, locked: Any) -> Answer:
        return kept_answers.replay(kept)

    def login_page(self) -> str:
        """Where Flask-Login sends those that are not logged in; "" if it does not say."""
        manager = getattr(current_app, "login_manager", None) if has_request_context() else None
        of_blueprints = getattr(manager, "blueprint_login_views", {})
        blueprint = request.blueprint if of_blueprints else None
        view = of_blueprints[blueprint] if blueprint in of_blueprints else getattr(manager, "login_view", None)
        if not view or view.startswith(("/", "http://", "https://")):
            return view or ""
        try:
            return url_for(view)
        except BuildError:  # there is no such endpoint, or it wants arguments: no redirect leads there
            return ""

    def why_no_registry(self) -> str:
        names = ", ".join(sorted({repr(app.name) for app in apps_with_stores()}))
        if not names or current_app:
            return ""
        return f"the stores are those of the app {names}, and no app context is here: use `with app.app_context():`."

    def name_of(self, function: Callable[..., Any]) -> str | None:
        """Of what a class made, the class and the endpoint: several endpoints of one class do different things."""
        view_class = getattr(function, "view_class", None)
        if not (isinstance(view_class, type) and issubclass(view_class, View)):
            return None
        return f"{view_class.__module__}.{view_class.__qualname__}({function.__name__})"

    def variables(self) -> Mapping[str, Callable[[], object]]:
        named: dict[str, Callable[[], object]] = {
            "request": lambda: request,
            "session": lambda: session,
            "g": lambda: g,
        }
        return {**named, "current_user": _logged_in} if "flask_login" in sys.modules else named


def _logged_in() -> object | None:
    """Flask-Login's user. An anonymous user has no `id`: the client is told so, with a 400."""
    user: Any = sys.modules["flask_login"].current_user
    return user._get_current_object() if user and user.is_authenticated else None
