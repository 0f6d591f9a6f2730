"""What Django offers to locks: its transactions, its streaming responses, its async views, its 404."""

from __future__ import annotations

from typing import Any

from asgiref.sync import sync_to_async
from django.conf import settings
from django.http import Http404, HttpRequest, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import resolve_url
from django.urls import NoReverseMatch
from django.utils.functional import LazyObject

from ..locks.hooks import Answer, Args, Asked, Kwargs, TransactionManager
from ..web.framework import Given, WebIntegration
from ..web.kept_answers import warn_of_lost
from . import asked, kept_answers
from .locked_views import is_async_view, is_operation_of, is_view_of, made_name_of
from .responses import request_in
from .streaming import send_under_lock
from .transactions import DjangoTransactions, alias_of, open_transaction


class DjangoIntegration(WebIntegration):
    """Installed by ``apps.py``. Django's settings are the process's, so it has no registry of a running app."""

    streaming = (StreamingHttpResponse,)
    send_under_lock = staticmethod(send_under_lock)
    no_such_page = Http404  # without a text: Django's and REST framework's pages would show it to the client
    is_coroutine = staticmethod(is_async_view)
    name_of = staticmethod(made_name_of)
    open_transaction = staticmethod(open_transaction)

    def called_view(self, args: Args, kwargs: Kwargs, locked: Any) -> HttpRequest | None:
        return request_in(_arguments(args, kwargs, locked))

    def answer(self, result: Any, request: Any | None, locked: Any) -> Given | None:
        if isinstance(result, HttpResponseBase):
            return Given(result.status_code, result.items())
        status = kept_answers.status_of(result)
        return None if request is None or status is None or not is_operation_of(request, locked) else Given(status)

    async def loaded(self, value: Any) -> Any:
        # Never request.auser() in its place: that is the session's user, whatever a middleware has made request.user.
        if isinstance(value, LazyObject):
            await sync_to_async(lambda: value.__class__)()
        return value

    def transactions(self, database: object) -> TransactionManager | None:
        return DjangoTransactions() if alias_of(database) else None

    async def who_asks(self, request: Any, args: Args, kwargs: Kwargs, locked: Any) -> Asked:
        return await asked.asked(_arguments(args, kwargs, locked), request, asynchronous=locked.asynchronous)

    async def kept_of(self, result: Any, request: Any, locked: Any) -> dict[str, Any] | None:
        # A response is given again to each client that has got one. A value may be what only the caller knows.
        if isinstance(result, HttpResponseBase) or (is_view_of(request, locked) and not locked.once.keeps_result):
            return await kept_answers.answer_of(result, request, locked)
        warn_of_lost(result, locked)
        return None

    def replayed(self, kept: dict[str, Any], request: Any, locked: Any) -> Answer:
        return kept_answers.replay(kept, request, is_marked=is_view_of(request, locked))

    def login_page(self) -> str:
        try:
            return resolve_url(settings.LOGIN_URL)
        except NoReverseMatch:  # the project has none: its login is another's, whose address has a "next"
            return ""


def _arguments(args: Args, kwargs: Kwargs, locked: Any) -> Args:
    """Where a request may be: by name; where a helper of a view's has it, behind others; or where views have it."""
    if "request" in kwargs:
        return (kwargs["request"], *args)
    place, _ = locked.keys.parameters.get("request", (0, None))
    return (*args[place : place + 1], *args) if place > 1 else args
