"""The language of a Flask app's client, where the app has Flask-Babel; else English."""

from __future__ import annotations

from gettext import translation
from pathlib import Path

from flask import current_app

from ..web.texts import ENGLISH, Catalogue

#: One for all frameworks. Django looks for it there, and by that name.
LOCALES, DOMAIN = Path(__file__).parents[1] / "django" / "locale", "django"


def running_catalogue() -> Catalogue | None:
    """None: no Flask app runs this code."""
    if not current_app:
        return None
    if "babel" not in current_app.extensions:
        return ENGLISH
    from babel.core import get_global
    from flask_babel import get_domain, get_locale

    name = str(get_locale() or "en")
    name = get_global("likely_subtags").get(name, name)  # zh is zh_Hans_CN
    less, least = name.rpartition("_")[0], name.partition("_")[0]
    ours = translation(DOMAIN, LOCALES, [name, less, least], fallback=True)  # ours alone: each gets an object
    ours.add_fallback(get_domain().get_translations())  # the app's own: a language that is not here
    return ours
