"""What ``DistLock(app)`` puts into an app."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from ..core.errors import DistLockError
from ..core.registry import Registry
from ..core.setting import check_plain
from ..web.asgi import AnswerMiddleware, App, ASGIScope, Receive, RequestMiddleware, Send
from ..web.error_responses import REFUSALS
from ..web.settings import make_backends
from . import responses
from .integration import Answered
from .views import check_routes, has_once, know, mounted_apps, route_of


class DistLock:
    """Distributed locks for an app of Starlette's or FastAPI's: ``DistLock(app, {"default": {"LOCATION": …}})``.

    The app gets these stores, which are closed at its shutdown; without them, those of ``distlock_web.configure()`` or
    of the environment's ``DISTLOCK_URL``. Its requests get an id, in and out (``header``, ``Req-Id`` by default).
    ``LockBusy`` becomes a 409, ``BackendUnavailable`` a 503, ``KeyUnavailable`` a 400 and ``KeyReused`` a 422, unless
    the app handles them itself. ``user`` says of a request (an ``HTTPConnection``) whose it is, for people. The
    endpoints are looked at when the app starts, or at its first request: ``ConfigurationError`` says what is wrong.
    ``app.state.distlock.registry`` has the app's stores.
    """

    def __init__(
        self,
        app: Starlette,
        stores: Mapping[str, Any] | None = None,
        *,
        header: str | None = None,
        user: Callable[[HTTPConnection], object] | None = None,
    ) -> None:
        if user is not None:
            check_plain(user, "user=")
        self.registry = None if stores is None else Registry(stores)
        make_backends(self.registry)
        outermost = partial(
            RequestMiddleware,
            registry=self.registry,
            header=header,
            user=None if user is None else lambda scope: user(HTTPConnection(scope)),
            route=_route,
            keeps_body=has_once,
        )
        build = app.build_middleware_stack

        def build_middleware_stack() -> App:
            try:
                check_routes(app, self.registry)
            except Exception as failure:
                return outermost(partial(_not_started, failure))
            for each in (app, *mounted_apps(app)):
                _prepare(each)
            # Around all, also around what makes a 500 of an exception.
            return outermost(build())

        app.build_middleware_stack = build_middleware_stack  # type: ignore[method-assign]
        app.state.distlock = self
        know(app)


def _prepare(app: Starlette) -> None:
    """The app, or one that is mounted in it, answers for us; and what its own middlewares do comes after the record."""
    if Answered in app.exception_handlers:
        return  # it was mounted twice
    for error in REFUSALS:
        if DistLockError not in app.exception_handlers:  # the app's own comes first
            app.exception_handlers.setdefault(error, _refuse)
    app.exception_handlers[Answered] = _answer_again
    # Next to the views, below what compresses an answer or adds a cookie to it.
    app.user_middleware.append(Middleware(AnswerMiddleware))
    app.middleware_stack = None  # of one that was served before by itself


async def _not_started(error: Exception, scope: ASGIScope, receive: Receive, send: Send) -> None:
    """In place of an app that is not right. A server takes a mere exception for an app that knows no start."""
    if scope["type"] == "lifespan":
        await receive()
        await send({"type": "lifespan.startup.failed", "message": str(error)})
    raise error.with_traceback(None)


# Not plain functions: those would wait for a thread, when all of them wait for locks.


async def _refuse(request: Request, error: Exception) -> Response:
    return responses.refused(error)  # type: ignore[arg-type]


async def _answer_again(request: Request, error: Exception) -> Response:
    assert isinstance(error, Answered)  # noqa: S101 - it is registered for these
    return error.response


def _route(scope: Any) -> str:
    """Method and route, never the path: its values may be secrets."""
    found = route_of(scope)
    route = getattr(found, "path", "")
    # The path of a mount has the values of its parameters, and does not say which.
    of_mounts = scope.get("path_params", {}).keys() - getattr(found, "param_convertors", {}).keys()
    root = "" if of_mounts else scope.get("root_path", "")
    return f"{scope.get('method', 'WEBSOCKET')} {root}{route}" if route else ""
