"""What people see, in their language: the catalogue, and who says which language that is."""

from __future__ import annotations

import ast
import gettext
import html
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import include, path
from django.utils import translation
from flask import Flask, request

from distlock_web import Lease, once
from distlock_web.core.errors import BackendUnavailable, KeyReused, KeyUnavailable, LockBusy
from distlock_web.flask import DistLock, held_locks_blueprint
from distlock_web.flask.catalogue import running_catalogue
from distlock_web.web.texts import CONTEXT
from tests.support.source import FILES, PACKAGE, tree

CATALOGUES = PACKAGE / "django" / "locale"
CHINESE = re.compile(r"[\u4e00-\u9fff]")

# The catalogue ------------------------------------------------------------------------------------------------------


def said() -> set[tuple[str, ...]]:
    """All texts of the package: each alone, or with its plural."""
    found = set()
    for file in FILES:
        for node in ast.walk(tree(file)):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("_", "plural", "pgettext_lazy"):
                found.add(tuple(str(argument.value) for argument in node.args if isinstance(argument, ast.Constant)))
    for template in (PACKAGE / "web" / "templates").glob("*.html"):
        found |= {(text,) for text in re.findall(r'{{ "([^"]*)"\|t }}', template.read_text("utf-8"))}
    return found - {()}  # the call in texts.py itself


@pytest.fixture(params=sorted(path.name for path in CATALOGUES.iterdir()))
def files(request: pytest.FixtureRequest) -> Path:
    """A language's folder."""
    return CATALOGUES / str(request.param) / "LC_MESSAGES"


def test_a_catalogue_has_all_texts_and_no_other(files: Path) -> None:
    pofile: Any = pytest.importorskip("babel.messages.pofile")
    with (files / "django.po").open("rb") as source:
        messages = [message for message in pofile.read_po(source) if message.id]
    assert {message.id if isinstance(message.id, tuple) else (message.id,) for message in messages} == said()
    for message in messages:
        texts = message.string if isinstance(message.string, tuple) else (message.string,)
        assert message.context == CONTEXT
        assert all(texts), message.id
        assert not message.fuzzy, message.id
        values, given = values_in(str(message.id)), [values_in(text) for text in texts]
        assert given[-1] == values, message.id
        assert all(some <= values for some in given), message.id  # a form for one may leave out the number
        assert not any(re.search(r"%(?!\(\w+\)s)", text) for text in texts), message.id


def values_in(text: str) -> set[str]:
    return set(re.findall(r"%\(\w+\)s", text))


def test_what_is_compiled_is_what_is_written(files: Path) -> None:
    """A catalogue is read in the compiled form, and edited in the other: pybabel compile makes one of the other."""
    pofile: Any = pytest.importorskip("babel.messages.pofile")
    with (files / "django.po").open("rb") as source:
        written = [message for message in pofile.read_po(source) if message.id]
    with (files / "django.mo").open("rb") as compiled:
        read = gettext.GNUTranslations(compiled)
    for message in written:
        if isinstance(message.id, tuple):
            one, many = message.id
            assert read.npgettext(CONTEXT, one, many, 2) == message.string[-1]
        else:
            assert read.pgettext(CONTEXT, message.id) == message.string


# Who says which language --------------------------------------------------------------------------------------------

ERRORS: dict[str, Exception] = {
    "busy": LockBusy(retry_after=7),
    "soon": LockBusy(retry_after=0.1),
    "down": BackendUnavailable(),
    "header": KeyUnavailable(missing=[("header", "Idempotency-Key"), ("field", "once")]),
    "nobody": KeyUnavailable(),
    "reused": KeyReused(),
}


def refuse(name: str) -> Any:
    raise ERRORS[name]


urlpatterns = [
    path("refuse/<name>", lambda request, name: refuse(name)),
    path("", include("tests.support.django_project.urls")),
]


class DjangoSite:
    pages = "/admin/distlock_web/heldlock/"

    def __init__(self, settings: Any, *, speaks: bool, catalogues: Path | None = None) -> None:
        settings.ROOT_URLCONF = __name__
        settings.LOCALE_PATHS = [catalogues] if catalogues else []
        if speaks:
            settings.MIDDLEWARE = [*settings.MIDDLEWARE, "django.middleware.locale.LocaleMiddleware"]
        self._client = Client()
        self._client.force_login(User.objects.create_superuser("ann"))

    def ask(self, address: str, language: str, **headers: str) -> str:
        return self._client.get(address, headers={"Accept-Language": language, **headers}).content.decode()


class FlaskSite:
    pages = "/distlock/"

    def __init__(self, settings: Any, *, speaks: bool, catalogues: Path | None = None) -> None:
        app = Flask("shop")
        app.config.update(PROPAGATE_EXCEPTIONS=False, BABEL_TRANSLATION_DIRECTORIES=str(catalogues))
        DistLock(app)
        app.register_blueprint(held_locks_blueprint(lambda action: "ann"))
        app.add_url_rule("/refuse/<name>", view_func=refuse)
        if speaks:
            babel: Any = pytest.importorskip("flask_babel")
            babel.Babel(app, locale_selector=lambda: request.accept_languages.best.replace("-", "_"))
        self._client = app.test_client()

    def ask(self, address: str, language: str, **headers: str) -> str:
        return self._client.get(address, headers={"Accept-Language": language, **headers}).text


