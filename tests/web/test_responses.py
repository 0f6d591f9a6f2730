"""What a refused request is answered with, in Django and in Flask: to a browser, to a program, and to htmx."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.http import HttpRequest
from django.template import TemplateDoesNotExist
from django.test import Client

import distlock_web.django.responses as for_django
import distlock_web.flask.responses as for_flask
from distlock_web import BackendUnavailable, Lease, LockBusy, current_lease, distributed_lockable, lock, request_scope
from distlock_web.core.registry import registry
from distlock_web.testing.fault_injector import FaultInjector
from tests.support.both import SITES, Get, View, serving, urls

Elsewhere = Callable[..., Lease]


def done() -> str:
    return "done"


async def adone() -> str:
    return "done"


def broken() -> str:
    raise ValueError("the view's own")


def wallet(pk: str) -> str:
    lease = current_lease()
    assert lease is not None
    return lease.name


async def awallet(pk: str) -> str:
    return wallet(pk)


@distributed_lockable(key="stock:{item:int}")
def reserve(item: str) -> bool:
    return True


@distributed_lockable(key="stock:{item:int}")
async def areserve(item: str) -> bool:
    return True


def charge(item: str) -> str:
    return "charged" if reserve(item) else "no stock"


async def acharge(item: str) -> str:
    return "charged" if await areserve(item) else "no stock"


MODES = {"sync": done, "async": adone}
WALLETS = {"sync": wallet, "async": awallet}
CHARGES = {"sync": charge, "async": acharge}
FACTORIES = ("refused", "page", "problem")
VIEWS = {
    **{f"{mode}/": View(function, {"key": "order"}) for mode, function in MODES.items()},
    **{
        f"{mode}/{name}/": View(function, {"key": "order", "on_busy": name, "on_backend_error": name})
        for (mode, function), name in product(MODES.items(), FACTORIES)
    },
    "broken/": View(broken, {"key": "order"}),
    **{f"wallet/{mode}/<pk>": View(function, {"key": "wallet:{pk:int}"}) for mode, function in WALLETS.items()},
    **{f"charge/{mode}/<item>": View(function) for mode, function in CHARGES.items()},
    "pay/<token>/": View(lambda token: "done", {"key": "order"}),
}
urlpatterns = urls(VIEWS)


def asks(request: HttpRequest) -> dict[str, Any]:
    """A context processor that asks the database, as ``auth`` does: forbidden in an event loop."""
    from django.contrib.contenttypes.models import ContentType

    return {"known": ContentType.objects.count}


@pytest.fixture(autouse=True)
def memory(settings: Any, tmp_path: Path) -> None:
    settings.DISTLOCK = {"default": {"BACKEND": "memory"}}
    processors = ["django.template.context_processors.request", f"{__name__}.asks"]
    settings.TEMPLATES = [
        {
            "BACKEND": "django.template.backends.django.DjangoTemplates",
            "DIRS": [tmp_path],
            "OPTIONS": {"context_processors": processors},
        }
    ]


@pytest.fixture(params=SITES)
def get(request: pytest.FixtureRequest, settings: Any, tmp_path: Path) -> Iterator[Get]:
    with serving(request.param, __name__, VIEWS, settings, template_folder=str(tmp_path)) as get:
        yield get


@pytest.fixture
def framework(get: Get, request: pytest.FixtureRequest) -> str:
    """That of the site, as the name of our package for it."""
    return str(request.node.callspec.params["get"]).split(",")[0]


@pytest.fixture
def injector() -> FaultInjector:
    return FaultInjector(registry().store("default"))


modes = pytest.mark.parametrize("mode", MODES)

HTML, JSON = "text/html; charset=utf-8", "application/problem+json"


@modes
@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        (None, HTML), ("*/*", HTML), ("text/html,application/xhtml+xml,*/*;q=0.8", HTML), ("image/png", HTML),
        ("application/json", JSON), ("application/problem+json", JSON), ("text/html;q=0.5,application/json", JSON),
    ],
)  # fmt: skip
def test_busy_in_the_clients_format(
    get: Get, elsewhere: Elsewhere, mode: str, accept: str | None, content_type: str
) -> None:
    elsewhere("order", expire=8)
    answer = get(f"{mode}/", **{"Req-Id": "seven", **({"Accept": accept} if accept else {})})
    assert (answer.status, answer.headers["Content-Type"]) == (409, content_type)
    assert 1 <= int(answer.headers["Retry-After"]) <= 8
    assert answer.headers["Cache-Control"] == "no-store"
    assert answer.headers["Vary"] == "Accept, HX-Request"
    assert answer.headers["Req-Id"] == "seven"
    assert "HX-Trigger" not in answer.headers
    assert "disLock" not in answer.text  # a key may hold what is nobody's business
    assert "order" not in answer.text
    if content_type == JSON:
        problem = answer.json
        assert (problem["status"], problem["title"], problem["code"]) == (409, "Conflict", "lock_busy")
        assert (problem["request_id"], problem["retry_after"]) == ("seven", int(answer.headers["Retry-After"]))
    else:
        assert "<h1>Already in progress</h1>" in answer.text
        assert "Request seven" in answer.text


@modes
@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"Sec-Fetch-Dest": "empty"}, JSON),
        ({"X-Requested-With": "XMLHttpRequest"}, JSON),
        ({"Content-Type": "application/json"}, JSON),
        ({"Content-Type": "application/vnd.api+json"}, JSON),
        ({"Sec-Fetch-Dest": "document"}, HTML),
        ({"Sec-Fetch-Dest": "empty", "HX-Request": "true"}, HTML),
        ({"Sec-Fetch-Dest": "empty", "Accept": "text/html"}, HTML),
    ],
)
def test_a_script_that_accepts_anything_gets_json(
    get: Get, elsewhere: Elsewhere, mode: str, headers: dict[str, str], expected: str
) -> None:
    lease = elsewhere("order")
    answer = get(f"{mode}/", **{"Accept": "*/*", **headers})
    assert (answer.status, answer.headers["Content-Type"]) == (409, expected)
    lease.release()


@modes
@pytest.mark.parametrize("factory", FACTORIES)
def test_every_factory(get: Get, injector: FaultInjector, elsewhere: Elsewhere, mode: str, factory: str) -> None:
    lease = elsewhere("order")
    for accept in ("text/html", "application/json"):
        expected = HTML if factory == "page" or (factory == "refused" and accept == "text/html") else JSON
        busy = get(f"{mode}/{factory}/", Accept=accept)
        assert (busy.status, busy.headers["Content-Type"]) == (409, expected)
        injector.cut()
        away = get(f"{mode}/{factory}/", Accept=accept)
        injector.mend()
        assert (away.status, away.headers["Content-Type"]) == (503, expected)
        assert "Retry-After" not in away.headers
    lease.release()
    assert get(f"{mode}/{factory}/").text == "done"


@modes
def test_a_store_that_nobody_serves_is_a_503_that_says_nothing_of_it(get: Get, settings: Any, mode: str) -> None:
    settings.DISTLOCK = {"default": {"LOCATION": "redis://127.0.0.1:1/0"}}
    for accept in ("text/html", "application/json"):
        answer = get(f"{mode}/", Accept=accept)
        assert answer.status == 503
        assert ("text/html" in answer.headers["Content-Type"]) == (accept == "text/html")
        assert "127.0.0.1" not in answer.text


@modes
def test_a_number_is_a_number_and_all_else_leads_nowhere(get: Get, mode: str) -> None:
    for spelled in ("1", "01", "+1", "%201"):
        answer = get(f"wallet/{mode}/{spelled}")
        assert (answer.status, answer.text) == (200, "disLock:wallet:1"), spelled
    answer = get(f"wallet/{mode}/one")
    assert answer.status == 404
    assert "disLock" not in answer.text, "nothing of the key is told"


@modes
@pytest.mark.parametrize("factory", FACTORIES)
def test_a_function_that_a_view_calls_is_refused_by_the_error(
    get: Get, framework: str, settings: Any, elsewhere: Elsewhere, mode: str, factory: str
) -> None:
    """Its caller would take an answer for what the function returns: for the stock that is reserved."""
    path = f"distlock_web.{framework}.responses.{factory}"
    settings.DISTLOCK = {"default": {"BACKEND": "memory", "ON_BUSY": path, "ON_BACKEND_ERROR": path}}
    elsewhere("stock:7")
    injector = FaultInjector(registry().store("default"))
    assert get(f"charge/{mode}/7").status == 409
    assert get(f"charge/{mode}/8").text == "charged"
    injector.cut()
    assert get(f"charge/{mode}/8").status == 503
    injector.mend()


def test_any_other_exception_is_the_frameworks_business(get: Get) -> None:
    assert get("broken/").status == 500


@modes
def test_htmx_is_told_by_an_event(get: Get, injector: FaultInjector, elsewhere: Elsewhere, mode: str) -> None:
    elsewhere("order")
    for name in ("", "page/"):
        answer = get(f"{mode}/{name}", **{"HX-Request": "true"})
        assert (answer.status, answer.headers["HX-Reswap"]) == (409, "none")
        [(event, detail)] = json_of(answer.headers["HX-Trigger"])
        assert (event, detail["retryAfter"]) == ("distlock:busy", int(answer.headers["Retry-After"]))
        assert detail["detail"]
    injector.cut()
    [(event, detail)] = json_of(get(f"{mode}/", **{"HX-Request": "true"}).headers["HX-Trigger"])
    assert (event, detail["retryAfter"]) == ("distlock:unavailable", None)
    injector.mend()


def json_of(text: str) -> Any:
    import json

    return json.loads(text).items()


@modes
@pytest.mark.django_db(transaction=True)
def test_a_page_of_the_projects_own(get: Get, elsewhere: Elsewhere, mode: str, tmp_path: Path) -> None:
    call_command("migrate", verbosity=0)
    elsewhere("order")
    (tmp_path / "distlock_web").mkdir()
    page = "{{ request.path }}: {{ error.detail }} {{ error.retry_after }} {% if known %}known{% endif %}"
    (tmp_path / "distlock_web" / "refused.html").write_text(page)
    for name in ("", "page/"):
        answer = get(f"{mode}/{name}", Accept="text/html")
        assert answer.status == 409
        assert answer.text.startswith(f"/{mode}/{name}: The same thing")
    assert get(f"{mode}/", Accept="application/json").headers["Content-Type"] == JSON


def test_a_mistake_in_that_page_is_not_hidden(settings: Any, elsewhere: Elsewhere, tmp_path: Path) -> None:
    settings.ROOT_URLCONF = __name__
    elsewhere("order")
    (tmp_path / "distlock_web").mkdir()
    (tmp_path / "distlock_web" / "refused.html").write_text('{% extends "missing.html" %}')
    with pytest.raises(TemplateDoesNotExist, match="missing"):
        Client().get("/sync/page/")


@pytest.mark.parametrize("factory", [getattr(module, name) for module in (for_django, for_flask) for name in FACTORIES])
@pytest.mark.parametrize("error", [LockBusy("busy"), BackendUnavailable("away")])
def test_where_there_is_no_request_the_error_is_raised(factory: Any, error: Exception) -> None:
    for arguments in ((), (7,), ("a", "b")):
        with pytest.raises(type(error)):
            factory(error, *arguments)


def test_a_refused_request_is_logged_with_its_route_and_who_has_the_lock(
    get: Get, injector: FaultInjector, caplog: pytest.LogCaptureFixture
) -> None:
    """What stands in a URL may be a secret, and is as long as a client wants."""
    with request_scope("job-17", "send_invoice"):
        lock("order").acquire().detach()
    with caplog.at_level("INFO", "distlock_web"):
        answer = get("pay/s3cret/")
        injector.cut()
        get("pay/s3cret/")
        injector.mend()
    logged = [(record.levelname, record.getMessage()) for record in caplog.records if record.name == "distlock_web"]
    busy, unavailable = [line for line in logged if line[1].startswith("GET /pay/<token>/: ")]
    assert (busy[0], unavailable[0]) == ("INFO", "ERROR")
    assert "s3cret" not in str(logged)
    assert "send_invoice" in busy[1]
    assert "job-17" in busy[1]
    assert "send_invoice" not in answer.text
