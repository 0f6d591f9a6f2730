"""The page "Held locks" as a blueprint: ``app.config["DISTLOCK_UI"]``. Off, unless that says who may see it."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import iscoroutinefunction

from flask import Flask

from ..core.config import unknown_name
from ..core.errors import ConfigurationError
from .lock_pages import LockPages

SETTING = "DISTLOCK_UI"
OPTIONS = ("AUTHORIZE", "URL_PREFIX")
DEFAULT_PREFIX = "/distlock"


def install_pages(app: Flask) -> None:
    """Register the pages that ``app.config["DISTLOCK_UI"]`` asks for. Raises ``ConfigurationError`` if it is wrong."""
    given = app.config.get(SETTING)
    if given is None or given is False:
        return
    if not isinstance(given, Mapping):
        raise ConfigurationError(f'{SETTING} is {given!r}: it has to be such as {{"AUTHORIZE": may_see_locks}}.')
    for option in given:
        if option not in OPTIONS:
            raise ConfigurationError(unknown_name(f"{SETTING} has the option", option, OPTIONS))
    authorize, prefix = given.get("AUTHORIZE"), given.get("URL_PREFIX", DEFAULT_PREFIX)
    if not callable(authorize) or iscoroutinefunction(authorize):
        raise ConfigurationError(
            f'{SETTING}["AUTHORIZE"] is {authorize!r}: it has to be a plain function that is called with "view" or '
            f'"release" and gives the name of who may do that, or None. Without it everybody could release every lock.'
        )
    if not (isinstance(prefix, str) and prefix.startswith("/") and prefix.strip("/")):
        raise ConfigurationError(f'{SETTING}["URL_PREFIX"] is {prefix!r}: it has to be a path, such as "/admin/locks".')
    app.register_blueprint(LockPages(authorize).blueprint(), url_prefix=prefix.rstrip("/"))
