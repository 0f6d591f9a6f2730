"""The answers to choose from, in Django and in Flask: what a browser, a program, and htmx are told."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.core.management import call_command
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View
from flask import Flask

import distlock_web.django.responses as for_django
import distlock_web.flask.responses as for_flask
from distlock_web import BackendUnavailable, Lease, LockBusy, distributed_lockable, lock
from distlock_web.flask import DistLock
from distlock_web.testing.fault_injector import FaultInjector

Elsewhere = Callable[..., Lease]
HTMX = {"HX-Request": "true"}


def view(request: HttpRequest) -> HttpResponse:
    return HttpResponse("done")


async def aview(request: HttpRequest) -> HttpResponse:
    return HttpResponse("done")


class Method(View):
    @method_decorator(distributed_lockable(key="order", on_busy=for_django.problem))
    def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse("done")

    @distributed_lockable(key="order", on_busy=for_django.problem)
    def post(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse("done")


def _locked(view: Any, **options: Any) -> Any:
    return distributed_lockable(key="order", **options)(view)


FACTORIES = ("refused", "page", "problem")
urlpatterns = [
    path("method/", Method.as_view()),
    path("sync/", _locked(view)),
    path("async/", _locked(aview)),
    *(
        path(
            f"{mode}/{name}/",
            _locked(which, on_busy=getattr(for_django, name), on_backend_error=getattr(for_django, name)),
        )
        for mode, which in (("sync", view), ("async", aview))
        for name in FACTORIES
    ),
]


@pytest.fixture(autouse=True)
def site(settings: Any, tmp_path: Any) -> Iterator[Any]:
    """A Django site and its folder of templates."""
    settings.ROOT_URLCONF = __name__
    settings.MIDDLEWARE = ["distlock_web.django.middleware.RequestIDMiddleware"]
    settings.TEMPLATES = [
        {
            "BACKEND": "django.template.backends.django.DjangoTemplates",
            "DIRS": [tmp_path],
            "OPTIONS": {"context_processors": ["django.template.context_processors.request", f"{__name__}.asks"]},
        }
    ]
    return tmp_path


def asks(request: HttpRequest) -> dict[str, Any]:
    """A context processor that asks the database, as ``auth`` does: forbidden in an event loop."""
    from django.contrib.contenttypes.models import ContentType

    return {"known": ContentType.objects.count}


@pytest.fixture(params=["sync", "async"])
def get(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """A request to a view, sync or async, from a client of either."""
    mode = request.param

    def get(name: str = "", **headers: str) -> Any:
        return Client().get(f"/{mode}/{name}", headers=headers)

    return get


def test_every_factory_says_busy(injector: FaultInjector, elsewhere: Elsewhere, get: Callable[..., Any]) -> None:
    elsewhere("order", expire=10)
    for name in ("", *(f"{factory}/" for factory in FACTORIES)):
        answer = get(name, **{"Accept": "text/html", "Req-Id": "seven"})
        assert answer.status_code == 409
        assert 1 <= int(answer["Retry-After"]) <= 10
        assert answer["Cache-Control"] == "no-store"
        assert answer["Vary"] == "Accept, HX-Request"
        assert b"seven" in answer.content
        assert "HX-Trigger" not in answer
        assert answer["Content-Type"].startswith("application/problem+json" if "problem" in name else "text/html")


def test_every_factory_says_unavailable(injector: FaultInjector, get: Callable[..., Any]) -> None:
    injector.cut()
    for name in FACTORIES:
        answer = get(f"{name}/", Accept="application/json")
        assert answer.status_code == 503
        assert "Retry-After" not in answer
        assert answer["Content-Type"].startswith("text/html" if name == "page" else "application/problem+json")


def test_methods_find_their_request(injector: FaultInjector, elsewhere: Elsewhere) -> None:
    elsewhere("order")
    for answer in (Client().get("/method/"), Client().post("/method/")):
        assert answer.status_code == 409
        assert json.loads(answer.content)["code"] == "lock_busy"


def test_htmx_is_told_by_an_event(injector: FaultInjector, elsewhere: Elsewhere, get: Callable[..., Any]) -> None:
    elsewhere("order")
    for name in ("", "page/"):
        answer = get(name, **HTMX)
        assert answer.status_code == 409
        assert answer["HX-Reswap"] == "none"
        [(event, detail)] = json.loads(answer["HX-Trigger"]).items()
        assert event == "distlock:busy"
        assert detail["retryAfter"] == int(answer["Retry-After"])
        assert detail["detail"]


def test_htmx_is_told_that_the_store_is_unreachable(injector: FaultInjector, get: Callable[..., Any]) -> None:
    injector.cut()
    [(event, detail)] = json.loads(get(**HTMX)["HX-Trigger"]).items()
    assert (event, detail["retryAfter"]) == ("distlock:unavailable", None)


@pytest.mark.django_db(transaction=True)
def test_a_page_of_the_projects_own(
    injector: FaultInjector, elsewhere: Elsewhere, get: Callable[..., Any], site: Any
) -> None:
    call_command("migrate", verbosity=0)
    elsewhere("order")
    (site / "distlock_web").mkdir()
    (site / "distlock_web" / "refused.html").write_text(
        "{{ request.path }}: {{ error.detail }} {{ error.retry_after }} {% if known %}known{% endif %}"
    )
    for name in ("", "page/"):
        answer = get(name, Accept="text/html")
        assert answer.status_code == 409
        assert f"{answer.request['PATH_INFO']}: The same thing" in answer.text
        assert answer.text.endswith("known")
    assert get(Accept="application/json")["Content-Type"] == "application/problem+json"


def test_a_mistake_in_that_page_is_not_hidden(injector: FaultInjector, elsewhere: Elsewhere, site: Any) -> None:
    from django.template import TemplateDoesNotExist

    elsewhere("order")
    (site / "distlock_web").mkdir()
    (site / "distlock_web" / "refused.html").write_text('{% extends "missing.html" %}')
    with pytest.raises(TemplateDoesNotExist, match="missing"):
        Client().get("/sync/page/")


async def test_in_the_loop_of_a_server(
    injector: FaultInjector, elsewhere: Elsewhere, async_client: AsyncClient
) -> None:
    import asyncio

    await asyncio.to_thread(elsewhere, "order")
    for name in ("", "page/", "problem/"):
        answer = await async_client.get(f"/async/{name}")
        assert answer.status_code == 409


@pytest.mark.parametrize("factory", [getattr(module, name) for module in (for_django, for_flask) for name in FACTORIES])
@pytest.mark.parametrize("error", [LockBusy("busy"), BackendUnavailable("away")])
def test_where_there_is_no_request_the_error_is_raised(factory: Any, error: Exception) -> None:
    for arguments in ((), (7,), ("a", "b")):
        with pytest.raises(type(error)):
            factory(error, *arguments)


# Flask ----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def app(store_settings: dict[str, Any], site: Any) -> Iterator[Flask]:
    app = Flask("shop", template_folder=str(site))
    app.config["DISTLOCK"] = {"default": store_settings}
    DistLock(app)

    async def aview() -> str:
        return "done"

    for mode, function in (("sync", lambda: "done"), ("async", aview)):
        app.add_url_rule(f"/{mode}/", mode, _locked(function))
        for name in FACTORIES:
            factory = getattr(for_flask, name)
            locked = _locked(function, on_busy=factory, on_backend_error=factory)
            app.add_url_rule(f"/{mode}/{name}/", f"{mode}-{name}", locked)
    yield app
    app.extensions["distlock"].registry.close()


@pytest.fixture(params=["sync", "async"])
def fget(request: pytest.FixtureRequest, app: Flask) -> Callable[..., Any]:
    return lambda name="", **headers: app.test_client().get(f"/{request.param}/{name}", headers=headers)


def test_flask_says_busy(app: Flask, fget: Callable[..., Any]) -> None:
    with app.app_context():
        lock("order", expire=10).acquire().detach(transit=10)
    for name in ("", *(f"{factory}/" for factory in FACTORIES)):
        answer = fget(name, **{"Accept": "text/html", "Req-Id": "seven"})
        assert answer.status_code == 409
        assert 1 <= int(answer.headers["Retry-After"]) <= 10
        assert answer.headers["Vary"] == "Accept, HX-Request"
        assert "seven" in answer.text
        assert answer.mimetype == ("application/problem+json" if "problem" in name else "text/html")
        answer = fget(name, **HTMX)
        assert list(json.loads(answer.headers["HX-Trigger"])) == ["distlock:busy"]
        assert answer.headers["HX-Reswap"] == "none"


def test_flask_says_unavailable(app: Flask, fget: Callable[..., Any]) -> None:
    FaultInjector(app.extensions["distlock"].registry.store("default")).cut()
    for name in ("", *(f"{factory}/" for factory in FACTORIES)):
        assert fget(name).status_code == 503


def test_a_page_of_the_apps_own(app: Flask, fget: Callable[..., Any], site: Any) -> None:
    with app.app_context():
        lock("order").acquire().detach()
    assert "<h1>Already in progress</h1>" in fget().text
    (site / "distlock_web").mkdir()
    (site / "distlock_web" / "refused.html").write_text("{{ request.path }}: {{ error.detail }}")
    assert fget().text.startswith(("/sync/: The same thing", "/async/: The same thing"))
    assert fget(Accept="application/json").mimetype == "application/problem+json"


# The log --------------------------------------------------------------------------------------------------------------


def flask_get() -> None:
    app = Flask("shop")
    DistLock(app)
    app.add_url_rule("/sync/", view_func=distributed_lockable(key="order")(lambda: "done"))
    app.test_client().get("/sync/")


@pytest.mark.parametrize("ask", [lambda: Client().get("/sync/"), flask_get], ids=["django", "flask"])
def test_a_refused_request_is_logged(
    injector: FaultInjector, elsewhere: Elsewhere, caplog: pytest.LogCaptureFixture, ask: Callable[[], Any]
) -> None:
    elsewhere("order")
    with caplog.at_level("INFO", "distlock_web"):
        ask()
        injector.cut()
        ask()
        injector.mend()
    logged = [(record.levelname, record.getMessage()) for record in caplog.records if record.name == "distlock_web"]
    busy, unavailable = [line for line in logged if line[1].startswith("GET /sync/: ")]
    assert busy[0] == "INFO"
    assert unavailable[0] == "ERROR"
