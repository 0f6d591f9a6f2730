"""Keys that are made of a URL's text, where a number names the row: ``1``, ``01`` and ``+1`` are three locks on it.

A URL converter makes one of them, ``<int:pk>``, and so does a conversion in the key, ``{pk:int}``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from django.core import checks
from django.core.exceptions import FieldDoesNotExist
from django.db.models import IntegerField, UUIDField

from ..locks.key_templates import Template
from .locked_views import class_of, locked_views, name_of

#: What a route hands on as the client has spelled it: ``<pk>``, ``<slug:pk>``; ``(?P<pk>…)`` of a regular expression.
_TEXT = re.compile(r"<(?:(?:str|slug|path):)?(\w+)>")
#: What is the key of a row by its name, where nothing says more.
_IS_KEY = re.compile(r"(\w+_)?(pk|id)")


def unconverted_keys() -> Iterator[checks.Warning]:
    """One warning for each locked view and each field of its key that may be spelled in several ways."""
    seen = set()
    for route, view, function in locked_views():
        texts = set(_TEXT.findall(route))
        templates = [maker for maker in function.keys.makers if isinstance(maker, Template)]
        for field in (field for template in templates for field in template.fields if not field.conversion):
            for name in {root for root, rest in field.choices if root in texts and not rest}:
                conversions = _conversions(view, name)
                if conversions and (view, function, name) not in seen:
                    seen.add((view, function, name))
                    yield _warning(f"The view {name_of(view)} at {route!r}", name, conversions)


def _conversions(view: Callable[..., Any], name: str) -> tuple[str, ...]:
    """What could make one spelling of this argument of a view; nothing, if its text is the row's own key."""
    column = _column(view, name)
    if column is None:
        return ("int", "uuid") if _IS_KEY.fullmatch(name) else ()
    if isinstance(column, IntegerField):
        return ("int",)
    return ("uuid",) if isinstance(column, UUIDField) else ()


def _column(view: Callable[..., Any], name: str) -> Any:
    """The model's field that the view looks its row up by, if that is by this argument."""
    view_class = class_of(view)
    model = getattr(view_class, "model", None) or getattr(getattr(view_class, "queryset", None), "model", None)
    field = getattr(view_class, "lookup_field", "pk")  # REST framework's
    if model is None or name != (getattr(view_class, "lookup_url_kwarg", None) or _argument(view_class, field)):
        return None
    try:
        column = model._meta.pk if field == "pk" else model._meta.get_field(field)
    except FieldDoesNotExist:  # it may be another model's, "owner__name"
        return None
    while column.remote_field is not None:  # a key that is another row's: of a parent, of a one-to-one relation
        column = column.target_field
    return column


def _argument(view_class: Any, field: str) -> str:
    """Django's own views have ``pk_url_kwarg``; REST framework's are called with the name of the field."""
    return str(getattr(view_class, "pk_url_kwarg", field))


def _warning(where: str, name: str, conversions: tuple[str, ...]) -> checks.Warning:
    harm = "1, 01 and +1 are three locks" if "int" in conversions else "upper and lower case are two locks"
    written = " or ".join(f"{{{name}:{conversion}}}" for conversion in conversions)
    text = "" if len(conversions) == 1 else f" {{{name}:str}} says that it is a text."
    return checks.Warning(
        f"{where}: its key has {{{name}}} as the URL spells it, so that {harm} on one row.",
        hint=f"Write {written} in the key, or <{conversions[0]}:{name}> in the route.{text}",
        id="distlock_web.W007",
    )
