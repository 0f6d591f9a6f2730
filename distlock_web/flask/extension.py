"""The extension: what ``DistLock(app)`` puts into an app. It keeps nothing itself: one object serves many apps."""

from __future__ import annotations

import logging

from flask import Flask

from ..core.errors import ConfigurationError
from ..core.registry import Registry
from ..web.error_responses import REFUSALS
from ..web.request_ids import environ_key, proxy_header
from ..web.settings import make_backends, read_setting, unknown_settings, with_policies
from .cli import command
from .kept_answers import Answered, field
from .middleware import RequestIDMiddleware, note_request
from .responses import handle_error
from .state import KEY, AppState
from .views import check_views

logger = logging.getLogger("distlock_web")


class DistLock:
    """Distributed locks for a Flask app: ``DistLock(app)``, or ``distlock.init_app(app)`` in an app factory.

    The app gets the stores of its own ``app.config["DISTLOCK"]``; without one, those of ``distlock_web.configure()``
    or of the environment's ``DISTLOCK_URL``. Its requests get an id, in and out (``DISTLOCK_REQUEST_ID_HEADER``,
    ``Req-Id`` by default). ``LockBusy`` becomes a 409, ``BackendUnavailable`` a 503, ``KeyUnavailable`` a 400
    and ``KeyReused`` a 422, unless the app handles them itself. Templates have ``{{ once() }}``, a hidden field.
    ``flask distlock`` lists what is held and releases it.
    ``app.extensions["distlock"]`` has what belongs to the app; its ``registry.close()`` closes the connections.
    """

    def __init__(self, app: Flask | None = None) -> None:
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """Install into the app, whose ``config`` has to be complete. Raises ``ConfigurationError`` if it is wrong."""
        if KEY in app.extensions:
            raise ConfigurationError(
                f"DistLock was installed in {app.name!r} already: DistLock(app) or init_app, once."
            )
        header = read_setting("DISTLOCK_REQUEST_ID_HEADER", app.config.get)
        proxy = proxy_header(is_chosen="DISTLOCK_REQUEST_ID_HEADER" in app.config)
        user = read_setting("DISTLOCK_USER", app.config.get)
        state = AppState(_registry(app), header, environ_key(proxy) if proxy else None, user)
        app.extensions[KEY] = state
        check_views(app, state.registry)
        app.wsgi_app = RequestIDMiddleware(app, state)  # type: ignore[method-assign]
        app.url_value_preprocessor(note_request)
        for error in REFUSALS:
            if error not in app.error_handler_spec[None][None]:
                app.register_error_handler(error, handle_error)
        app.register_error_handler(Answered, Answered.get_response)  # under TRAP_HTTP_EXCEPTIONS Flask asks for one
        app.cli.add_command(command)
        app.jinja_env.globals.setdefault("once", field)


def _registry(app: Flask) -> Registry | None:
    slips, others = unknown_settings(app.config, "app.config has")
    for other in others:
        logger.warning("%s", other)
    mapping, mistakes = with_policies(app.config.get("DISTLOCK"), app.config)
    for mistake in (*slips, *mistakes):
        raise mistake
    own = Registry(mapping) if "DISTLOCK" in app.config else None
    make_backends(own)
    return own
