"""``distlock doctor`` at servers that are set up wrongly on purpose: each finding comes, and goes when it is mended."""

from __future__ import annotations

import gc
import json
import re
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout, suppress
from io import StringIO
from types import ModuleType
from typing import Any

import pytest
import redis
from django.core.management import CommandError, call_command
from django.db import connections
from django.http import HttpRequest, HttpResponse
from django.urls import path
from flask import Flask

from distlock_web import configure, distributed_lockable, lock
from distlock_web.backends.redis.diagnose import _findings
from distlock_web.cli.main import execute
from distlock_web.core import worker
from distlock_web.core.findings import Finding
from distlock_web.core.registry import registry
from distlock_web.django.diagnosis import shared_caches
from distlock_web.flask import DistLock
from distlock_web.ops import doctor
from distlock_web.testing.servers import RedisServer, free_port
from tests.support.source import FILES, PROJECT

MakeRedis = Callable[..., RedisServer]


def found(settings: dict[str, Any]) -> dict[str, Finding]:
    """What is wrong with a store of these settings, by code."""
    store = configure({"default": settings}).store("default")
    return {finding.code: finding for finding in doctor.examine_store(store)}


def at(url: str, **options: Any) -> dict[str, Finding]:
    return found({"LOCATION": url, "PREFIX": "shop:", "OPTIONS": options})


# Redis ---------------------------------------------------------------------------------------------------------------


def test_redis_set_up_wrongly_and_mended(make_redis: MakeRedis) -> None:
    server = make_redis("--maxmemory", "100mb", "--maxmemory-policy", "volatile-lru")
    with redis.Redis.from_url(server.url) as admin:
        wrong = at(server.url)
        assert {code: finding.severity for code, finding in wrong.items()} == {"DL101": "error", "DL102": "warning"}
        assert "maxmemory-policy is volatile-lru, maxmemory is 100 MiB" in wrong["DL101"].problem
        admin.config_set("maxmemory", 0)
        assert at(server.url)["DL101"].severity == "warning"
        admin.config_set("maxmemory-policy", "noeviction")
        admin.config_set("appendonly", "yes")
        assert {code: finding.severity for code, finding in at(server.url).items()} == {"DL103": "info"}
        admin.config_set("appendfsync", "no")
        assert at(server.url)["DL103"].severity == "warning"
        admin.config_set("appendfsync", "always")
        assert at(server.url) == {}
        admin.config_set("appendonly", "no")  # while it writes its first file it does not let itself be stopped


def test_a_user_who_may_not_ask(make_redis: MakeRedis) -> None:
    server = make_redis()
    url = server.url.replace("//", "//locks:secret@")
    with redis.Redis.from_url(server.url) as admin:
        admin.execute_command("ACL", "SETUSER", "locks", "on", ">secret", "~*", "&*", "+@all", "-info")
        assert at(url).keys() == {"DL107"}
        admin.execute_command("ACL", "SETUSER", "locks", "+info", "-config")
        assert at(url).keys() == {"DL102"}


def test_out_of_reach_and_refused(make_redis: MakeRedis) -> None:
    assert at(f"redis://127.0.0.1:{free_port()}").keys() == {"DL001"}
    assert at(make_redis("--requirepass", "secret").url).keys() == {"DL002"}


# The settings --------------------------------------------------------------------------------------------------------


def test_memory_and_a_wrong_option() -> None:
    assert found({"BACKEND": "memory"}).keys() == {"DL003"}
    assert found({"BACKEND": "memory", "OPTIONS": {"size": 3}}).keys() == {"DL002", "DL003"}


def test_names_that_begin_as_in_every_other_project(redis_url: str) -> None:
    finding = found({"LOCATION": redis_url})["DL008"]
    assert (finding.severity, "answers of once" in finding.harm) == ("info", True)
    assert "DL008" not in found({"LOCATION": redis_url, "PREFIX": "shop:"})


def test_the_trial_lock_excludes_no_doctor_and_stays_with_nobody(redis_store: str) -> None:
    with lock(doctor.TRIAL_KEY, expire=30):
        assert "DL001" not in {each.code for each in doctor.examine_store(registry().store("default"))}
    assert not lock(doctor.TRIAL_KEY).locked()


@pytest.mark.parametrize("has_threads", [0, 1])
def test_threads_that_stand_still_are_said_once(
    has_threads: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, redis_store: str
) -> None:
    inside = ModuleType("uwsgi")
    inside.__dict__.update(has_threads=has_threads)
    gc.collect()  # the stores of earlier tests are closed in threads, which would be told
    monkeypatch.setitem(sys.modules, "uwsgi", inside)
    monkeypatch.setattr(worker, "_warned", False)
    with lock("plain"):
        assert "uWSGI" not in caplog.text
    for name in ("renewed", "renewed as well"):
        worker.Worker(name, lambda: 0.0, lambda: False).start()
    assert caplog.text.count("Set enable-threads = true") == 1 - has_threads


# The frameworks ------------------------------------------------------------------------------------------------------


def manage() -> set[tuple[str, str]]:
    """Codes and places of what ``manage.py distlock doctor`` finds."""
    out = StringIO()
    with suppress(SystemExit):  # 1, if there is an error among them
        call_command("distlock", "doctor", "--json", stdout=out)
    return {(each["code"], each["where"]) for each in json.loads(out.getvalue())}


