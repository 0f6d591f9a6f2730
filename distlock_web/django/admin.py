"""The admin page "Held locks": who holds what, now; and the release by force. Made of ``web/lock_pages``."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any

from django.apps import apps
from django.contrib import admin, messages
from django.contrib.admin.models import DELETION, LogEntry
from django.core.exceptions import PermissionDenied
from django.db import router, transaction
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.middleware.csrf import get_token
from django.template import Context, Engine, Library
from django.template.response import TemplateResponse
from django.templatetags.static import static
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe

from ..ops.held_locks import LockRow
from ..ops.readable import printable
from ..web.lock_pages import Viewer, list_context, lock_context
from ..web.lock_presenter import Links
from ..web.page_assets import TEMPLATES, VERSION, asset
from ..web.release_pages import choose, list_url, release, release_context
from ..web.texts import _
from .models import HeldLock
from .save_once import SaveOnceMixin

__all__ = ["HeldLock", "HeldLockAdmin", "SaveOnceMixin"]

LEVELS = {"success": messages.SUCCESS, "warning": messages.WARNING, "error": messages.ERROR}


@admin.register(HeldLock)
class HeldLockAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # not generic when it runs
    """The page. It is no changelist over a table: every request asks the stores.

    A project may subclass it and register that: who may look and release is asked of ``has_view_permission`` and
    ``has_release_permission``.
    """

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: HeldLock | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: HeldLock | None = None) -> bool:
        return False

    def has_view_permission(self, request: HttpRequest, obj: HeldLock | None = None) -> bool:
        # Django's own also accepts "change", which this model has not.
        return request.user.has_perm("distlock_web.view_heldlock")  # type: ignore[union-attr]

    def has_release_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("distlock_web.release_heldlock")  # type: ignore[union-attr]

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view
        return [
            path("", view(self.changelist_view), name="distlock_web_heldlock_changelist"),
            path("lock/", view(self.lock_view), name="distlock_web_heldlock_lock"),
            path("release/", view(self.release_view), name="distlock_web_heldlock_release"),
            path("assets/<str:name>", asset_view, name="distlock_web_heldlock_asset"),
        ]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """The list; with ``?fragment`` only what goes on by itself."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        context = list_context(request.GET.dict(), self._viewer(request))
        return self._live(request, "list", context, _("Held locks"), extra_context)

    def lock_view(self, request: HttpRequest) -> HttpResponse:
        """One lock; with ``?fragment`` only what goes on by itself."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        context = lock_context(request.GET.dict(), self._viewer(request))
        return self._live(request, "lock", context, context["name"])

    def release_view(self, request: HttpRequest) -> HttpResponse:
        """Ask before, then take each lock from exactly the holder that was shown: store, name and fence name it."""
        if not self._may_release(request):
            raise PermissionDenied
        if request.method not in ("GET", "HEAD", "POST"):
            return HttpResponseNotAllowed(["GET", "HEAD", "POST"])
        given = request.POST if request.method == "POST" else request.GET
        viewer, parameters = self._viewer(request), given.dict()
        meant = choose(given.getlist("lock"))
        if meant.rows and "confirmed" not in request.POST:
            context = release_context(meant, viewer, parameters)
            return self._page(request, render("release.html", context), context["title"])
        for kind, text in release(meant, str(request.user), partial(self._audit, request)):
            messages.add_message(request, LEVELS[kind], text)
        return HttpResponseRedirect(list_url(viewer, parameters))

    def _audit(self, request: HttpRequest, row: LockRow, what: str) -> None:
        with transaction.atomic(router.db_for_write(LogEntry)):  # ATOMIC_REQUESTS: a failure ends no more than this
            LogEntry.objects.log_actions(
                user_id=request.user.pk,  # type: ignore[arg-type]  # admin_view lets in only users with one
                queryset=[HeldLock(name=printable(row.lock.name))],  # PostgreSQL takes no NUL
                action_flag=DELETION,
                change_message=f"{what}: {row.describe()}",
            )

    def _viewer(self, request: HttpRequest) -> Viewer:
        request.current_app = self.admin_site.name
        links = Links(*(self._url(name) for name in ("changelist", "lock", "release")))
        csrf = format_html('<input type="hidden" name="csrfmiddlewaretoken" value="{}">', get_token(request))
        return Viewer(links, self._may_release(request), csrf)

    def _may_release(self, request: HttpRequest) -> bool:
        """Asks both: a project's own ``has_release_permission`` need not ask who may look."""
        return self.has_view_permission(request) and self.has_release_permission(request)

    def _url(self, view: str, *args: str) -> str:
        return reverse(f"admin:distlock_web_heldlock_{view}", args=args, current_app=self.admin_site.name)

    def _file_url(self, name: str) -> str:
        """Of a style sheet or a script: where the admin's own are, if staticfiles serves them; else ``asset_view``."""
        if apps.is_installed("django.contrib.staticfiles"):
            return static(f"distlock_web/{name}")
        return f"{self._url('asset', name)}?v={VERSION}"

    def _live(
        self, request: HttpRequest, name: str, context: dict[str, Any], title: Any, more: dict[str, Any] | None = None
    ) -> HttpResponse:
        if "fragment" in request.GET:
            return HttpResponse(render(f"{name}_live.html", context), headers={"Cache-Control": "no-store"})
        return self._page(request, render(f"{name}.html", context), title, more)

    def _page(
        self, request: HttpRequest, body: SafeString, title: Any, more: dict[str, Any] | None = None
    ) -> HttpResponse:
        own = {"opts": self.opts, "title": title, "subtitle": None, "body": body}
        files = {
            name.replace(".", "_"): self._file_url(name) for name in ("held_locks.css", "admin.css", "held_locks.js")
        }
        everything = {**self.admin_site.each_context(request), **own, **files, **(more or {})}
        return TemplateResponse(request, "admin/distlock_web/heldlock/change_list.html", everything)


def asset_view(request: HttpRequest, name: str) -> HttpResponse:
    """A style sheet or a script, in a project without staticfiles. No secret: it needs no login."""
    found = asset(name, request.GET.get("v"))
    if found is None:
        raise Http404
    return HttpResponse(found[0], headers=found[1])


def render(template: str, context: dict[str, Any]) -> SafeString:
    """One of the templates that all frameworks share, in Django's engine."""
    return mark_safe(_engine().get_template(template).render(Context(context)))  # noqa: S308 - the engine has escaped it


@lru_cache(maxsize=1)
def _engine() -> Engine:
    engine, library = Engine(dirs=[str(TEMPLATES)]), Library()
    # A template's own text is safe, for which Django's gettext makes the translation safe: text + "" is text again.
    library.filter("t", lambda text: _(text + ""))
    engine.template_builtins.append(library)
    return engine
