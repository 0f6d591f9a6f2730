"""System checks: each id, that it comes and that it does not."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.decorators import login_required, permission_required
from django.contrib.auth.mixins import LoginRequiredMixin
from django.contrib.auth.models import Group
from django.core import checks, mail
from django.db import connections, transaction
from django.http import HttpRequest, HttpResponse
from django.urls import include, path
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.http import require_POST
from rest_framework import viewsets
from rest_framework.decorators import action, api_view, permission_classes
from rest_framework.permissions import AllowAny, IsAuthenticated
from rest_framework.routers import DefaultRouter, SimpleRouter

from distlock_web import distributed_lockable, once
from distlock_web.core import registry
from distlock_web.django.locked_views import is_ninjas, locked_views, views
from distlock_web.django.middleware import RequestIDMiddleware
from distlock_web.django.stores import configure_from_settings
from distlock_web.django.views import UntilCommitMixin
from distlock_web.testing.servers import free_port


@pytest.fixture(autouse=True)
def _as_in_settings() -> None:
    configure_from_settings()


class Sub(RequestIDMiddleware):
    pass


def found() -> dict[str, checks.CheckMessage]:
    return {str(message.id): message for message in checks.run_checks() if str(message.id).startswith("distlock_web.")}


def test_the_tests_own_project_has_no_complaint() -> None:
    assert found() == {}


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ({"default": {"BACKEND": "memory", "EXPIRE": -1}}, "it has to be a number of seconds, greater than 0"),
        ({}, 'it has to be a mapping such as {"default": {"LOCATION": "redis://..."}}.'),
        ({"default": {"BACKEND": "no.such.Backend"}}, "it has to be the name of a backend, or the dotted path"),
        ({"default": {"BACKEND": "memory", "OPTIONS": {"size": 1}}}, "leave it out."),
        ({"default": {"BACKEND": "redis", "CACHE": "other"}}, "it has to be one of 'default'"),
        ({"default": {"DATABASE": "other"}}, "it has to be one of 'default'"),
    ],
)
def test_e001_a_wrong_setting(settings: Any, wrong: Any, right: str) -> None:
    settings.DISTLOCK = wrong
    message = found()["distlock_web.E001"]
    assert "DISTLOCK" in message.msg
    assert right in message.msg


def test_e002_no_name_of_a_header(settings: Any) -> None:
    settings.DISTLOCK_REQUEST_ID_HEADER = "Req_Id"
    assert "'Req_Id'" in found()["distlock_web.E002"].msg


def test_w001_nothing_is_set(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.DISTLOCK = None
    assert "distlock_web.W001" in found()
    monkeypatch.setenv("DISTLOCK_URL", "redis://127.0.0.1")
    assert found() == {}


@pytest.fixture
def no_mapping(settings: Any, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Only the environment says where the locks are."""
    settings.DISTLOCK = None
    assert registry.configured() is None
    return monkeypatch


def test_e001_of_the_environment_s_address(no_mapping: pytest.MonkeyPatch) -> None:
    """It was looked at by nobody before the first lock."""
    no_mapping.setenv("DISTLOCK_URL", "redsi://127.0.0.1/0")
    told = "DISTLOCK_URL has the scheme 'redsi', which does not exist. Did you mean 'redis'?"
    assert found()["distlock_web.E001"].msg == told


def test_w002_the_middleware_is_missing(settings: Any) -> None:
    ours = "distlock_web.django.middleware.RequestIDMiddleware"
    settings.MIDDLEWARE = [name for name in settings.MIDDLEWARE if name != ours]
    assert ours in str(found()["distlock_web.W002"].hint)
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, ours]  # last is fine
    assert found() == {}
    settings.MIDDLEWARE = [f"{Sub.__module__}.Sub" if name == ours else name for name in settings.MIDDLEWARE]
    assert found() == {}


