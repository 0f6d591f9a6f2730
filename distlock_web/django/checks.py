"""What can be known to be wrong before the first request."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from functools import partial
from inspect import Parameter
from typing import Any

from django.conf import settings
from django.core import checks, mail
from django.db import DEFAULT_DB_ALIAS, connections
from django.utils.module_loading import import_string

from ..core.config import read, with_resource
from ..core.errors import ConfigurationError
from ..core.findings import Finding, Severity
from ..core.registry import Store, registry
from ..core.request_id import DEFAULT_HEADER
from ..core.runtime import TASKS, THREADS
from ..locks.call import LockedFunction
from ..locks.key_templates import Template
from ..ops.doctor import examine_store
from ..web.settings import read_setting, unknown_settings
from .diagnosis import shared_caches
from .locked_views import (
    SKIP_REMEDY,
    class_of,
    hidden_locks,
    is_above_login,
    is_api_view,
    is_ninjas,
    is_outermost,
    locked_views,
    locks_around,
    locks_of_handler,
    locks_of_helpers,
    name_of,
    skips,
    views,
)
from .middleware import RequestIDMiddleware
from .stores import RESOURCES, project_mapping
from .transactions import alias_of
from .views import has_mixin, owned_by, taken

EXAMPLE = 'DISTLOCK = {"default": {"BACKEND": "redis", "LOCATION": "redis://127.0.0.1:6379/0"}}'


@checks.register("distlock_web")
def check_stores(**kwargs: Any) -> Iterator[checks.CheckMessage]:
    if not _has_mapping() and not os.environ.get("DISTLOCK_URL"):
        yield checks.Warning(
            "DISTLOCK is not set: the first lock that is used raises ConfigurationError.",
            hint=f"Set it, for example {EXAMPLE}, or set the environment variable DISTLOCK_URL.",
            id="distlock_web.W001",
        )
        return
    mapping, mistakes = project_mapping()
    configs, more = read(mapping) if mapping is not None else ({}, [])
    yield from map(_invalid, [*mistakes, *more])
    try:
        stores = [Store(with_resource(config, RESOURCES)) for config in configs.values()] if mistakes or more else None
        for store in registry().stores.values() if stores is None else stores:
            yield from _store(store)
    except ConfigurationError as error:
        yield _invalid(error)


def _store(store: Store) -> Iterator[checks.CheckMessage]:
    try:
        store.backend  # noqa: B018 - makes it: its driver, its options, its cache; nothing is sent yet
    except ConfigurationError as error:
        yield _invalid(error)
    if store.config.backend == "memory" and not settings.DEBUG and not _testing():
        yield _memory(store.alias)


def _is_made(store: Store) -> bool:
    """Else what is wrong with it is E001."""
    try:
        store.backend  # noqa: B018 - as in _store
    except ConfigurationError:
        return False
    return True


def _has_mapping() -> bool:
    """Else the stores come from the environment's ``DISTLOCK_URL``."""
    return getattr(settings, "DISTLOCK", None) is not None


def _memory(alias: str) -> checks.Warning:
    store = f"DISTLOCK[{alias!r}]" if _has_mapping() else "DISTLOCK_URL"
    return checks.Warning(
        f"{store} keeps its locks in memory: they exclude nobody outside of one process.",
        hint=f"Use a store that all processes share, for example {EXAMPLE}.",
        id="distlock_web.W003",
    )


def _invalid(error: ConfigurationError) -> checks.Error:
    return checks.Error(str(error), id="distlock_web.E001")


def _testing() -> bool:
    """Test runners replace the mailbox, and set DEBUG to False."""
    return hasattr(mail, "outbox")


@checks.register("distlock_web")
def check_names(**kwargs: Any) -> Iterator[checks.CheckMessage]:
    slips, others = unknown_settings(dir(settings), "settings.py has")
    rename = "Correct the name, or leave it out. If the project uses it itself, give it another name."
    yield from (checks.Error(str(error), hint=rename, id="distlock_web.E006") for error in slips)
    yield from (checks.Warning(str(error), hint=rename, id="distlock_web.W008") for error in others)


