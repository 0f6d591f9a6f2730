"""Django's admin saves once: two clicks on *Save* add one object, and the second is shown what the first was.

Each form of the admin's gets a hidden field with a value of its own. What is posted with it is done under ``once``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Literal

from django.contrib import messages
from django.db import connections, router, transaction
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.template.response import TemplateResponse
from django.urls import URLPattern
from django.utils.safestring import SafeData, mark_safe

from ..locks.once import once
from ..web.asked import digest_of
from ..web.error_responses import REFUSALS
from ..web.kept_answers import hidden_field, keep, not_kept
from . import responses
from .asked import said, who
from .kept_answers import response_of

if TYPE_CHECKING:
    from django.contrib.admin import ModelAdmin

    Base = ModelAdmin[Any]
else:
    Base = object

#: ``failed``: it is rolled back, and may be done. ``again``: it stays, and runs again whenever it is asked for.
Verdict = Literal["done", "again", "failed"]
RUN_AGAIN: dict[str, Any] = {"again": True}

#: Like the admin's own ``_save`` and ``_popup``: no field of a model is called so.
FIELD = "_once"
#: Seconds that the second click waits for the first.
WAIT = 10
TEMPLATE = "admin/distlock_web/save_once.html"
#: Whichever of these is clicked second, the object has been saved.
_BUTTONS = ("_save", "_continue", "_addanother")


class SaveOnceMixin(Base):
    """For ``class OrderAdmin(SaveOnceMixin, admin.ModelAdmin)``: a form, with its inlines, is saved once; an action
    runs once.

    The second click waits for the first, for up to ten seconds, and is answered what that was answered, with its
    messages. So is a form that is sent again within an hour with the same data. The corrected form, or other data in
    the same form, is another one. What is answered with an error has not been done. A store that does not answer is a
    503: nothing is saved.
    """

    def get_urls(self) -> list[URLPattern]:
        urls: list[URLPattern] = super().get_urls()
        model = self.model._meta
        # A name that only ends so is another view's, such as auth_user_password_change: its transaction is Django's.
        locked = {f"{model.app_label}_{model.model_name}_{view}" for view in ("add", "change", "changelist")}
        for each in urls:
            if getattr(each, "name", None) in locked:
                # Django would open the transaction of ATOMIC_REQUESTS around the lock, and commit it after that.
                each.callback._non_atomic_requests = {*connections.settings}  # type: ignore[attr-defined]
        return urls

    def add_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        return self._saved_once(request, partial(super().add_view, request, *args, **kwargs))

    def change_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        return self._saved_once(request, partial(super().change_view, request, *args, **kwargs))

    def changelist_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        def shown() -> Any:
            return _with_field(super(SaveOnceMixin, self).changelist_view(request, *args, **kwargs))

        alias = router.db_for_write(self.model)
        is_atomic = connections.settings[alias]["ATOMIC_REQUESTS"]  # else an action is in no transaction
        return answer_once(request, shown, alias if is_atomic else None, _of_action)

    def render_change_form(self, *args: Any, **kwargs: Any) -> Any:
        return _with_field(super().render_change_form(*args, **kwargs))

    def _saved_once(self, request: HttpRequest, view: Callable[[], Any]) -> Any:
        return answer_once(request, view, router.db_for_write(self.model), _of_form)


def answer_once(
    request: HttpRequest, view: Callable[[], Any], database: str | None, judge: Callable[[Any], Verdict]
) -> Any:
    """The view's answer, or that of the first request with this field and this data.

    ``database``: whose transaction is committed before the record is there. None: none is opened.
    """
    if request.method != "POST" or not request.POST.get(FIELD):  # a program, or a template without the field
        with _atomic_requests():
            return view()
    made: list[Any] = []

    def run() -> dict[str, Any] | None:
        before = len(_shown(request))
        with _atomic_requests(beside=database):
            made.append(response := view())
            match judge(response):
                case "done":
                    return _kept(response, _shown(request)[before:])
                case "again":
                    return RUN_AGAIN
            return None

    try:
        kept = _once(database)(_digest(request), run)
    except REFUSALS as error:
        return responses.refused(error, request)
    if made:
        return made[0]
    if kept != RUN_AGAIN:
        return _again(kept, request)
    with _atomic_requests():
        return view()


@cache
def _once(database: str | None) -> Callable[[str, Callable[[], Any]], Any]:
    commit: dict[str, Any] = {} if database is None else {"until": "commit", "database": database}
    return once(
        key="admin:{asked}", keep="1h", expire=30, renew=True, wait=WAIT, max_waiters=2, on_busy="raise", result=True,
        on_backend_error="raise", success=lambda kept: kept is not None, **commit,
    )(_save)  # fmt: skip


def _save(asked: str, run: Callable[[], Any]) -> Any:
    return run()


def _digest(request: HttpRequest) -> str:
    """Whose form it is, and with what data: a user may go back to a saved form, and save something else."""
    fields = request.POST.copy()
    for button in _BUTTONS:
        fields.pop(button, None)
    return digest_of(*who(request, request, request.user), request.get_full_path(), *said(fields, request.FILES))


@contextmanager
def _atomic_requests(beside: str | None = None) -> Iterator[None]:
    """The transactions that ``get_urls`` has kept Django from opening."""
    with ExitStack() as stack:
        for alias, database in connections.settings.items():
            if database["ATOMIC_REQUESTS"] and alias != beside:
                stack.enter_context(transaction.atomic(using=alias))
        yield


# What is kept of an answer, and shown again ---------------------------------------------------------------------------


def _of_form(response: Any) -> Verdict:
    """The form again, with what is wrong with it, is a 200, and so is what closes a popup."""
    is_form = "adminform" in (getattr(response, "context_data", None) or {})
    return "failed" if is_form or response.status_code >= 400 else "done"


def _of_action(response: Any) -> Verdict:
    """What it has done is committed in any case. Its file is to be had again, and its page asks something."""
    return "done" if response.status_code in (302, 303) else "again"


def _kept(response: Any, shown: Iterable[Any]) -> dict[str, Any]:
    if not getattr(response, "is_rendered", True):
        response.render()
    body = None if response.streaming else response.content
    told = [[each.level, _text(each), each.extra_tags, isinstance(each.message, SafeData)] for each in shown]
    return {"answer": keep("SaveOnceMixin", response.status_code, response.items(), body), "messages": told}


def _text(message: Any) -> str:
    return str(message.message) + ""  # of one that is safe, plain text


def _again(kept: Any, request: HttpRequest) -> HttpResponseBase:
    """With the messages of the first answer, which the browser may have thrown away: it waited for this one."""
    kept = kept or {"answer": not_kept("SaveOnceMixin", "it is too long"), "messages": []}
    waiting = [_text(each) for each in _shown(request)]
    for level, text, tags, is_safe in kept["messages"]:
        if text not in waiting:
            messages.add_message(request, level, mark_safe(text) if is_safe else text, tags, fail_silently=True)  # noqa: S308 - as the first one was
    return response_of(kept["answer"], request)


def _shown(request: HttpRequest) -> list[Any]:
    """The messages that wait for the next page, and go on to wait."""
    storage: Any = messages.get_messages(request)
    found = list(storage)
    if found:
        storage.used = False
    return found


# The field ------------------------------------------------------------------------------------------------------------


def _with_field(response: Any) -> Any:
    """The page's own template, and the field in its form."""
    if isinstance(response, TemplateResponse) and not response.is_rendered:
        response.context_data = {
            **(response.context_data or {}),
            "distlock_page": response.resolve_template(response.template_name),
            "distlock_once": mark_safe(hidden_field(FIELD)),  # noqa: S308 - nothing of a client's is in it
        }
        response.template_name = TEMPLATE
    return response
