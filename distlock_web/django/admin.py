"""The admin page "Held locks": who holds what, now; and the release by force."""

from __future__ import annotations

import logging
from typing import Any

import django
from django.contrib import admin, messages
from django.contrib.admin.models import DELETION, LogEntry
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.http import urlencode
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ..core.errors import ConfigurationError, DistLockError
from ..core.registry import registry
from ..web.held_locks import Listing, held, printable, revoke
from .models import HeldLock
from .presenter import LockPresenter

logger = logging.getLogger("distlock_web")


@admin.register(HeldLock)
class HeldLockAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # not generic when it runs
    """Not a changelist over a table: every look asks the stores."""

    list_per_page = 50

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
        return self.has_view_permission(request) and request.user.has_perm("distlock_web.release_heldlock")  # type: ignore[union-attr]

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view
        return [
            path("", view(self.changelist_view), name="distlock_web_heldlock_changelist"),
            path("release/", view(self.release_view), name="distlock_web_heldlock_release"),
        ]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """The list; with ``?fragment`` only its table, for the page that refreshes itself."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        search = request.GET.get("q", "").strip()
        listing, errors = _listing(search)
        paginator = Paginator([LockPresenter(row, search) for row in listing.rows], self.list_per_page)
        page = paginator.get_page(request.GET.get("p"))
        context = {
            "page": page,
            "pages": list(paginator.get_elided_page_range(page.number)),
            "ellipsis": paginator.ELLIPSIS,
            "search": search,
            "errors": errors,
            "several_stores": _several_stores(),
            "may_release": self.has_release_permission(request),
        }
        if "fragment" in request.GET:
            request.current_app = self.admin_site.name
            return TemplateResponse(request, "admin/distlock_web/heldlock/list.html", context)
        return self._page(
            request, "change_list", context, title=_("Held locks"), subtitle=None, **(extra_context or {})
        )

    def release_view(self, request: HttpRequest) -> HttpResponse:
        """Ask before, then take the lock from exactly the holder that was shown: store, name and fence name it."""
        if not self.has_release_permission(request):
            raise PermissionDenied
        given = request.POST if request.method == "POST" else request.GET
        back = reverse("admin:distlock_web_heldlock_changelist", current_app=self.admin_site.name)
        if search := given.get("q"):
            back += "?" + urlencode({"q": search})
        try:
            line = _find(given.get("store", ""), given.get("name", ""), given.get("fence", ""))
        except DistLockError as error:
            messages.error(request, _trouble(given.get("store", ""), error))
            return HttpResponseRedirect(back)
        if line is None:
            messages.warning(request, _gone(given.get("name", "")))
            return HttpResponseRedirect(back)
        if request.method == "POST":
            self._release(request, line)
            return HttpResponseRedirect(back)
        if request.method not in ("GET", "HEAD"):
            return HttpResponseNotAllowed(["GET", "HEAD", "POST"])
        context = {"line": line, "back": back, "search": given.get("q", "")}
        return self._page(request, "release", context, title=_("Release by force?"), subtitle=None)

    def _release(self, request: HttpRequest, line: LockPresenter) -> None:
        lock, holder = line.lock, line.holder
        try:
            released = revoke(registry(), line.alias, lock.name, lock.fence)
        except DistLockError as error:
            messages.error(request, _trouble(line.alias, error))
            return
        if not released:
            messages.warning(request, _gone(lock.name))
            return
        details = (
            f"store {line.alias}, fence {lock.fence}, request {holder.request_id or '-'}, "
            f"held by {holder.path or holder.what or '-'} on {holder.host or '-'} pid {holder.pid}"
        )
        LogEntry.objects.log_actions(
            user_id=request.user.pk,  # type: ignore[arg-type]  # admin_view lets in nobody without one
            queryset=[HeldLock(name=lock.name)],
            action_flag=DELETION,
            change_message=f"Released by force: {details}",
        )
        logger.warning("Lock %s released by force by %s: %s", line.name, request.user, details)
        messages.success(
            request,
            gettext("The lock “%(name)s” was released. Its holder learns of it at its next round trip.")
            % {"name": line.name},
        )

    def _page(self, request: HttpRequest, template: str, context: dict[str, Any], **more: Any) -> HttpResponse:
        request.current_app = self.admin_site.name
        own = {"opts": self.opts, "breadcrumbs_are_a_list": django.VERSION >= (6, 1)}
        everything = {**self.admin_site.each_context(request), **own, **context, **more}
        return TemplateResponse(request, f"admin/distlock_web/heldlock/{template}.html", everything)


def _listing(search: str) -> tuple[Listing, list[str]]:
    """The held locks, and in words what could not be listed."""
    try:
        listing = held(registry(), search)
    except ConfigurationError as error:  # DISTLOCK itself is wrong
        return Listing([], {}), [str(error)]
    return listing, [_trouble(alias, error) for alias, error in listing.errors.items()]


def _several_stores() -> bool:
    try:
        return len(registry().stores) > 1
    except ConfigurationError:
        return False


def _find(alias: str, name: str, fence: str) -> LockPresenter | None:
    """The hold that is meant; None if it is over. Raises ``DistLockError`` if its store cannot be asked."""
    listing = held(registry())
    if alias in listing.errors:
        raise listing.errors[alias]
    for row in listing.rows:
        if (row.alias, row.lock.name, str(row.lock.fence)) == (alias, name, fence):
            return LockPresenter(row)
    return None


def _gone(name: str) -> str:
    return gettext("Nothing was released: the lock “%(name)s” is no longer held by that holder.") % {
        "name": printable(name)[:200]
    }


def _trouble(alias: str, error: DistLockError) -> str:
    return gettext("The locks of the store “%(alias)s” cannot be reached at the moment: %(error)s") % {
        "alias": alias,
        "error": error,
    }
