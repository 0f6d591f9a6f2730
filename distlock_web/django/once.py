"""``once`` in Django: what is kept of a response, and how that is made again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from asgiref.sync import sync_to_async
from django.http import HttpResponse
from django.http.response import HttpResponseBase

from ..web import once
from ..web.once import keep


async def answer_of(response: Any, function: str, *, asynchronous: bool) -> dict[str, Any] | None:
    """What is kept of a response, which is rendered for that; None of what is none."""
    if not isinstance(response, HttpResponseBase):
        return None
    if not getattr(response, "is_rendered", True):
        if hasattr(response, "data") and not hasattr(response, "accepted_renderer"):
            return _data(response, function)
        render: Any = response.render  # type: ignore[attr-defined]
        response = await sync_to_async(render)() if asynchronous else render()
    body = None if response.streaming else response.content
    return keep(function, response.status_code, response.items(), body)


def _data(response: Any, function: str) -> dict[str, Any]:
    """REST framework has not chosen the renderer yet: it does that when the method has returned."""
    from rest_framework.renderers import JSONRenderer

    headers = [(name, value) for name, value in response.items() if name.lower() != "content-type"]
    if response.content_type:
        headers.append(("Content-Type", response.content_type))
    try:
        # Bytes are for a renderer of the project's own, which would not know them again.
        body = None if isinstance(response.data, bytes) else JSONRenderer().render(response.data)
    except (TypeError, ValueError):  # a model for a template, for instance: the work is done all the same
        body = None
    kept = keep(function, response.status_code, headers, body)
    return {**kept, "is_data": "body" in kept, "template_name": response.template_name}


def replay(kept: Mapping[str, Any]) -> HttpResponseBase:
    """The response again."""
    made = once.replay(kept)
    if kept.get("is_data"):
        from rest_framework.response import Response

        headers = dict(made.headers)
        own = headers.pop("Content-Type", None)
        data = json.loads(made.body) if made.body else None
        template = kept.get("template_name")
        response: HttpResponseBase = Response(data, made.status, template, headers=headers, content_type=own)
        return response
    return HttpResponse(made.body, status=made.status, headers=dict(made.headers))