def test_w003_memory_in_production(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(mail, "outbox")  # what says that this is a test
    assert "exclude nobody" in found()["distlock_web.W003"].msg
    settings.DEBUG = True
    assert found() == {}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("DISTLOCKS", "Did you mean 'DISTLOCK'"),
        ("DISTLOCK_ON_BUZY", "Did you mean 'DISTLOCK_ON_BUSY'"),
    ],
)
def test_e006_a_setting_that_does_not_exist(settings: Any, name: str, words: str) -> None:
    setattr(settings, name, "raise")
    [message] = found().values()
    assert (message.id, repr(name) in message.msg, words in message.msg) == ("distlock_web.E006", True, True)


def test_w008_a_setting_that_may_be_the_projects_own(settings: Any) -> None:
    settings.DISTLOCK_URL = "redis://127.0.0.1:6379/0"
    assert found() == {}, "DISTLOCK is made of it"
    settings.DISTLOCK_PREFIX = "shop:"
    assert 'DISTLOCK["default"]["PREFIX"]' in found()["distlock_web.W008"].msg
    del settings.DISTLOCK_PREFIX
    settings.DISTLOCK_DASHBOARD_TITLE = "Locks"
    message = found()["distlock_web.W008"]
    assert (message.level, "'DISTLOCK_DASHBOARD_TITLE', which distlock_web does not read" in message.msg) == (30, True)


@pytest.mark.parametrize(
    ("name", "code", "own"), [("DISTLOCK_URL", "W008", "LOCATION"), ("DISTLOCK_EXPIRE", "E006", "EXPIRE")]
)
def test_a_stores_setting_without_distlock_is_told_where_it_belongs(
    settings: Any, name: str, code: str, own: str
) -> None:
    """DISTLOCK_URL, which is the environment's, was an error: did you mean DISTLOCK_USER?"""
    del settings.DISTLOCK
    setattr(settings, name, 5)
    assert f'DISTLOCK["default"]["{own}"]' in found()[f"distlock_web.{code}"].msg


def deploy() -> list[checks.CheckMessage]:
    messages = checks.run_checks(include_deployment_checks=True)
    return [message for message in messages if str(message.id).startswith("distlock_web.")]


def test_deploy_asks_every_store(settings: Any, redis_url: str, make_redis: Any) -> None:
    closed = make_redis("--requirepass", "secret").url
    settings.DISTLOCK = {
        "default": {"LOCATION": redis_url, "PREFIX": "shop:"},
        "away": {"LOCATION": f"redis://127.0.0.1:{free_port()}", "PREFIX": "shop:"},
        "closed": {"LOCATION": closed, "PREFIX": "shop:"},
        "open": {"LOCATION": closed, "ON_BACKEND_ERROR": "open", "PREFIX": "shop:"},
        "wrong": {"LOCATION": redis_url, "PREFIX": "shop:", "OPTIONS": {"soket_timeout": 1}},
    }
    assert [message.id for message in checks.run_checks() if str(message.id).startswith("distlock_web")] == [
        "distlock_web.E001"
    ]
    messages = [(message.id, message.msg) for message in deploy()]
    assert [each for each, _ in messages] == [
        "distlock_web.E001",
        "distlock_web.DL102",
        "distlock_web.DL001",
        "distlock_web.DL002",
        "distlock_web.DL002",
    ]
    assert "store default: The server keeps no append-only file" in messages[1][1]
    assert "store away: No lock can be taken: " in messages[2][1]
    assert "store closed: " in messages[3][1]
    assert "wants a password" in messages[3][1]
    # Where a release is built the stores are often out of reach: that is no reason to stop it.
    assert [message.is_serious() for message in deploy()] == [True, False, False, True, True]


def test_deploy_warns_of_memory_though_this_is_a_test_or_a_developers_machine(settings: Any) -> None:
    [message] = deploy()
    assert message.id == "distlock_web.DL003"
    settings.DEBUG = True
    assert [message.id for message in deploy()] == ["distlock_web.DL003"]


def test_one_mistake_is_one_error(urls: Any, settings: Any) -> None:
    """Every locked view repeated it: 42 errors for one word."""
    urls(*[path(f"{i}/", plain) for i in range(42)])
    for wrong in (
        {"DISTLOCK": {"default": {"BACKEND": "memory", "EXPIER": 3}}},
        {"DISTLOCK": {"default": {"BACKEND": "memroy"}}},
        {"DISTLOCK": {"default": {"BACKEND": "memory"}}, "DISTLOCK_ON_BUSY": "skipp"},
    ):
        for name, value in wrong.items():
            setattr(settings, name, value)
        errors = [message for message in deploy() if isinstance(message, checks.Error)]
        assert [message.id for message in errors] == ["distlock_web.E001"]