@pytest.fixture(autouse=True)
def english() -> Iterator[None]:
    """Django's middleware leaves its language to whoever comes next in the thread."""
    with translation.override("en"):
        yield


@pytest.fixture(params=[DjangoSite, FlaskSite])
def make(request: pytest.FixtureRequest, settings: Any, memory: None, db: None) -> Callable[..., Any]:
    return lambda speaks=True, **options: request.param(settings, speaks=speaks, **options)


def words(page: str) -> str:
    """What is read on a page: its text, and what stands in attributes that are shown."""
    page = re.sub(r"<(style|script)\b.*?</\1>", "", page, flags=re.S)
    attributes = re.findall(r'(?:aria-label|placeholder|title|data-(?!key|fragment)[a-z]+)="([^"]*)"', page)
    return html.unescape("\n".join([re.sub(r"<[^>]*>", "\n", page), *attributes]))


@pytest.mark.parametrize("name", ERRORS)
def test_an_answer_is_in_the_clients_language(make: Callable[..., Any], name: str) -> None:
    site = make()
    page = site.ask(f"/refuse/{name}", "zh-CN", Accept="text/html")
    assert '<html lang="zh-Hans">' in page
    english = re.sub(r"[0-9a-f-]{12,}|Idempotency-Key|once|\bid\b", "", words(page))
    assert not re.search("[A-Za-z]", english), english
    detail = json.loads(site.ask(f"/refuse/{name}", "zh-CN", Accept="application/json"))["detail"]
    assert CHINESE.search(detail)
    assert detail in page
    for language in ("en", "zh-TW", "de"):  # none of ours
        assert '<html lang="en">' in site.ask(f"/refuse/{name}", language, Accept="text/html")


def test_a_project_that_speaks_one_language_keeps_it(make: Callable[..., Any], settings: Any) -> None:
    """Flask's, too, where Django runs in the same process, in Chinese."""
    site = make(speaks=False)
    assert "try again in 7 seconds" in site.ask("/refuse/busy", "zh-CN", Accept="text/html")
    with translation.override("zh-hans"):
        answer = site.ask("/refuse/busy", "en", Accept="text/html")
    assert ("try again in 7 seconds" in answer) == isinstance(site, FlaskSite)


def test_the_pages_are_in_the_readers_language(make: Callable[..., Any], elsewhere: Callable[..., Lease]) -> None:
    site = make()
    lease = elsewhere("7", expire=600)  # a busy machine takes long for all of these pages
    once("8", keep="1h")(lambda: None)()
    key = json.dumps(["default", lease.name, str(lease.fence), False])
    pages: dict[str, dict[str, object]] = {
        "": {}, "fragment": {"fragment": 1}, "q": {"q": "x"}, "done": {"done": 1}, "nothing": {"done": 1, "q": "x"},
        "lock/": {"store": "default", "name": lease.name}, "gone": {"store": "default", "name": "x"},
        "release/": {"lock": key},
    }  # fmt: skip
    for name, query in pages.items():
        folder = "lock/" if name == "gone" else name if name.endswith("/") else ""
        chinese, english = (
            words(site.ask(f"{site.pages}{folder}?{urlencode(query)}", language)) for language in ("zh-CN", "en")
        )
        assert CHINESE.search(chinese), name
        ours = {text for texts in said() for text in texts if "%" not in text}
        lines = {line.strip() for line in chinese.splitlines()}
        assert lines & ours <= {"held"}, name
        assert not CHINESE.search(english), name


@pytest.fixture
def german(tmp_path: Path) -> Path:
    """A project's own catalogues, for either framework."""
    pytest.importorskip("babel")
    from babel.messages.catalog import Catalog
    from babel.messages.mofile import write_mo

    catalogue = Catalog(locale="de")
    catalogue.add("Already in progress", "Läuft schon", context=CONTEXT)
    catalogue.add("Held locks", 'Sperren <b>"jetzt"</b>', context=CONTEXT)
    catalogue.add("Search: lock, request id, path, function or host", '"><b>Lupe</b>', context=CONTEXT)
    folder = tmp_path / "de" / "LC_MESSAGES"
    folder.mkdir(parents=True)
    for name in ("django.mo", "messages.mo"):
        with (folder / name).open("wb") as file:
            write_mo(file, catalogue)
    return tmp_path


def test_a_project_may_bring_a_language_of_its_own(make: Callable[..., Any], german: Path) -> None:
    """In its own catalogue, as its other texts."""
    assert "<h1>Läuft schon</h1>" in make(catalogues=german).ask("/refuse/busy", "de", Accept="text/html")


def test_a_translation_is_text_and_no_html(make: Callable[..., Any], german: Path) -> None:
    """A template's own text is safe for Django, and its gettext says the same of the translation."""
    site = make(catalogues=german)
    page = site.ask(site.pages, "de")
    assert "Sperren &lt;b&gt;" in page
    assert "&gt;&lt;b&gt;Lupe" in page
    assert "<b>" not in page


def test_a_language_has_one_catalogue(memory: None) -> None:
    """A page has a hundred texts, and each made one."""
    babel: Any = pytest.importorskip("flask_babel")
    app = Flask("shop")
    app.config.update(BABEL_DEFAULT_LOCALE="zh_CN")
    babel.Babel(app)
    with app.test_request_context():
        assert running_catalogue() is running_catalogue()
