"""Why there are no stores: usually because no code reads the settings that are there."""

from __future__ import annotations

import os
import sys

from . import integrations


def why_there_are_none() -> str:
    """The message."""
    asked = [*integrations.installed.why_no_registry, missing_app, _missing_extension]
    why = next(filter(None, (explain() for explain in asked)), "") or (
        "set DISTLOCK (Django: settings.py; Flask: app.config), call distlock_web.configure(...), or set the "
        "environment variable DISTLOCK_URL."
    )
    if "PYTEST_CURRENT_TEST" in os.environ:
        why += " A test that needs no real store uses the fixture distlock_fake."
    return f"No store for locks: {why}"


def missing_app() -> str:
    """In words, that Django's settings have a ``DISTLOCK``, but no app that reads it; "" if that is not so."""
    conf, apps = sys.modules.get("django.conf"), sys.modules.get("django.apps")  # never imported from here
    if conf is None or apps is None or not apps.apps.apps_ready or getattr(conf.settings, "DISTLOCK", None) is None:
        return ""
    if "distlock_web.django.apps" in sys.modules:
        return ""
    return 'settings.py has a DISTLOCK, but INSTALLED_APPS lacks "distlock_web.django", which reads it.'


def _missing_extension() -> str:
    """The same of the running Flask app, and of the extension."""
    flask = sys.modules.get("flask")
    app = flask.current_app if flask is not None else None
    if not app or "DISTLOCK" not in app.config or "distlock" in app.extensions:
        return ""
    return f"app.config of {app.name!r} has a DISTLOCK, but no DistLock(app) reads it (from distlock_web.flask)."