@checks.register("distlock_web", deploy=True)
def check_deployment(**kwargs: Any) -> Iterator[checks.CheckMessage]:
    """With ``check --deploy`` the doctor looks at each store, from where this runs."""
    return map(_message, _examined() if _settings_are_right() else ())


def _examined() -> Iterator[Finding]:
    configured = registry()
    for store in configured.stores.values():
        if not _is_made(store):
            continue
        # W003 says it of a store in memory, without --deploy; not where DEBUG is on.
        yield from (each for each in examine_store(store) if each.code != "DL003" or settings.DEBUG or _testing())
    yield from shared_caches(configured)


def _message(finding: Finding) -> checks.CheckMessage:
    # That a store is out of reach from where a release is built is no reason to stop the release.
    severity = "warning" if finding.code == "DL001" else finding.severity
    kind = {"error": checks.Error, "warning": checks.Warning, "info": checks.Info}[severity]
    return kind(
        f"{finding.where}: {finding.problem} {finding.harm}", hint=finding.remedy, id=f"distlock_web.{finding.code}"
    )


def findings() -> list[Finding]:
    """What the doctor of ``manage.py distlock`` adds to that of the stores: these checks, and what is beside them."""
    found: list[Finding] = []
    for check in (
        check_stores,
        check_names,
        check_request_id,
        check_views,
        check_keys,
        check_logins,
        check_transactions,
    ):
        try:
            messages = list(check())
        except Exception as error:  # a URLconf that cannot be imported fails in any way
            problem = f"{type(error).__name__}: {error}"
            harm, remedy = "The project's views could not be looked at.", "What the message names."
            found.append(Finding("DL007", "error", problem, harm, remedy, "project"))
            continue
        # The doctor says the same of a store in its own words.
        found += [_finding(each) for each in messages if each.id not in _SAID_OF_STORES and not each.is_silenced()]
    if _settings_are_right():
        found += shared_caches(registry())
    return found


_SAID_OF_STORES = ("distlock_web.W003", "distlock_web.E001")


def _finding(message: checks.CheckMessage) -> Finding:
    severity: Severity = "info" if message.level < checks.WARNING else "error" if message.is_serious() else "warning"
    code = str(message.id).removeprefix("distlock_web.")
    return Finding(code, severity, message.msg, "", message.hint or "", "project")


@checks.register("distlock_web")
def check_request_id(**kwargs: Any) -> Iterator[checks.CheckMessage]:
    try:
        read_setting("DISTLOCK_REQUEST_ID_HEADER", partial(getattr, settings))
    except ConfigurationError as error:
        hint = f"Such as {DEFAULT_HEADER!r} or 'X-Request-ID'."
        yield checks.Error(str(error), hint=hint, id="distlock_web.E002")
    try:
        read_setting("DISTLOCK_USER", partial(getattr, settings))
    except ConfigurationError as error:
        hint = "A callable that is given the request, or its dotted path; None shows no user."
        yield checks.Error(str(error), hint=hint, id="distlock_web.E008")
    if not any(_is_ours(path) for path in settings.MIDDLEWARE):
        yield checks.Warning(
            "RequestIDMiddleware is not in MIDDLEWARE: requests have no request id, and a busy lock is a 500 "
            "instead of a 409.",
            hint='Put "distlock_web.django.middleware.RequestIDMiddleware" in front in MIDDLEWARE.',
            id="distlock_web.W002",
        )


def _is_ours(path: str) -> bool:
    try:
        middleware = import_string(path)
    except ImportError:  # Django says so itself, at the first request
        return False
    return isinstance(middleware, type) and issubclass(middleware, RequestIDMiddleware)


