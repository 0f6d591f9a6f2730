"""What Django offers to locks: its transactions, its streaming responses, its async views, its 404."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from asgiref.sync import sync_to_async
from django.conf import settings
from django.http import Http404, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import resolve_url
from django.urls import NoReverseMatch
from django.utils.functional import LazyObject

from ..locks.hooks import Answer, Integration, TransactionManager
from ..locks.lease import Lease
from ..locks.once import Once
from ..web.once import returned_class, warn_of_lost
from ..web.success import is_failure
from . import asked, once
from .locked_views import is_async_view, is_operation_of, is_view_of, made_name_of
from .responses import request_in
from .streaming import send_under_lock
from .transactions import DjangoTransactions, alias_of, open_transaction


class DjangoIntegration(Integration):
    """Installed by ``apps.py``. Django's settings are the process's, so it has no registry of a running app."""

    def is_coroutine(self, function: Callable[..., Any]) -> bool:
        return is_async_view(function)

    def name_of(self, function: Callable[..., Any]) -> str | None:
        return made_name_of(function)

    def request_of(self, args: tuple[object, ...], locked: object) -> Any:
        return request_in(args)

    async def loaded(self, value: Any) -> Any:
        # Never request.auser() in its place: that is the session's user, whatever a middleware has made request.user.
        if isinstance(value, LazyObject):
            await sync_to_async(lambda: value.__class__)()
        return value

    def not_found(self, args: tuple[object, ...], locked: object) -> Http404 | None:
        # Without a text: Django's and REST framework's pages would show it to the client.
        return None if request_in(args) is None else Http404()

    def transactions(self, database: object) -> TransactionManager | None:
        return DjangoTransactions() if alias_of(database) else None

    def open_transaction(self) -> str | None:
        return open_transaction()

    def stream(self, result: Any, locked: object, lease: Lease) -> StreamingHttpResponse | None:
        return send_under_lock(result, lease) if self.is_stream(result, locked) else None

    def is_stream(self, result: Any, locked: object) -> bool:
        return isinstance(result, StreamingHttpResponse)

    def is_failure(self, result: Any, args: tuple[object, ...], locked: Any) -> bool:
        is_for_others = isinstance(locked, Once)
        if isinstance(result, HttpResponseBase):
            location = result.headers.get("Location")
            return is_failure(result.status_code, location, _login_page(), is_for_others=is_for_others)
        request, status = request_in(args), once.status_of(result)
        if request is None or status is None or not is_operation_of(request, locked):
            return False
        return is_failure(status, is_for_others=is_for_others)

    async def asked(self, args: tuple[object, ...], locked: Any) -> str | None:
        request = request_in(args)
        return None if request is None else await asked.asked(args, request, asynchronous=locked.asynchronous)

    def streams(self, function: Callable[..., Any]) -> bool:
        return issubclass(returned_class(function), StreamingHttpResponse)

    async def answer_of(self, result: Any, args: tuple[object, ...], locked: Any) -> dict[str, Any] | None:
        request = request_in(args)
        if request is None:
            return None
        # A response is given again to whoever has got one. A value may be what only the caller knows.
        if isinstance(result, HttpResponseBase) or (is_view_of(request, locked) and not locked.keeps_result):
            return await once.answer_of(result, request, locked)
        warn_of_lost(result, locked)
        return None

    def replay(self, kept: dict[str, Any], args: tuple[object, ...], locked: Any) -> Answer | None:
        request = request_in(args)
        return None if request is None else once.replay(kept, request, is_marked=is_view_of(request, locked))


def _login_page() -> str:
    try:
        return resolve_url(settings.LOGIN_URL)
    except NoReverseMatch:  # the project has none: its login is another's, whose address has a "next"
        return ""
