"""The admin page "Held locks": who holds what, now; and the release by force."""

from __future__ import annotations

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
from ..web.held_locks import (
    LockListing,
    LockNotHeld,
    LockRow,
    ReleaseRefused,
    StoreUnreachable,
    find_lock,
    force_release,
    list_all,
)
from ..web.printable import printable
from .models import HeldLock
from .presenter import LockPresenter


@admin.register(HeldLock)
class HeldLockAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # not generic when it runs
    """Not a changelist over a table: every request asks the stores."""

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
        listing, errors, several_stores = _listing(search)
        paginator = Paginator([LockPresenter(row, search) for row in listing.rows], self.list_per_page)
        page = paginator.get_page(request.GET.get("p"))
        context = {
            "page": page,
            "pages": list(paginator.get_elided_page_range(page.number)),
            "ellipsis": paginator.ELLIPSIS,
            "search": search,
            "errors": errors,
            "several_stores": several_stores,
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
        search = given.get("q", "")
        back = reverse("admin:distlock_web_heldlock_changelist", current_app=self.admin_site.name)
        if search:
            back += "?" + urlencode({"q": search})
        try:
            row = find_lock(registry(), given.get("name", ""), given.get("store", ""), _fence(given.get("fence", "")))
            if request.method == "POST":
                self._release(request, row)
        except DistLockError as error:
            _explain(request, error, given.get("name", ""))
            return HttpResponseRedirect(back)
        if request.method == "POST":
            return HttpResponseRedirect(back)
        if request.method not in ("GET", "HEAD"):
            return HttpResponseNotAllowed(["GET", "HEAD", "POST"])
        context = {"lock": LockPresenter(row), "back": back, "search": search}
        return self._page(request, "release", context, title=_("Release by force?"), subtitle=None)

    def _release(self, request: HttpRequest, row: LockRow) -> None:
        force_release(registry(), row, by=str(request.user))
        LogEntry.objects.log_actions(
            user_id=request.user.pk,  # type: ignore[arg-type]  # admin_view lets in nobody without one
            queryset=[HeldLock(name=row.lock.name)],
            action_flag=DELETION,
            change_message=f"Released by force: {row.describe()}",
        )
        done = gettext("The lock “%(name)s” was released. Its holder learns of it at its next round trip.")
        messages.success(request, done % {"name": printable(row.lock.name)})

    def _page(self, request: HttpRequest, template: str, context: dict[str, Any], **more: Any) -> HttpResponse:
        request.current_app = self.admin_site.name
        own = {"opts": self.opts, "breadcrumbs_are_a_list": django.VERSION >= (6, 1)}
        everything = {**self.admin_site.each_context(request), **own, **context, **more}
        return TemplateResponse(request, f"admin/distlock_web/heldlock/{template}.html", everything)


def _listing(search: str) -> tuple[LockListing, list[str], bool]:
    """The held locks; in words what could not be listed; and whether there are several stores."""
    try:
        stores = registry()
    except ConfigurationError as error:  # DISTLOCK itself is wrong
        return LockListing(), [str(error)], False
    listing = list_all(stores, search)
    errors = [_unreachable(alias, error) for alias, error in listing.errors.items()]
    return listing, errors, len(stores.stores) > 1


def _fence(text: str) -> int:
    """The fence in a form or an address. Raises ``LockNotHeld`` if it is no number: nobody holds a lock with that."""
    try:
        return int(text)
    except ValueError as error:
        raise LockNotHeld from error


def _explain(request: HttpRequest, error: DistLockError, name: str) -> None:
    """Say on the next page why nothing was released."""
    if isinstance(error, ReleaseRefused):
        gone = gettext("Nothing was released: the lock “%(name)s” is no longer held by that holder.")
        messages.warning(request, gone % {"name": printable(name)[:200]})
    elif isinstance(error, StoreUnreachable):
        for alias, reason in error.errors.items():
            messages.error(request, _unreachable(alias, reason))
    else:
        messages.error(request, gettext("Nothing was released: %(error)s") % {"error": error})


def _unreachable(alias: str, error: DistLockError) -> str:
    return gettext("The locks of the store “%(alias)s” cannot be reached at the moment: %(error)s") % {
        "alias": alias,
        "error": error,
    }
