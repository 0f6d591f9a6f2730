"""What Flask offers to locks: the stores of the running app, and its streamed responses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from flask import current_app, g, has_request_context, request, session, url_for
from flask.views import View
from werkzeug.exceptions import HTTPException, NotFound
from werkzeug.routing import BuildError
from werkzeug.wrappers import Response

from ..core.registry import Registry
from ..locks.hooks import Answer, Integration
from ..locks.lease import Lease
from ..locks.once import Once
from ..web.once import returned_class, warn_of_lost
from ..web.success import is_failure
from . import asked, once
from .state import running_registry
from .streaming import is_stream, is_view, send_under_lock
from .views import apps_with_stores, refuse_registered


class FlaskIntegration(Integration):
    """One for all apps of the process: it looks at the app that is running."""

    def running_registry(self) -> Registry | None:
        return running_registry()

    def why_no_registry(self) -> str:
        names = ", ".join(sorted({repr(app.name) for app in apps_with_stores()}))
        if not names or current_app:
            return ""
        return f"the stores are those of the app {names}, and no app context is here: use `with app.app_context():`."

    def check_function(self, function: Callable[..., Any]) -> None:
        refuse_registered(function)

    def name_of(self, function: Callable[..., Any]) -> str | None:
        """Of what a class made, the class and the endpoint: several endpoints of one class do different things."""
        view_class = getattr(function, "view_class", None)
        if not (isinstance(view_class, type) and issubclass(view_class, View)):
            return None
        return f"{view_class.__module__}.{view_class.__qualname__}({function.__name__})"

    def request_of(self, args: tuple[object, ...], locked: object) -> Any:
        return request if is_view(locked) else None

    def not_found(self, args: tuple[object, ...], locked: object) -> NotFound | None:
        return NotFound() if is_view(locked) else None

    def variables(self) -> Mapping[str, Callable[[], object]]:
        return {"request": lambda: request, "session": lambda: session, "g": lambda: g}

    def is_stream(self, result: Any, locked: object) -> bool:
        return is_stream(result, locked)

    def is_failure(self, result: Any, args: tuple[object, ...], locked: object) -> bool:
        is_for_others = isinstance(locked, Once)
        if not isinstance(result, Response):
            answers = once.is_of_request(locked) if is_for_others else is_view(locked)
            if not (isinstance(result, tuple | HTTPException) and answers):
                return False
            result = once.head_of(result)
        location = result.headers.get("Location")
        return is_failure(result.status_code, location, _login_page(), is_for_others=is_for_others)

    async def asked(self, args: tuple[object, ...], locked: object) -> str | None:
        return asked.asked() if once.is_of_request(locked) else None

    def streams(self, function: Callable[..., Any]) -> bool:
        return issubclass(returned_class(function), Iterator)

    async def answer_of(self, result: Any, args: tuple[object, ...], locked: Any) -> dict[str, Any] | None:
        if once.is_of_request(locked):
            return once.answer_of(result, locked.name)
        if has_request_context():
            warn_of_lost(result, locked)
        return None

    def replay(self, kept: dict[str, Any], args: tuple[object, ...], locked: object) -> Answer | None:
        return once.replay(kept) if once.is_of_request(locked) else None

    def stream(self, result: Any, locked: object, lease: Lease) -> Any | None:
        return send_under_lock(result, locked, lease)


def _login_page() -> str:
    """Where Flask-Login sends those that are not logged in; "" if it does not say."""
    view = getattr(getattr(current_app, "login_manager", None), "login_view", None) if has_request_context() else None
    if not view or view.startswith(("/", "http://", "https://")):
        return view or ""
    try:
        return url_for(view)
    except BuildError:  # there is no such endpoint, or it wants arguments: it sends nobody there
        return ""