@distributed_lockable(key="x")
def view(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


def test_django(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("tests_doctor_urls")
    module.urlpatterns = [path("x/", view)]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    settings.ROOT_URLCONF = module.__name__
    assert manage() == {("DL003", "store default")}
    monkeypatch.setitem(connections["default"].settings_dict, "ATOMIC_REQUESTS", True)
    assert ("W004", "project") in manage()
    settings.SILENCED_SYSTEM_CHECKS = ["distlock_web.W004"]
    assert ("W004", "project") not in manage()
    ours = "distlock_web.django.middleware.RequestIDMiddleware"
    settings.MIDDLEWARE = [each for each in settings.MIDDLEWARE if each != ours]
    assert ("W002", "project") in manage()


def test_a_urlconf_that_cannot_be_imported_does_not_hide_the_rest(settings: Any) -> None:
    settings.ROOT_URLCONF = "no.such.urlconf"
    assert manage() == {("DL003", "store default"), ("DL007", "project")}


@pytest.mark.parametrize(
    ("cache", "shared"),
    [
        ({"LOCATION": "redis://localhost:6379"}, True),
        ({"LOCATION": ["redis://127.0.0.1:6379/0", "redis://10.0.0.2:6379/0"]}, True),
        ({"LOCATION": "redis://127.0.0.1:6379", "OPTIONS": {"db": "1"}}, False),
        ({"LOCATION": "redis://127.0.0.1:6379/1"}, False),
        ({"LOCATION": "redis://127.0.0.1:6380"}, False),
    ],
)
def test_a_cache_in_the_same_database(settings: Any, cache: dict[str, Any], shared: bool) -> None:
    settings.DISTLOCK = {"default": {"LOCATION": "redis://127.0.0.1:6379/0"}}
    settings.CACHES = {"default": {"BACKEND": "django_redis.cache.RedisCache", **cache}}
    assert [each.code for each in shared_caches(registry())] == ["DL006"] * shared


def test_the_pool_of_a_cache_is_in_its_database(settings: Any) -> None:
    backend = "django.core.cache.backends.redis.RedisCache"
    settings.CACHES = {
        "default": {"BACKEND": backend, "LOCATION": "redis://127.0.0.1:6379/3"},
        "other": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
        "locks": {"BACKEND": backend, "LOCATION": "redis://127.0.0.1:6379/4"},
    }
    settings.DISTLOCK = {"default": {"CACHE": "default"}}
    [finding] = shared_caches(registry())
    assert (finding.code, finding.where) == ("DL006", "store default")
    assert "caches['default'].clear()" in finding.harm
    assert '"CACHE": "locks"' in finding.remedy
    settings.DISTLOCK = {"default": {"CACHE": "locks"}}  # as it says
    assert list(shared_caches(registry())) == []
    settings.CACHES = {**settings.CACHES, "locks": settings.CACHES["default"]}
    assert ["caches['default']" in finding.harm for finding in shared_caches(registry())] == [True]


def test_flask(redis_url: str) -> None:
    configure({"default": {"LOCATION": "redis://127.0.0.1:1/0"}})  # not the app's: nobody asks it
    app = Flask("shop")
    app.config["DISTLOCK"] = {"default": {"LOCATION": redis_url, "PREFIX": "shop:"}}
    DistLock(app)

    result = app.test_cli_runner().invoke(args=["distlock", "doctor", "--json"])
    assert {each["code"] for each in json.loads(result.stdout)} == {"DL102"}
    app.extensions["distlock"].registry.close()


# What it says --------------------------------------------------------------------------------------------------------


def run(*args: str) -> tuple[int, str]:
    out = StringIO()
    with redirect_stdout(out), redirect_stderr(StringIO()):
        code = execute(["doctor", *args], "distlock")
    return code, out.getvalue()


def test_report_and_exit_code(memory_store: None) -> None:
    code, out = run()
    assert code == 0
    assert out.startswith("DL003 warning  store default\n  what The locks are kept in memory.\n  why  They exclude")
    assert out.endswith("Found: 1 warning. The page doctor of the documentation explains each code.\n")
    assert run("--fail-level", "warning")[0] == 1
    [finding] = json.loads(run("--json")[1])
    assert finding.keys() == {"code", "severity", "problem", "harm", "remedy", "where"}


def test_an_error_is_exit_code_1() -> None:
    configure({"default": {"LOCATION": f"redis://127.0.0.1:{free_port()}"}})
    assert run()[0] == 1
    configure({"default": {"BACKEND": "memory"}})
    with pytest.raises(CommandError):
        call_command("distlock", "doctor", "--store", "other")


def test_every_code_is_documented_and_every_documented_code_is_used() -> None:
    used = {
        code for file in FILES for code in re.findall(r'"(?:distlock_web\.)?(DL\d{3}|[EW]\d{3})"', file.read_text())
    }
    page = (PROJECT / "docs" / "doctor.md").read_text()
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.M)) == used


@pytest.mark.parametrize(
    ("replicas", "min_replicas", "severity"),
    [(0, 0, None), (2, 0, "warning"), (2, 1, "info"), (2, 2, None), (1, 2, None)],
)
def test_as_many_replicas_as_may_become_the_master(replicas: int, min_replicas: int, severity: str | None) -> None:
    """It recommended half of them, and then was silent: the other half may become the master, too."""
    info = {"redis_version": "7.0.0", "aof_enabled": "1", "connected_slaves": str(replicas)}
    told = list(_findings(info, "always", min_replicas))
    assert [(finding.code, finding.severity) for finding in told] == [("DL104", severity)] * (severity is not None)
    assert all(f'"min_replicas": {replicas}' in finding.remedy for finding in told)
