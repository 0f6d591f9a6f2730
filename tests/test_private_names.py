"""Private names of other libraries that we use: each is listed, with the public way that was tried, and is there still.

Those of redis-py are in ``backends/redis/test_driver.py``.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import distlock_web

PACKAGE = Path(distlock_web.__file__).parent

SESSION = "backends/zookeeper/session.py"
CONNECTION = "kazoo.protocol.connection:ConnectionHandler"
HANDLER = "kazoo.handlers.threading:SequentialThreadingHandler"
SESSION_TRANSACTION = "sqlalchemy.orm:SessionTransaction"
PYMYSQL = "pymysql.connections:Connection"

#: Whose it is, the name, the file that uses it, and why no public name does.
USED = [
    # Django. Of a request it has to be known whether its body can still be read, without reading it.
    ("django.http:HttpRequest", "_read_started", "django/asked.py", "request.body raises, and cannot be asked before"),
    ("django.http:HttpRequest", "_body", "django/asked.py", "request.body reads it"),
    ("django.http:HttpRequest", "_post", "django/asked.py", "request.POST parses it"),
    ("django.http:HttpRequest", "_files", "django/asked.py", "request.FILES parses it"),
    ("django.core.handlers.asgi:ASGIRequest", "_stream", "django/asked.py", "request.read() takes it from the view"),
    ("django.middleware.csp", "_csp_nonce", "django/kept_answers.py", "get_nonce() makes one if there is none"),
    ("csp.middleware:CSPMiddleware", "_csp_nonce", "django/kept_answers.py", "request.csp_nonce makes one"),
    ("django.http:HttpResponse", "_resource_closers", "django/streaming.py", "close() is called after the body's own"),
    ("django.http:StreamingHttpResponse", "_iterator", "django/streaming.py", "streaming_content is a map over it"),
    ("django.db.transaction", "_non_atomic_requests", "django/transactions.py", "non_atomic_requests() sets it only"),
    ("django.db.transaction:Atomic", "_from_testcase", "django/transactions.py", "TestCase tells nobody else"),
    ("django.core.cache.backends.redis:RedisCache", "_cache", "django/stores.py", "its methods are those of a cache"),
    ("django.db.models:QuerySet", "_for_write", "django/fencing.py", "using() names a database, and asks no router"),
    ("rest_framework.request:Request", "_request", "django/asked.py", "its attributes are those of what it wraps"),
    # Django Ninja.
    ("ninja:NinjaAPI", "_lookup_exception_handler", "django/ninja_errors.py", "on_exception() does not tell"),
    # kazoo has no time-outs for a connection, no container nodes, and keeps to itself what the server has granted.
    ("kazoo.protocol.paths", "_prefix_root", SESSION, "create() knows no containers"),
    ("kazoo.client:KazooClient", "_call", SESSION, "create() knows no containers"),
    ("kazoo.client:KazooClient", "_connection", SESSION, "no argument names a connection"),
    ("kazoo.client:KazooClient", "_conn_retry", SESSION, "connection_retry is an argument only"),
    (CONNECTION, "_socket", SESSION, "stop() ends the session"),
    (CONNECTION, "_connection_routine", SESSION, "connected tells nothing of one that tries"),
    (CONNECTION, "_connect", SESSION, "the granted time-out is in no state"),
    (CONNECTION, "_invoke", SESSION, "timeout is the session's"),
    (HANDLER, "_running", SESSION, "stop() does nothing before it"),
    # PyMySQL.
    (PYMYSQL, "_read_timeout", "backends/sql/dialects.py", "read_timeout is for the whole connection"),
    (PYMYSQL, "_create_ssl_ctx", "backends/sql/pymysql_connection.py", "ssl=context wants TLS"),
    # SQLAlchemy: whether a transaction that a session is in is its own to end.
    (SESSION_TRANSACTION, "_connections", "sqlalchemy/begun.py", "get_bind() has to be told for what"),
    # The import system: a compiled module has no frame that tells of it.
    ("importlib", "_bootstrap", "locks/leader.py", "its functions that run are in no public module"),
    ("importlib._bootstrap", "_load_unlocked", "locks/leader.py", "no public name says which import a thread is in"),
    # asgiref: whether a loop is async_to_sync's.
    ("asgiref.sync:AsyncToSync", "loop_thread_executors", "core/runtime.py", "a loop does not tell who has made it"),
]  # fmt: skip

#: Private by their form, and documented all the same; or of the standard library.
DOCUMENTED = {
    "_meta", "_base_manager", "_default_manager",  # Django
    "_get_current_object",  # werkzeug, Celery
    "_asdict", "_replace", "_fields",  # named tuples
    "_getframe", "_get_running_loop", "_GeneratorContextManager", "_AsyncGeneratorContextManager",
    "_initializing",  # importlib's own flag of a module that is being imported; test_leader has one
}  # fmt: skip
#: Redis-py's, which have a test of their own.
ELSEWHERE = {"_sock", "_writer"}
#: Its race detector stands in for drivers: for tests, and not for sites.
FOLDERS_LEFT_OUT = ("testing",)


@pytest.mark.parametrize(("owner", "name", "file", "why"), USED, ids=lambda value: str(value)[:50])
def test_it_is_there_still(owner: str, name: str, file: str, why: str) -> None:
    """Canaries: a new version that has renamed one fails here first, and by its name."""
    module, _, kind = owner.partition(":")
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError:
        pytest.skip(f"there is no {module} in this version, or it is not installed")
    of = getattr(found, kind) if kind else found
    sources = map(_source, of.__mro__ if inspect.isclass(of) else [of])
    assert any(re.search(rf"\b{name}\b", source) for source in sources), f"{owner} has no {name} any more: {why}"


def _source(thing: object) -> str:
    try:
        return inspect.getsource(thing)  # type: ignore[arg-type]
    except (OSError, TypeError):  # written in C, as typing.Generic is since Python 3.12
        return ""


@pytest.mark.parametrize(("owner", "name", "file", "why"), USED, ids=lambda value: str(value)[:50])
def test_it_is_used_still(owner: str, name: str, file: str, why: str) -> None:
    assert name in (PACKAGE / file).read_text()


def test_no_other_private_name_of_anybody_is_used() -> None:
    ours, used = set[str](), list[tuple[str, str]]()
    for path in sorted(PACKAGE.rglob("*.py")):
        tree, file = ast.parse(path.read_text()), path.relative_to(PACKAGE)
        ours |= set(_made_in(tree))
        if file.parts[0] not in FOLDERS_LEFT_OUT:
            used += [(name, str(file)) for name in _used_in(tree)]
    known = {name for _, name, _, _ in USED} | DOCUMENTED | ELSEWHERE
    assert {(name, file) for name, file in used if name not in ours | known} == set()


def _made_in(tree: ast.AST) -> Iterator[str]:
    """Functions, classes, variables, and attributes of ``self``."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
            yield node.attr