@checks.register(checks.Tags.urls)
def check_views(**kwargs: Any) -> Iterator[checks.CheckMessage]:
    if not _settings_are_right():  # which is one error, not one more for every view
        return
    for where, _, view, function in _views():
        try:
            skipped = skips(function)
        except ConfigurationError as error:
            hint = "Name a store that DISTLOCK has, or add it there."
            yield checks.Error(f"{where}: {error}", hint=hint, id="distlock_web.E004")
            continue
        try:
            store = registry().store(function.options.store)
            if _is_made(store):
                function.options.check(store, TASKS if function.asynchronous else THREADS)
        except ConfigurationError as error:
            hint = "Name a store that can, with store=, or leave the option out."
            yield checks.Error(f"{where}: {error}", hint=hint, id="distlock_web.E004")
        if skipped:
            yield _skipped(f'{where}: on_busy="skip" returns None when the lock is busy', view, function)


def _skipped(what: str, view: Callable[..., Any], function: LockedFunction) -> checks.CheckMessage:
    if is_ninjas(view) and not is_outermost(view, function):  # an operation may mean it, with response={204: None}
        message = f"{what}, and Ninja makes an answer of it that a client would take for success."
        return checks.Warning(message, hint=SKIP_REMEDY, id="distlock_web.W011")
    return checks.Error(f"{what}, and a view that returns None is a 500.", hint=SKIP_REMEDY, id="distlock_web.E003")


def _settings_are_right() -> bool:
    try:
        registry()
    except ConfigurationError:
        return False
    return True


#: What a route hands on as the client has spelled it, and what is the key of a row by its name: ``<pk>``,
#: ``<slug:order_id>``; ``(?P<pk>…)`` of a regular expression.
_ROW_AS_SPELLED = re.compile(r"<(?:(?:str|slug|path):)?((?:\w+_)?(?:pk|id))>")

_TEXTS = (Parameter.empty, str, "str")


@checks.register(checks.Tags.urls)
def check_keys(**kwargs: Any) -> Iterator[checks.CheckMessage]:
    """``1``, ``01`` and ``+1`` are three locks on one row, unless the route or the key makes a number of it."""
    for where, route, view, function in _views():
        spelled, or_else = set(_ROW_AS_SPELLED.findall(route)), "<int:{name}> in the route"
        if is_ninjas(view):  # which makes of a value what its annotation says
            or_else = "annotate it: {name}: int"
            parameters = function.keys.signature.parameters
            spelled = {name for name in spelled & parameters.keys() if parameters[name].annotation in _TEXTS}
        fields = [field for maker in function.keys.makers if isinstance(maker, Template) for field in maker.fields]
        choices = [choice for field in fields if not field.conversion for choice in field.choices]
        for name in sorted({root for root, rest in choices if root in spelled and not rest}):
            yield checks.Warning(
                f"{where}: its key has {{{name}}} as the URL spells it, so that 1, 01 and +1 are three locks on one "
                f"row, or two spellings of a UUID are two.",
                hint=f"Write {{{name}:int}} or {{{name}:uuid}} in the key, or {or_else.format(name=name)}. "
                f"{{{name}:str}} says that it is a text.",
                id="distlock_web.W007",
            )


_HELD = "Who is then sent to the login page, or gets a 403, has had the lock."
_ANSWERED = "Who has lost the right to ask gets the answer of before, until it is forgotten."


@checks.register(checks.Tags.urls)
def check_logins(**kwargs: Any) -> Iterator[checks.CheckMessage]:
    for where, _, view, function in _views():
        if is_above_login(view, function):
            harm = _ANSWERED if function.once is not None else _HELD
            atomic = (
                ' With until="commit" also put @transaction.non_atomic_requests above @api_view, or UntilCommitMixin '
                "in front of the base classes."
            )
            yield checks.Warning(
                f"{where}: its lock is taken before it is known who asks. {harm}",
                hint=f"Put {function.decorator} below login_required and its like, and below @api_view; in a class, on "
                f"the method, and not on dispatch.{atomic if function.until == 'commit' else ''}",
                id="distlock_web.W009",
            )


