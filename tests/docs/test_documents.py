"""What README and docs say is run: every Python block, every table of names, every link."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from inspect import isfunction, signature
from pathlib import Path

import pytest
import redis

import distlock_web
from distlock_web import LeaseLost, attach, configure, lock
from distlock_web.core import config
from distlock_web.core.backend import Backend, Port
from distlock_web.core.registry import registry
from distlock_web.locks.decorator import FunctionOptions
from distlock_web.locks.once import OnceOptions
from distlock_web.ops.held_locks import list_all
from distlock_web.testing.servers import RedisServer
from tests.support.revoking import revoke

ROOT = Path(__file__).parents[2]
PACKAGE = Path(distlock_web.__file__).parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
TRANSLATED = [path for path in DOCUMENTS if path.name.endswith(".zh-CN.md")]

Script = tuple[str, str]  #: document and heading


def python_blocks() -> dict[Script, str]:
    """The blocks under one heading are one script."""
    scripts: dict[Script, str] = {}
    for document in sorted({*DOCUMENTS} - {*TRANSLATED}):
        for heading, text in re.findall(r"^#+ ([^\n]*)\n(.*?)(?=^#+ |\Z)", without_comments(document), re.M | re.S):
            blocks = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
            if blocks:
                scripts[document.name, heading] = "\n".join(prepared(block) for block in blocks)
    return scripts


def without_comments(document: Path) -> str:
    """A comment in a block of code must not pass for a heading."""
    return re.sub(r"^# (\w+)\.py$", r"#\1.py", document.read_text(), flags=re.M)


def prepared(block: str) -> str:
    if block.startswith("#settings.py"):
        return f"{BEFORE_SETTINGS}\n{block}\n{AFTER_SETTINGS}"
    return block


BEFORE_SETTINGS = 'INSTALLED_APPS, MIDDLEWARE = ["django.contrib.contenttypes", "django.contrib.auth"], []'
AFTER_SETTINGS = """
import django
from django.conf import settings
settings.configure(**{name: value for name, value in globals().items() if name.isupper()}, ROOT_URLCONF="__main__")
django.setup()
from django.core.management import call_command
"""

WITH_DATABASE = f"""{BEFORE_SETTINGS}
DISTLOCK = None
INSTALLED_APPS += ["distlock_web.django"]
DATABASES = {{"default": {{"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}}}
{AFTER_SETTINGS}"""

WITH_STORE = f"""{BEFORE_SETTINGS}
INSTALLED_APPS += ["distlock_web.django"]
DISTLOCK = {{"default": {{"BACKEND": "memory"}}}}
{AFTER_SETTINGS}"""

WITH_REST = f"""{BEFORE_SETTINGS}
DISTLOCK = {{"default": {{"BACKEND": "memory"}}}}
INSTALLED_APPS += ["distlock_web.django"]
MIDDLEWARE = ["distlock_web.django.middleware.RequestIDMiddleware"]
REST_FRAMEWORK = {{"DEFAULT_AUTHENTICATION_CLASSES": []}}
ALLOWED_HOSTS, DEBUG = ["*"], True
{AFTER_SETTINGS}"""

WITH_ADMIN = f"""{BEFORE_SETTINGS}
INSTALLED_APPS += ["django.contrib.admin", "django.contrib.messages", "django.contrib.sessions", "distlock_web.django"]
MIDDLEWARE = [
    "distlock_web.django.middleware.RequestIDMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [{{"BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True, "OPTIONS": {{
    "context_processors": ["django.contrib.auth.context_processors.auth", "django.template.context_processors.request",
                           "django.contrib.messages.context_processors.messages"]}}}}]
DISTLOCK = {{"default": {{"BACKEND": "memory"}}}}
DATABASES = {{"default": {{"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}}}
SECRET_KEY, STATIC_URL, ALLOWED_HOSTS, USE_TZ = "x", "/static/", ["*"], True
{AFTER_SETTINGS}"""

ATOMIC = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:", "ATOMIC_REQUESTS": True}}
WITH_ATOMIC_REQUESTS = f"DATABASES = {ATOMIC}\n{WITH_REST}"

WITH_HTTPX = "import warnings; warnings.filterwarnings('ignore', message='.*httpx2')  # it works with httpx, too"

# What must hold after a script has run: that is where it says more than "no exception".

ELSEWHERE = """
import contextvars, threading
from types import SimpleNamespace
from django.test import RequestFactory
from distlock_web import held_locks, lock
urlpatterns = []


def elsewhere(function, *arguments):  # in a request of its own
    return contextvars.Context().run(function, *arguments)
"""

IN_FASTAPI = """
import asyncio, contextvars, httpx
async def main():
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as client:
        holder = app.state.distlock.registry
        statuses = []
        from distlock_web.web.asgi import serving
        serving.set(holder)  # the app's own stores
        async with lock("{name}"):
            busy = asyncio.create_task(client.post("{path}"), context=contextvars.Context())
            statuses.append((await busy).status_code)
        statuses.append((await client.post("{path}")).status_code)
        assert statuses == {expected}, statuses
from distlock_web import lock
asyncio.run(main())
"""

CHECKS: dict[Script, str] = {
    ("recipes.md", "A double click"): f"""{ELSEWHERE}
from distlock_web import LockBusy
assert elsewhere(pay, RequestFactory().post("/"), "7").content == b"paid"
try:
    elsewhere(pay, RequestFactory().post("/"), "07")
    raise AssertionError
except LockBusy:
    pass
assert elsewhere(pay, RequestFactory().get("/"), "7").content == b"paid"
""",
    ("recipes.md", "A webhook that is delivered twice"): f"""{ELSEWHERE}
from django.db import connection
from distlock_web import LockBusy
with connection.schema_editor() as editor:
    editor.create_model(Delivery)
def deliver(body):
    return elsewhere(webhook, RequestFactory().post("/", body, content_type="application/json"))
with lock("webhook:e-1"):
    try:
        deliver({{"event": "e-1"}})
        raise AssertionError
    except LockBusy:
        pass
assert [deliver({{"event": "e-1"}}).status_code for _ in "12"] == [204, 204]
assert Delivery.objects.get().event == "e-1"
try:
    deliver([1])
    raise AssertionError
except KeyUnavailable:
    pass
""",
    ("recipes.md", "A token that is refreshed once"): """
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(4) as pool:
    with lock("token:ann"):  # they find no token, and wait
        callers = [pool.submit(access_token, "ann") for _ in range(4)]
    assert {caller.result() for caller in callers} == {"token of ann"}
assert asked == ["ann"] and access_token("ann") == "token of ann"
""",
    ("recipes.md", "Cron on every host"): 'assert [nightly(), nightly()] == ["done", None]',
    ("recipes.md", "APScheduler in eight workers"): """
import time
from distlock_web.locks import leader as module
until = time.monotonic() + 60
while scheduler is None or not scheduler.running:
    assert time.monotonic() < until
    time.sleep(0.01)
assert [job.func.__name__ for job in scheduler.get_jobs()] == ["send_digest"]
module.GRACE = 0
second = leader("scheduler", start=print, stop=print, expire=30)
assert candidate.is_leader() and not second.is_leader()
said = []
async def receive():
    return {}
async def send(message):
    said.append(message["type"])
asyncio.run(with_lifespan(None)({"type": "lifespan"}, receive, send))
assert said == ["lifespan.startup.complete", "lifespan.shutdown.complete"] and not scheduler.running
while not second.is_leader():
    assert time.monotonic() < until
    time.sleep(0.01)
""",
    ("recipes.md", "A double save in the admin"): f"""{ELSEWHERE}
import re
from django.contrib.auth.models import User
from django.test import Client
from django.urls import path
admin.site.unregister(Group)
admin.site.register(Group, GroupAdmin)
urlpatterns = [path("admin/", admin.site.urls)]
call_command("migrate", verbosity=0)
client = Client(headers={{"Host": "localhost"}})
client.force_login(User.objects.create_superuser("ann", password="x"))
add = "/admin/auth/group/add/"
[field] = re.findall('name="_once" value="(.+?)"', client.get(add).content.decode())
assert client.post(add, {{"name": "", "_once": field}}).status_code == 200
assert [client.post(add, {{"name": "buyers", "_once": field}}).status_code for _ in range(2)] == [302, 302]
assert client.post(add, {{"name": "sellers", "_once": field}}).status_code == 302
assert sorted(group.name for group in Group.objects.all()) == ["buyers", "sellers"]
""",
    ("recipes.md", "A double save in Flask-Admin"): """
import re
from flask import Flask
from flask_admin import Admin
from flask_babel import Babel
from flask_sqlalchemy import SQLAlchemy
db = SQLAlchemy()
class Order(db.Model):
    id = db.Column(db.Integer, primary_key=True)
    name = db.Column(db.String(20), nullable=False)
app = Flask("shop")
app.config.update(SQLALCHEMY_DATABASE_URI="sqlite://", SECRET_KEY="x", DISTLOCK={"default": {"BACKEND": "memory"}})
for extension in (db, Babel(), distlock):
    extension.init_app(app)
Admin(app).add_view(OrderView(Order, db))
with app.app_context():
    db.create_all()
client = app.test_client()
[field] = re.findall('name="once"[^>]*value="(.+?)"', client.get("/admin/order/new/").text)
names = ("", "shoes", "shoes", "socks")
sent = [client.post("/admin/order/new/", data={"name": name, "once": field}) for name in names]
assert [(answer.status_code, answer.location) for answer in sent] == [
    (200, None), (302, "/admin/order/"), (302, "/admin/order/"), (422, None)]
with app.app_context():
    assert [order.name for order in db.session.query(Order)] == ["shoes"]
""",
    ("recipes.md", "A view that is not yours"): f"""{ELSEWHERE.replace("urlpatterns = []", "")}
from django.core import mail
from django.contrib.auth.models import User
from django.test import Client
settings.EMAIL_BACKEND = "django.core.mail.backends.locmem.EmailBackend"
urlpatterns += [path("done/", PasswordResetView.as_view(), name="password_reset_done"),
                path("confirm/<uidb64>/<token>/", PasswordResetView.as_view(), name="password_reset_confirm")]
call_command("migrate", verbosity=0)
User.objects.create_user("ann", "ann@example.com", "x")
client = Client(headers={{"Host": "localhost"}})
emails = ("ann@example.com", "Ann@example.com")
answers = [client.post("/accounts/password_reset/", {{"email": email}}) for email in emails]
assert [answer.status_code for answer in answers] == [302, 409] and len(mail.outbox) == 1
""",
    ("recipes.md", "One answer at a time"): f"""{ELSEWHERE}
import asyncio
from distlock_web import LockBusy, aheld_locks
async def main():
    first = await answer(RequestFactory().get("/"), 7)
    assert await aheld_locks("chat:7")
    try:
        await asyncio.create_task(answer(RequestFactory().get("/"), 7), context=contextvars.Context())
        raise AssertionError
    except LockBusy:
        pass
    assert b"".join([word async for word in first]).split()[0] == b"one" and not await aheld_locks("chat:7")
asyncio.run(main())
""",
    ("once.md", "A payment, with an Idempotency-Key"): f"""{ELSEWHERE}
def send(order_id, body="{{}}"):
    request = RequestFactory().post("/", body, "application/json", headers={{"Idempotency-Key": '"8e03"'}})
    return elsewhere(pay, request, order_id)
first, again = send(7), send(7)
assert (again.status_code, again.content) == (first.status_code, first.content) == (201, b'{{"paid": 7}}')
assert again.headers["Idempotency-Replayed"] == "true" and "Idempotency-Replayed" not in first.headers
try:
    send(7, "other")
    raise AssertionError
except KeyReused:
    pass
""".replace("held_locks, lock", "KeyReused"),
    ("once.md", "A webhook"): f"""{ELSEWHERE}
from distlock_web import KeyReused
def delivery(body):
    return elsewhere(webhook, RequestFactory().post("/", body, content_type="application/json"))
answers = [delivery({{"id": "e-1"}}) for _ in "12"]
assert [answer.status_code for answer in answers] == [204, 204]
assert "Idempotency-Replayed" in answers[1].headers
for wrong in ({{}}, [1], "x"):
    try:
        delivery(wrong)
        raise AssertionError
    except KeyUnavailable as error:
        assert error.missing == (("field", "id"),)
try:
    delivery({{"id": "e-1", "more": 1}})
    raise AssertionError
except KeyReused:
    pass
""",
    ("once.md", "A job, on every host"): 'assert report("2026-11") == report("2026-11") == {"rows": 7}',
    ("once.md", "Who asked"): """
from django.test import Client
from django.urls import path
urlpatterns = [path("pay", pay)]
call_command("check", fail_level="WARNING")
answers = [Client().post("/pay", headers={"Idempotency-Key": "k", "Host": "localhost"}) for _ in "12"]
assert [answer.status_code for answer in answers] == [201, 201] and "Idempotency-Replayed" in answers[1].headers
""",
    ("transactions.md", "Django"): """
call_command("migrate", verbosity=0)
assert buy(None, "bicycle").content == b"sold"
assert Group.objects.get().name == "bicycle"
""",
    ("transactions.md", "One method of a class"): """
from django.test import Client
from django.urls import path
urlpatterns = [path("orders/<pk>/", Orders.as_view({"put": "update", "get": "retrieve"}))]
call_command("check", fail_level="WARNING")
call_command("migrate", verbosity=0)
client = Client(headers={"Host": "localhost"})
assert client.put("/orders/7/").json() == "updated" and client.get("/orders/7/").json() == "as before"
assert Group.objects.get().name == "7"
""",
    ("keys.md", "One row, one key"): """
from django.http import Http404
from django.test import RequestFactory
assert rename(RequestFactory().get("/"), "07").content == b"renamed 7"
try:
    rename(RequestFactory().get("/"), "one")
    raise AssertionError
except Http404:
    pass
assert disband(Group(pk=7)) == "disbanded"
with lock(Group(pk=7)) as lease:
    assert lease.name == "disLock:auth.group:7"
""",
    ("select-for-update.md", "Beside select_for_update"): """
call_command("migrate", verbosity=0)
Group.objects.create(pk=7, name="buyers")
assert rename(None, "07").content == b"renamed" and Group.objects.get().name == "sellers"
""",
    ("transactions.md", "A lock and once on one view"): """
from django.test import Client
from django.urls import path
urlpatterns = [path("buy/<item>", buy)]
call_command("check", fail_level="WARNING")
answers = [Client(headers={"Host": "localhost"}).post("/buy/bicycle", {"once": "k"}) for _ in "12"]
assert [answer.content for answer in answers] == [b"sold"] * 2 and "Idempotency-Replayed" in answers[1].headers
""",
    ("transactions.md", "Flask-Login"): """
with app.app_context():
    db.create_all()
    db.session.add(User(id=1))
    db.session.commit()
client = app.test_client()
assert client.post("/order", data={"once": "k"}).status_code == 401
with client.session_transaction() as before:
    before.update(_user_id="1", _fresh=True)
answers = [client.post("/order", data={"once": "k"}) for _ in "12"]
assert [answer.text for answer in answers] == ["ordered"] * 2 and "Idempotency-Replayed" in answers[1].headers
with app.app_context():
    assert db.session.get(User, 1).orders == 1
    db.session.remove(); db.engine.dispose()
""",
    ("transactions.md", "SQLAlchemy"): 'sell("bicycle"); session.remove(); session.get_bind().dispose()',
    ("fencing.md", "SQLAlchemy"): """
with Session(engine) as session:
    assert session.get(Stock, 42).count == 8
engine.dispose()
""",
    ("how.md", "A lock inside a lock"): "assert 1 <= len(jobs) <= 3",
    ("fencing.md", "Another service"): 'assert fence == int(headers["Lock-Fence"]) > 0',
    ("fencing.md", "Plain SQL"): 'assert database.execute("SELECT remaining FROM stock").fetchone() == (19,)',
    ("fencing.md", "A transfer between two accounts"): """
from django.db import connection
with connection.schema_editor() as editor:
    editor.create_model(Account)
Account.objects.bulk_create([Account(pk=1, balance=10), Account(pk=2, balance=0)])
assert transfer(None, 1, 2).content == b"transferred"
assert list(Account.objects.order_by("pk").values_list("balance", flat=True)) == [0, 10]
assert transfer(None, 1, 1).status_code == 400
""",
    ("README.md", "Django"): """
from django.test import Client
from django.urls import path
from distlock_web import lock
urlpatterns = [path("orders/<int:order_id>/pay", pay)]
call_command("check", fail_level="WARNING")
client = Client(headers={"Host": "localhost"})
answer = client.get("/orders/7/pay")
assert (answer.status_code, answer.content) == (200, b"paid")
with lock("order:7"):
    answer = client.get("/orders/7/pay")  # a request begins inside of no lock
    assert answer.status_code == 409 and 0 < int(answer["Retry-After"]) <= 10
""",
    ("README.md", "Flask"): """
import contextvars
from distlock_web import lock
with app.app_context():
    with lock("order:7"):
        answer = contextvars.Context().run(app.test_client().post, "/orders/7/pay")
assert answer.status_code == 409 and 0 < int(answer.headers["Retry-After"]) <= 10
answer = app.test_client().post("/orders/7/pay")
assert (answer.status_code, answer.text) == (200, "paid")
""",
    ("README.md", "FastAPI"): IN_FASTAPI.format(path="/orders/7/pay", name="order:7", expected="[409, 200]"),
    ("start-fastapi.md", "What surprises: the commit comes after the lock"): f"""
engine = Sessions.kw["bind"]
with engine.begin() as connection:
    connection.execute(text("CREATE TABLE stock (item TEXT, count INTEGER)"))
    connection.execute(text("INSERT INTO stock VALUES ('bicycle', 2)"))
held_at_commit = []
from sqlalchemy import event
from distlock_web import held_locks
held = lambda session: held_at_commit.append(held_locks("stock:bicycle"))
event.listen(Sessions, "before_commit", held)
{IN_FASTAPI.format(path="/buy/bicycle", name="stock:bicycle", expected="[409, 200]")}
assert len(held_at_commit) == 1 and len(held_at_commit[0]) == 1, held_at_commit
with engine.begin() as connection:
    assert connection.execute(text("SELECT count FROM stock")).scalar() == 1
engine.dispose()
""",
    ("start-fastapi.md", "A payment and an export"): """
import asyncio, httpx
from distlock_web import lock
async def sleep(seconds): ...
async def main():
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as client:
        key = {"Idempotency-Key": "k1"}
        sent = [client.post("/orders/7/pay", headers=key), client.post("/orders/7/pay", headers=key)]
        answers = [await each for each in sent]
        assert [each.status_code for each in answers] == [201, 201] and answers[0].content == answers[1].content
        assert answers[1].headers["Idempotency-Replayed"] == "true"
        assert (await client.post("/orders/7/pay", headers=key, json=1)).status_code == 422
        assert (await client.post("/orders/7/pay")).status_code == 400
        assert (await client.post("/orders/7/ship")).json() == {"shipped": 7}
        assert (await client.get("/export")).text.count("\\n") == 10
asyncio.run(main())
""",
    ("start-fastapi.md", "In your tests"): "test_two_clicks()",
    ("django.md", "Views"): """
from asyncio import run
from types import SimpleNamespace
from django.test import RequestFactory
request = RequestFactory().post("/")
request.user = SimpleNamespace(pk=7)
assert pay(request, 7).content == b"paid"
assert run(transfer(request, 1, 2)).content == b"transferred"
request.user.is_authenticated = True
assert Checkout.as_view()(request).content == b"checked out"
from django.contrib.auth.models import AnonymousUser
settings.ALLOWED_HOSTS, urlpatterns = ["*"], []
anonymous = RequestFactory().post("/checkout")
anonymous.user = AnonymousUser()
assert Checkout.as_view()(anonymous).headers["Location"] == "/accounts/login/?next=/checkout"
assert profile(RequestFactory().get("/")).content == b"the form"  # its key, of a user, is not made
assert report(request, 2026).content == b"the report"
import contextvars
from distlock_web import lock
with lock("report:2026"):
    assert contextvars.Context().run(report, request, 2026).status_code == 202
""",
    ("django.md", "Django"): 'urlpatterns = []; call_command("check", fail_level="WARNING")',
    ("transfer.md", "Hand-over"): """
lock("export:7").acquire().release()  # free: the task has released it
assert export(*queue[0]) == "given up"
""",
    ("django.md", "Django Ninja"): """
assert {next(iter(route.callback._non_atomic_requests)) for route in routes} == {"default"}
""",
    ("integrations.md", "A minimal framework"): """
import asyncio
told, asked = [], iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])
async def receive():
    return next(asked)
async def send(message):
    told.append(message["type"])
asyncio.run(Mini()({"type": "lifespan"}, receive, send))
assert told == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
""",
    ("integrations.md", "A database library"): """
sell("bicycle")
assert connection.execute("SELECT count(*), min(fence) > 0 FROM sale").fetchone() == (1, 1)
assert not connection.in_transaction
connection.execute("BEGIN")
try:
    sell("bicycle")
    raise AssertionError
except ConfigurationError:
    connection.close()
""",
    ("backends.md", "A small one"): """
from distlock_web import attach, configure, lock
configure({"default": {"BACKEND": "__main__.TableBackend"}})
with lock("a") as lease:
    ticket = lease.detach()
with attach(ticket) as second:
    assert second.fence > 0
with lock("a") as third:
    assert third.fence > second.fences.get("disLock:a", 0)
""",
    ("admin.md", "Flask"): """
client = app.test_client()
assert client.get("/ops/locks/").headers["Location"] == "/login"
with client.session_transaction() as before:
    before.update(user="ann", role="clerk")
assert client.get("/ops/locks/").status_code == 200
assert client.get("/ops/locks/release/").status_code == 403
with client.session_transaction() as before:
    before.update(role="operator")
assert client.get("/ops/locks/release/").status_code == 200
""",
    ("race.md", "What it cannot see"): 'cache = {"count": 1}; refresh(cache); assert cache == {"count": 2}',
    ("tasks.md", "Sent once"): """
assert result.id and unique(export).delay(7) is None and unique(export).delay(8).id
""",
}

# What a block may take for granted.
BEFORE: dict[Script, str] = {
    ("integrations.md", "Does it pass?"): f"""
import sys, types
sys.modules["mini"] = types.ModuleType("mini")
exec({python_blocks()["integrations.md", "A minimal framework"]!r}, vars(sys.modules["mini"]))
""",
    ("start-fastapi.md", "In your tests"): WITH_HTTPX,
    ("testing.md", "FastAPI and Starlette"): WITH_HTTPX,
    ("start-fastapi.md", "What surprises: the commit comes after the lock"): (
        "import os, tempfile; os.chdir(tempfile.mkdtemp())"
    ),
    ("recipes.md", "A double click"): WITH_STORE,
    ("recipes.md", "A webhook that is delivered twice"): WITH_DATABASE,
    ("recipes.md", "A streaming export, one for each user"): WITH_STORE,
    ("recipes.md", "A double save in the admin"): WITH_ADMIN,
    ("recipes.md", "A view that is not yours"): WITH_ADMIN,
    ("recipes.md", "One answer at a time"): WITH_STORE,
    ("recipes.md", "One lock for each user, and for each visitor"): WITH_STORE,
    ("recipes.md", "Many tenants"): WITH_STORE,
    **{
        ("once.md", heading): WITH_STORE
        for heading in ("A payment, with an Idempotency-Key", "An HTML form", "A webhook", "At least once")
    },
    ("once.md", "Who asked"): WITH_ATOMIC_REQUESTS,
    ("tasks.md", "Sent once"): 'import celery; celery.Celery(broker="memory://")',
    ("tasks.md", "One more run"): 'import celery; celery.Celery(broker="memory://")',
    ("select-for-update.md", "Beside select_for_update"): WITH_DATABASE,
    ("transactions.md", "Django"): WITH_DATABASE,
    ("transactions.md", "One method of a class"): WITH_ATOMIC_REQUESTS,
    ("transactions.md", "A lock and once on one view"): WITH_ATOMIC_REQUESTS,
    ("django.md", "REST framework"): WITH_REST,
    ("django.md", "Django Ninja"): WITH_ATOMIC_REQUESTS,
    ("fencing.md", "Django"): WITH_DATABASE,
    ("fencing.md", "A transfer between two accounts"): WITH_DATABASE,
    ("keys.md", "One row, one key"): WITH_STORE,
    ("streaming.md", "Streaming"): WITH_STORE,
    ("responses.md", "Answers to choose from"): WITH_STORE,
    ("responses.md", "REST framework"): 'DISTLOCK = {"default": {"BACKEND": "memory"}}',
    ("testing.md", "Flask"): 'import sys; sys.modules["shop"] = sys.modules["__main__"]',
    ("django.md", "Views"): WITH_STORE,
    ("admin.md", "Django"): WITH_ADMIN,
    # In a project they are run by test_race_page.py.
    ("race.md", "Django"): f"{WITH_DATABASE}\nimport sys; sys.modules['shop.models'] = sys.modules['__main__']",
    ("race.md", "unittest"): f"{WITH_DATABASE}\nimport sys; sys.modules['shop.models'] = sys; sys.Stock = 0",
    ("race.md", "Flask"): 'import sys; sys.modules["app"] = sys.modules["__main__"]',
}


@pytest.mark.parametrize("script", python_blocks(), ids=lambda script: ", ".join(script))
def test_the_code_runs(script: Script, redis_url: str) -> None:
    code = "\n".join((BEFORE.get(script, ""), python_blocks()[script], CHECKS.get(script, "")))
    environment = {**os.environ, "DISTLOCK_URL": redis_url}
    environment.pop("DJANGO_SETTINGS_MODULE", None)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code.replace("redis://127.0.0.1:6379/0", redis_url)],
        capture_output=True,
        text=True,
        env=environment,
        cwd=ROOT,
        timeout=60,
    )
    assert done.returncode == 0, f"{code}\n{done.stderr}"


def code_blocks(page: Path) -> list[str]:
    return re.findall(r"^```.*?^```$", page.read_text("utf-8"), re.M | re.S)


def test_the_chinese_recipes_have_blocks_that_are_run() -> None:
    """They are those that their readers look for, some of them from other pages."""
    shown = code_blocks(ROOT / "docs" / "recipes.zh-CN.md")
    run = {block for page in {*DOCUMENTS} - {*TRANSLATED} for block in code_blocks(page)}
    assert shown
    assert [block for block in shown if block not in run] == []


@pytest.mark.parametrize(
    "page", sorted({*TRANSLATED} - {ROOT / "docs" / "recipes.zh-CN.md"}), ids=lambda page: page.name
)
def test_a_translation_has_the_blocks_and_the_tables_of_its_original(page: Path) -> None:
    pages = (page, page.with_name(page.name.replace(".zh-CN", "")))
    blocks, originals = (code_blocks(path) for path in pages)
    assert blocks == originals != []
    rows, rows_there = (len(re.findall(r"^\|", path.read_text("utf-8"), re.M)) for path in pages)
    assert rows == rows_there


def test_every_check_has_its_code() -> None:
    assert set(CHECKS) | set(BEFORE) <= set(python_blocks())


def test_the_tables_name_what_there_is() -> None:
    options = {*FunctionOptions.__annotations__, *OnceOptions.__annotations__}
    assert names_in_table("options.md", "Options") == options
    assert names_in_table("options.md", "Settings") == set(config.SETTINGS)
    assert names_in_table("which-store.md", "Which store") == set(config.STORES)


def test_the_tables_of_stores_options_and_settings_are_what_the_code_declares() -> None:
    command = [sys.executable, str(ROOT / "docs" / "tables.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, f"{done.stdout}{done.stderr}: run python docs/tables.py"


def test_what_a_store_has_and_may_offer_is_in_the_tables() -> None:
    """The verbs of a port, and what is inherited where a store does not offer it."""
    must, may = (section("backends.md", name) for name in ("The verbs", "What a store may offer besides"))
    cells = "\n".join(re.findall(r"^\| (`.*?) \|", must + may, re.M))
    said = {name: arguments.split(", ") for name, arguments in re.findall(r"`(\w+)\((.*?)\)`", cells)}
    methods = {(of, name): each for of in (Port, Backend) for name, each in vars(of).items() if isfunction(each)}
    wanted = {
        name: [*signature(method).parameters][1:] or [""]
        for (of, name), method in methods.items()
        if not name.startswith("_") and (of is Port or name not in Backend.__abstractmethods__)
    }
    assert said == wanted
    assert {"`one_writer`", "`makes_tables = True`"} <= set(re.findall(r"`[^`]+`", may))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "example", "name", "passes"),
    [
        ("backends.md", "A small one", "mystore", r"\d\d passed, \d+ skipped"),
        ("integrations.md", "A minimal framework", "mini", r"\b37 passed in"),  # as the page says
    ],
)
def test_the_example_passes_its_contract(page: str, example: str, name: str, passes: str, tmp_path: Path) -> None:
    blocks = python_blocks()
    (tmp_path / f"{name}.py").write_text(blocks[page, example])
    (tmp_path / f"test_{name}.py").write_text(blocks[page, "Does it pass?"])
    (tmp_path / "test_storm.py").write_text(blocks.get((page, "The storm"), ""))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), "."],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}", "DJANGO_SETTINGS_MODULE": ""},
        cwd=tmp_path,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr
    assert re.search(passes, done.stdout), done.stdout[-500:]


def test_the_user_that_the_docs_make_can_do_everything(make_redis: Callable[..., RedisServer]) -> None:
    server = make_redis()
    [command] = re.findall(r"^ACL SETUSER.*", section("redis.md", "What is in Redis"), re.M)
    with redis.Redis(port=server.port) as admin:
        admin.execute_command(*shlex.split(command))
    configure({"default": {"LOCATION": server.url.replace("//", "//locks:secret@"), "WAIT": 5}})
    with (
        redis.Redis(port=server.port, username="locks", password="secret") as user,
        pytest.raises(redis.exceptions.NoPermissionError),
    ):
        user.get("something else")

    def waiter() -> str:
        with lock("stock:42"):
            return "had it"

    with lock("stock:42", renew=True) as lease, ThreadPoolExecutor(1) as pool:
        lease.extend()
        waiting = pool.submit(waiter)
        while not list_all(registry()).rows[0].lock.waiters:
            assert not waiting.done()
        lease.release()
        assert waiting.result() == "had it"
    lease = attach(lock("stock:42").acquire().detach())
    [row] = list_all(registry()).rows
    assert revoke(row.lock.name, lease.fence, row.alias)
    with pytest.raises(LeaseLost):
        lease.release()
    registry().close()


def there(file: Path) -> Path:
    """Where a file of the repository is: the package itself may be an installed wheel."""
    relative = file.resolve().relative_to(ROOT)
    return PACKAGE.parent / relative if relative.parts[:1] == (PACKAGE.name,) else file


def test_every_link_leads_somewhere() -> None:
    for document in (*DOCUMENTS, *ROOT.glob("example_project/*.md")):
        for target, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", document.read_text()):
            file = there(document.parent / target) if target else document
            assert file.exists(), f"{document.name}: {target}"
            if anchor:
                anchors = {
                    re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-")  # as GitHub makes them
                    for heading in re.findall(r"^#+ (.*)", file.read_text(), re.M)
                }
                assert anchor in anchors, f"{document.name}: {target}#{anchor}"
        for picture in re.findall(r"""\bsrc(?:set)?="([^":]+)\"""", document.read_text()):
            is_there = picture.startswith("{{") or (document.parent / picture).exists()  # or a template's business
            assert is_there, f"{document.name}: {picture}"


def test_the_index_and_the_site_have_every_page() -> None:
    on_site = set(re.findall(r": ([\w./-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.M))
    assert {path.name.lower() for path in DOCUMENTS} - {"readme.md"} <= {name.lower() for name in on_site}
    index = (ROOT / "docs" / "index.md").read_text()
    linked = {(ROOT / "docs" / target).resolve() for target in re.findall(r"\]\(([^)]+)\)", index)}
    assert set(DOCUMENTS) - linked == {ROOT / "docs" / "index.md"}


@pytest.mark.slow
def test_the_first_lock_needs_no_server(tmp_path: Path) -> None:
    heading = "A first lock, without a Redis"
    [commands] = re.findall(r"^```sh\n(.*?)^```", section("README.md", heading), re.M | re.S)
    install, *others = commands.splitlines()
    assert install.startswith("pip install")
    (tmp_path / "first.py").write_text(python_blocks()["README.md", heading])
    path = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": str(PACKAGE.parent)}
    done = subprocess.run(
        ["sh", "-ec", "\n".join(others)], capture_output=True, text=True, env={**os.environ, **path}, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    said, lease = done.stdout.splitlines()
    assert said == "one at a time"
    assert 0 < float(lease.split()[1]) < 10
    assert (tmp_path / "locks.db").exists()


def section(document: str, heading: str) -> str:
    path = next(path for path in DOCUMENTS if path.name == document)
    found = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#+ |\Z)", without_comments(path), re.M | re.S)
    assert found, f"{document} has no section {heading}"
    return found[1]


def names_in_table(document: str, heading: str) -> set[str]:
    first_cells = [line.split("|")[1] for line in section(document, heading).splitlines() if line.startswith("| `")]
    return {name for cell in first_cells for name in re.findall(r"`([\w-]+)`", cell)}
