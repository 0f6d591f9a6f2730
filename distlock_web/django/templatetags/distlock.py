"""``{% load distlock %}``, and ``{% once %}`` in a form beside ``{% csrf_token %}``."""

from __future__ import annotations

from django import template
from django.utils.safestring import SafeString, mark_safe

from ...web.kept_answers import hidden_field

register = template.Library()


@register.simple_tag
def once() -> SafeString:
    """A hidden field ``once``, for ``@once(key="pay:{request.POST[once]}")``: another value for each rendered form."""
    return mark_safe(hidden_field())  # noqa: S308 - nothing of a client's is in it