@checks.register(checks.Tags.urls)
def check_transactions(**kwargs: Any) -> Iterator[checks.CheckMessage]:
    """Under ``ATOMIC_REQUESTS`` the commit comes after the decorated view: after its lock, unless that waits for it."""
    atomic = {alias for alias, database in connections.settings.items() if database["ATOMIC_REQUESTS"]}
    for where, _, view, function in _views():
        if function.asynchronous:  # Django itself refuses ATOMIC_REQUESTS on an async view
            continue
        owned = {alias_of(function.database)} if function.until == "commit" else set()
        outer = next((each for each in locks_around(view, function) if each.until == "commit"), None)
        if outer is not None:
            yield from _inside_another(where, function, owned, outer)
            continue
        around = _atomic_around(view, atomic)
        if not is_outermost(view, function):
            around |= (atomic & taken(view)) - owned_by(locks_of_handler(view, function))
        if not around:
            continue
        if owned & around:
            yield checks.Error(
                f'{where}: its until="commit" finds the transaction of ATOMIC_REQUESTS open, and is refused.',
                hint=_outermost(view, function, around).strip()
                or f"Add functools.wraps to the decorators above {function.decorator}.",
                id="distlock_web.E005",
            )
        elif function.once is not None and function.until != "commit":
            yield _once_inside(where, "ATOMIC_REQUESTS", _say_commit(view, function, around))
        else:
            known = ", ".join(map(repr, sorted(around)))
            hint = _say_commit(view, function, around)
            if function.until == "commit":  # it waits for one commit alone
                other = f"Or, if it changes nothing there, put {_non_atomic(around)} on it."
                hint = f"Put what it changes into one database. {_taken_out(around) if is_ninjas(view) else other}"
            yield checks.Warning(
                f"{where}: ATOMIC_REQUESTS commits on {known} after the lock is released, so that the next holder does "
                f"not see the changes yet.",
                hint=hint,
                id="distlock_web.W004",
            )
    yield from _unseen_by_django(atomic)


def _atomic_around(view: Callable[..., Any], atomic: set[str]) -> set[str]:
    # Set by @transaction.non_atomic_requests, which has no public reader.
    return atomic - getattr(view, "_non_atomic_requests", set())


def _once_inside(where: str, transaction: str, hint: str) -> checks.Error:
    return checks.Error(
        f"{where}: once inside {transaction} is refused at each call, for what is recorded as done may be rolled back.",
        hint=hint,
        id="distlock_web.E005",
    )


def _inside_another(
    where: str, function: LockedFunction, owned: set[str | None], outer: LockedFunction
) -> Iterator[checks.CheckMessage]:
    """The lock is inside of the transaction that another decorator of the same view has opened."""
    if alias_of(outer.database) in owned:
        yield checks.Error(
            f'{where}: it has two decorators with until="commit", and the inner one, {function.decorator}, is refused.',
            hint=f"Leave until= out of {outer.decorator}, which is above it and ends after the commit in any case. "
            f"Where one of them is once, put it below the lock.",
            id="distlock_web.E005",
        )
    elif function.once is not None and function.until != "commit":
        hint = f'Say until="commit" in once, and leave it out of {outer.decorator} above it.'
        yield _once_inside(where, f'the transaction of {outer.decorator} with until="commit"', hint)
    elif not owned and not _is_one_lock(function, outer):  # no re-entry
        yield checks.Warning(
            f"{where}: the lock of {function.decorator} is released before {outer.decorator} above it, which has "
            f'until="commit", commits: the next holder does not see the changes yet.',
            hint=f"Put {function.decorator} above {outer.decorator}: there it ends after the commit.",
            id="distlock_web.W004",
        )


def _is_one_lock(function: LockedFunction, outer: LockedFunction) -> bool:
    return (function.once is None, function.keys.template) == (outer.once is None, outer.keys.template)


