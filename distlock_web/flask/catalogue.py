"""The language of a Flask app's client, where the app has Flask-Babel; else English."""

from __future__ import annotations

import gettext
from functools import lru_cache
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
    from flask_babel import get_domain, get_locale

    return _catalogue(str(get_locale() or "en"), get_domain().get_translations())


@lru_cache(maxsize=64)
def _catalogue(name: str, apps_own: gettext.NullTranslations) -> gettext.NullTranslations:
    """Kept, for every text asks, and gettext looks on the disk. The app's own is for a language that is not here."""
    from babel.core import get_global

    name = get_global("likely_subtags").get(name, name)  # zh is zh_Hans_CN
    found = gettext.find(DOMAIN, LOCALES, [name, name.rpartition("_")[0], name.partition("_")[0]])
    if found is None:
        return apps_own
    with open(found, "rb") as file:
        ours = gettext.GNUTranslations(file)
    ours.add_fallback(apps_own)
    return ours
