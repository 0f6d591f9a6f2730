"""``until="commit"`` on one method of a class-based view, or on one action of a ViewSet, under ``ATOMIC_REQUESTS``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any

from django.db import connections, transaction
from django.http import HttpRequest

from ..locks.call import LockedFunction, locks_on
from .transactions import alias_of, in_test_case, savepoint_of_test_case


class UntilCommitMixin:
    """The first base of a view class that has ``until="commit"`` on single methods or actions.

    ``ATOMIC_REQUESTS`` opens its transaction around the whole view, before such a method takes its lock. The mixin
    exempts the view from it, for the databases of such methods, and opens the transaction again around every other
    method. So each method has one transaction, and with ``until="commit"`` it is inside the lock.
    """

    @classmethod
    def as_view(cls, *args: Any, **initkwargs: Any) -> Callable[..., Any]:
        view: Callable[..., Any] = super().as_view(*args, **initkwargs)  # type: ignore[misc]
        own: set[str] = getattr(view, "_non_atomic_requests", set())
        actions = getattr(view, "actions", None) or {}  # REST framework: HTTP method → name of the action
        handlers = actions.values() or cls.http_method_names  # type: ignore[attr-defined]
        taken = _owned(getattr(cls, name, None) for name in handlers) - own
        view.distlock_taken = taken  # type: ignore[attr-defined]
        view._non_atomic_requests = own | taken  # type: ignore[attr-defined]
        return view

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        own = _owned([getattr(self, (request.method or "").lower(), None)])
        with ExitStack() as transactions:
            # Not the class but the view, as Django found it: where another decorator hid that, Django did not see it.
            for alias in taken(getattr(request.resolver_match, "func", None)):
                if not connections[alias].settings_dict["ATOMIC_REQUESTS"]:
                    continue
                if alias not in own:
                    transactions.enter_context(transaction.atomic(using=alias))
                elif in_test_case(connections[alias]):
                    # REST framework rolls back what is open when it answers an exception, a busy lock, for instance:
                    # here that would be the test's own transaction, in which no query is possible after that.
                    transactions.enter_context(savepoint_of_test_case(alias))
            return super().dispatch(request, *args, **kwargs)  # type: ignore[misc]


def taken(view: object) -> set[str]:
    """The databases that :class:`UntilCommitMixin` took a view out of ``ATOMIC_REQUESTS`` for."""
    found: set[str] = getattr(view, "distlock_taken", set())
    return found


def has_mixin(view: object) -> bool:
    """Whether :class:`UntilCommitMixin` made the view, though nothing of it may be ``until="commit"`` yet."""
    return hasattr(view, "distlock_taken")


def owned_by(locks: Iterable[LockedFunction]) -> set[str]:
    """The databases whose transactions these locks own."""
    names = {alias_of(each.database) for each in locks if each.until == "commit"}
    return {name for name in names if name is not None}


def _owned(handlers: Iterable[Any]) -> set[str]:
    """Those of handlers: the lock that owns it may be below another one."""
    return owned_by(lock for handler in handlers for lock in locks_on(handler))
