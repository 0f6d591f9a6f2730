"""The language of a Flask app's client, where the app has Flask-Babel; else English."""

from __future__ import annotations

import gettext
from copy import copy
from functools import cache
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
    ours = copy(_ours(get_global("likely_subtags").get(name, name)))  # zh is zh_Hans_CN
    ours.add_fallback(get_domain().get_translations())  # the app's own: a language that is not here
    return ours


@cache
def _ours(name: str) -> gettext.NullTranslations:
    """Kept, for gettext looks on the disk at each call. One catalogue without fallbacks: whoever copies it adds his."""
    found = gettext.find(DOMAIN, LOCALES, [name, name.rpartition("_")[0], name.partition("_")[0]])
    if found is None:
        return gettext.NullTranslations()
    with open(found, "rb") as file:
        return gettext.GNUTranslations(file)