skip: Any = distributed_lockable(key="skipping", on_busy="skip")  # a type checker refuses it, too


@skip
def function(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


@method_decorator(skip, name="dispatch")
class Dispatched(View):
    pass


class Method(View):
    @method_decorator(skip)
    async def post(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse()


class Set(viewsets.ViewSet):
    @action(detail=False)
    @skip
    def pay(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse()


@distributed_lockable(key="fine", on_busy=lambda error, request: HttpResponse(status=409))
def fine(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


@distributed_lockable(key="elsewhere", store="nowhere")
def lost(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


router = SimpleRouter()
router.register("set", Set, basename="set")


@pytest.fixture
def urls(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    def use(*patterns: Any) -> None:
        module = ModuleType("tests_django_urls")
        module.urlpatterns = list(patterns)  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, module.__name__, module)
        settings.ROOT_URLCONF = module.__name__

    return use


@pytest.mark.parametrize(
    ("pattern", "name", "route"),
    [
        (path("f/", function), "function", "f/"),
        (path("in/<int:shop>/", include([path("f/", function)])), "function", "in/<int:shop>/f/"),
        (path("d/", Dispatched.as_view()), "Dispatched", "d/"),
        (path("o/", distributed_lockable(key="outer")(Dispatched.as_view())), "Dispatched", "o/"),
        (path("i/", distributed_lockable(key="outer")(function)), "function", "i/"),
        (path("m/", Method.as_view()), "Method", "m/"),
        (path("", include(router.urls)), "Set", "pay"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_e003_skip_on_a_view(urls: Any, pattern: Any, name: str, route: str) -> None:
    urls(path("fine/", fine), pattern)
    message = found()["distlock_web.E003"]
    assert f"{__name__}.{name} " in message.msg
    assert route in message.msg
    assert 'on_busy="raise"' in str(message.hint), "to leave it out helps not where the store's ON_BUSY says skip"
    assert len([each for each in checks.run_checks() if each.id == "distlock_web.E003"]) == 1


class Acting(UntilCommitMixin, viewsets.ViewSet):
    @action(detail=False)
    @distributed_lockable(key="acting")
    def pay(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse()


def test_w004_comes_once_for_an_action_and_asks_for_nothing_that_is_there(
    urls: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A router has a second route for each action, with a format; and the class has the mixin already."""
    monkeypatch.setitem(connections["default"].settings_dict, "ATOMIC_REQUESTS", True)
    router = DefaultRouter()
    router.register("acting", Acting, basename="acting")
    urls(path("", include(router.urls)))
    [late] = [message for message in checks.run_checks() if message.id == "distlock_web.W004"]
    assert f"{__name__}.Acting " in late.msg
    assert str(late.hint).startswith('Say until="commit"')


plainly = distributed_lockable(key="guarded")
kept = distributed_lockable(key="guarded", hold_at_least=60, success=lambda response: True)
done = once(key="kept", keep=60)


def api(request: Any) -> None: ...


def view(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


async def aview(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


@distributed_lockable(key="plain")
def plain(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


class Guarded(LoginRequiredMixin, View):
    def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse()


@method_decorator(plainly, name="dispatch")
class AboveLogin(Guarded):
    pass


@method_decorator(plainly, name="dispatch")
class Locked(View):
    pass


class BelowMixin(LoginRequiredMixin, Locked):
    pass


def for_members(locked: Any, *, above: bool) -> Any:
    """An API view that asks for a login, with the lock above or below of REST framework."""
    guarded = permission_classes([IsAuthenticated])
    return locked(api_view(["POST"])(guarded(api))) if above else api_view(["POST"])(guarded(locked(api)))


@pytest.mark.parametrize(
    ("made", "warned"),
    [
        (plainly(login_required(view)), True),
        (kept(login_required(aview)), True),
        (require_POST(plainly(permission_required("shop.pay")(view))), True),
        (login_required(plainly(view)), False),
        (plainly(require_POST(view)), False),
        (AboveLogin.as_view(), True),
        (plainly(Guarded.as_view()), True),
        (BelowMixin.as_view(), False),
        (for_members(kept, above=True), True),
        (for_members(kept, above=False), False),
        (for_members(plainly, above=True), False),
        (for_members(done, above=True), True),
        (done(api_view(["POST"])(permission_classes([AllowAny])(api))), False),
    ],
)
def test_w009_a_lock_above_the_login(urls: Any, made: Any, warned: bool) -> None:
    """Who is sent to the login page, or gets a 403, has had the lock."""
    urls(path("guarded/", made))
    assert ("distlock_web.W009" in found()) == warned
    if warned:
        assert "before it is known who asks" in found()["distlock_web.W009"].msg


def test_e004_a_store_that_does_not_exist(urls: Any) -> None:
    urls(path("lost/", lost))
    assert "'nowhere'" in found()["distlock_web.E004"].msg


ZOOKEEPER, REDLOCK = "zookeeper://127.0.0.1:1", "redlock://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3"


@pytest.mark.parametrize("function", [view, aview])
@pytest.mark.parametrize(
    ("options", "location", "words"),
    [
        ({"limit": 3}, ZOOKEEPER, "limit is 3"),
        ({"hold_at_least": "2d"}, REDLOCK, "longest lease"),
        ({"keep": 60}, REDLOCK, "once keeps a record"),
    ],
)
def test_e004_a_store_that_cannot_do_it(
    urls: Any, settings: Any, options: Any, location: str, words: str, function: Any
) -> None:
    """Each call was a 500, and the check was silent."""
    locked = (once if "keep" in options else distributed_lockable)(key="a", **options)
    urls(path("wrong/", locked(function)))
    settings.DISTLOCK = {"default": {"LOCATION": location}}
    message = found()["distlock_web.E004"]
    assert words in message.msg
    assert "'default'" in message.msg


@pytest.mark.parametrize(
    "made", [done(view), api_view(["POST"])(done(api)), done(api_view(["POST"])(permission_classes([AllowAny])(api)))]
)
def test_e005_once_under_atomic_requests(urls: Any, monkeypatch: pytest.MonkeyPatch, made: Any) -> None:
    """Its record would come before the commit: each first call is refused, and the check had a mere warning."""
    monkeypatch.setitem(connections["default"].settings_dict, "ATOMIC_REQUESTS", True)
    urls(path("plain/", made))
    [(code, message)] = found().items()
    assert (code, "once inside ATOMIC_REQUESTS is refused at each call" in message.msg) == ("distlock_web.E005", True)
    assert 'Say until="commit"' in str(message.hint)
    urls(path("plain/", transaction.non_atomic_requests(made)))
    assert found() == {}


def test_a_project_without_routes_has_no_locked_views(settings: Any) -> None:
    """The doctor ended with a traceback there."""
    del settings.ROOT_URLCONF
    assert list(locked_views()) == []


class WithColumn(admin.ModelAdmin):  # type: ignore[type-arg]
    """A column of the list, by a name that Ninja's views have for something else."""

    list_display = ("operations",)

    def operations(self, group: Group) -> str:
        return group.name


class WithList(admin.ModelAdmin):  # type: ignore[type-arg]
    operations = ("approve", "refund")


class Desk:
    def operations(self) -> None: ...

    def __bool__(self) -> bool:
        raise AssertionError("a lazy object of the project's is not made for the checks")

    def view(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse()


@pytest.mark.parametrize("made", [WithColumn, WithList])
def test_operations_of_a_model_admin_are_none_of_ninjas(urls: Any, made: Any) -> None:
    """Each check raised a TypeError, and with it manage.py runserver, migrate and test."""
    site = admin.AdminSite()
    site.register(Group, made)
    urls(path("admin/", site.urls))
    assert found() == {}
    assert not any(is_ninjas(view) for _, view in views())


def test_operations_of_a_bound_methods_object_are_none_of_ninjas(urls: Any) -> None:
    urls(path("desk", Desk().view))
    assert found() == {}