def _used_in(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Attribute):
            names = [node.attr]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [each.name for each in node.names]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id.endswith("attr"):
            names = [str(each.value) for each in node.args[1:2] if isinstance(each, ast.Constant)]
        yield from (name for name in names if name.startswith("_") and not name.startswith("__"))


def test_whoever_overrides_a_private_method_of_another_library_class_lists_it() -> None:
    """It may have the name of one of ours."""
    known = {(name, file) for _, name, file, _ in USED}
    found = {
        (name, str(path.relative_to(PACKAGE)))
        for path in PACKAGE.rglob("*.py")
        for name in _overridden(ast.parse(path.read_text()))
    }
    assert found
    assert found - known == set()


def _overridden(tree: ast.Module) -> Iterator[str]:
    modules = {
        name.asname or name.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module
        for name in node.names
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.ClassDef):
            continue
        bases = [base.id for base in node.bases if isinstance(base, ast.Name) and base.id in modules]
        kinds = [
            getattr(importlib.import_module(str(modules[base])), base) for base in bases if _is_a_drivers(modules[base])
        ]
        for method in node.body:
            if isinstance(method, ast.FunctionDef) and re.match("_[a-z]", method.name):
                yield from (method.name for kind in kinds if hasattr(kind, method.name))


def _is_a_drivers(module: str | None) -> bool:
    return str(module).partition(".")[0] in ("kazoo", "pymysql", "psycopg", "asgiref", "ninja")