def _unseen_by_django(atomic: set[str]) -> Iterator[checks.CheckMessage]:
    """What is refused where a request calls it, though it says what is right: Django does not see that it does."""
    known = list(views())
    actions = {class_of(view): set[str]() for _, view in known}
    for _, view in known:
        actions[class_of(view)].update((getattr(view, "actions", None) or {}).values())
    seen = set[tuple[str, LockedFunction]]()  # Ninja has each of its routes twice
    for route, view in {id(view): (route, view) for route, view in known}.values():
        around = _atomic_around(view, atomic)
        for function in hidden_locks(view):
            if _is_refused(function, around) and (route, function) not in seen:
                seen.add((route, function))
                remedy = f'Add functools.wraps to that decorator, and until="commit" to {function.decorator}; or put '
                remedy += f"{_non_atomic(around)} above it."
                yield checks.Error(
                    f"{_where(view, route, function)}: a decorator above {function.decorator} hides it from Django, so "
                    f"that it is inside of ATOMIC_REQUESTS, and is refused at each call.",
                    hint=_taken_out(around) if is_ninjas(view) else remedy,
                    id="distlock_web.E005",
                )
        for name, functions in locks_of_helpers(view, actions[class_of(view)]).items():
            if refused := [each for each in functions if _is_refused(each, around)]:
                yield checks.Warning(  # perhaps a task calls it, outside of requests
                    f"{_where(view, route, refused[0])}: its method {name} is locked, and is no handler (get, post, an "
                    f"action): a handler that calls it is inside of ATOMIC_REQUESTS, so that the call is refused.",
                    hint="Lock the handler, or the whole class (dispatch). Or take the class out of ATOMIC_REQUESTS: "
                    '@method_decorator(transaction.non_atomic_requests, name="dispatch").',
                    id="distlock_web.W010",
                )


def _is_refused(function: LockedFunction, around: set[str]) -> bool:
    if function.until == "commit":
        return alias_of(function.database) in around
    return function.once is not None and bool(around) and not function.asynchronous


def _outermost(view: Callable[..., Any], function: LockedFunction, databases: set[str]) -> str:
    """What has to be done before ``until="commit"`` can be right there; nothing, if the decorator is outermost."""
    if is_outermost(view, function) or has_mixin(view):
        return ""
    if is_ninjas(view):
        return f"{_taken_out(databases)} "
    mixin = "Put distlock_web.django.views.UntilCommitMixin in front of the base classes"
    if function.once is not None:  # above the permissions it would answer a user who has lost the right to ask
        api = "Put @transaction.non_atomic_requests above @api_view, and leave once below it"
        return f"{api if is_api_view(view) else mixin}. "
    if is_api_view(view):
        return "Put distributed_lockable above @api_view. "
    return f'{mixin}; or lock the whole class, by @method_decorator(distributed_lockable(...), name="dispatch"). '


def _views() -> Iterator[tuple[str, str, Callable[..., Any], LockedFunction]]:
    """Every locked view: where it is, in words; its route; it; its lock. Each once, at the first of its routes."""
    # REST framework's routers have two routes for an action: without a format, and with one. Ninja has each one twice.
    seen = set[tuple[object, LockedFunction]]()
    for route, view, function in locked_views():
        known = {(id(view), function), (route, function)}
        if seen.isdisjoint(known):
            seen |= known
            yield _where(view, route, function), route, view, function


def _where(view: Callable[..., Any], route: str, function: LockedFunction) -> str:
    return f"The view {name_of(view, function)} at {route!r}"


def _say_commit(view: Callable[..., Any], function: LockedFunction, databases: set[str]) -> str:
    known = " or ".join(map(repr, sorted(databases)))
    if is_ninjas(view):
        return f'{_taken_out(databases)} What needs a transaction says until="commit" and database={known}.'
    return (
        f'{_outermost(view, function, databases)}Say until="commit" and database={known} in the decorator; '
        f"or, if the view changes nothing there or streams, put {_non_atomic(databases)} on it: "
        f'until="commit" ends before the body of a stream.'
    )


def _taken_out(databases: set[str]) -> str:
    """Of an operation of Ninja's no decorator says it: Django looks at the view that Ninja has made."""
    calls = " and ".join(f"{each}(route.callback)" for each in _exemptions(databases))
    return f"Take the API out of ATOMIC_REQUESTS: {calls} for each of its routes."


def _non_atomic(databases: set[str]) -> str:
    return " and ".join(f"@{each}" for each in _exemptions(databases))


def _exemptions(databases: set[str]) -> list[str]:
    """One for each database: without a name it is of "default" alone."""
    name = "transaction.non_atomic_requests"
    return [name if each == DEFAULT_DB_ALIAS else f"{name}(using={each!r})" for each in sorted(databases)]
