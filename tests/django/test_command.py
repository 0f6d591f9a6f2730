"""``manage.py distlock``, and locks in plain functions and management commands."""

from __future__ import annotations

import json
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.core.management.base import BaseCommand

from distlock_web import LeaseLost, LockBusy, distributed_lockable
from distlock_web.core.registry import registry
from distlock_web.web.held_locks import list_all


def run(*args: str) -> str:
    out = StringIO()
    call_command("distlock", *args, stdout=out, stderr=out)
    return out.getvalue()


@pytest.mark.usefixtures("store")
def test_list_is_a_table(elsewhere: Any) -> None:
    assert run("list") == "No lock is held.\n"
    lease = elsewhere("order:7")
    elsewhere("a-longer-name:8")
    headings, first, second = run("list").splitlines()
    assert headings.split()[:2] == ["LOCK", "STATE"]
    assert first.split()[0] == lease.name
    assert first.index("held") == second.index("held") == headings.index("STATE")
    assert str(lease.fence) in first
    assert len(run("list", "--search", "order").splitlines()) == 2


@pytest.mark.usefixtures("store")
def test_list_as_json(elsewhere: Any) -> None:
    assert json.loads(run("list", "--json")) == []
    lease = elsewhere("order:7")
    (row,) = json.loads(run("list", "--json"))
    assert (row["store"], row["name"], row["fence"], row["state"]) == ("default", lease.name, lease.fence, "held")
    assert 0 < row["remaining"] <= 10


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("name", ["order:7", "disLock:order:7"])
def test_release(elsewhere: Any, name: str) -> None:
    lease = elsewhere("order:7")
    assert run("release", name, "--yes") == f"Released disLock:order:7 (fence {lease.fence}).\n"
    assert list_all(registry()).rows == []
    with pytest.raises(LeaseLost):
        lease.extend()


@pytest.mark.usefixtures("memory")
def test_release_by_a_fence_that_is_over(elsewhere: Any) -> None:
    lease = elsewhere("order:7")
    with pytest.raises(CommandError, match="fence 1") as error:
        run("release", "order:7", "--fence", "1")
    assert error.value.returncode == 1
    lease.extend()


def test_exit_codes(settings: Any, elsewhere: Any) -> None:
    settings.DISTLOCK = {"default": {"BACKEND": "memory"}, "other": {"BACKEND": "memory"}}
    with pytest.raises(CommandError, match="The lock 'order:7' is not held") as error:
        run("release", "order:7")
    assert error.value.returncode == 1
    elsewhere("order:7")
    elsewhere("order:7", store="other")
    with pytest.raises(CommandError, match="--store") as error:
        run("release", "order:7")
    assert error.value.returncode == 64
    run("release", "order:7", "--store", "other", "--yes")
    assert [row.alias for row in list_all(registry()).rows] == ["default"]

    settings.DISTLOCK = {"default": {"LOCATION": "redis://127.0.0.1:1"}}
    for command in (("list",), ("list", "--json"), ("release", "order:7")):
        with pytest.raises(CommandError, match="The store 'default' failed: ") as error:
            run(*command)
        assert error.value.returncode == 69


class Report(BaseCommand):
    @distributed_lockable(key="report", expire=10)
    def handle(self, *args: Any, **options: Any) -> str:
        return "done"


@distributed_lockable(key="mail:{address}", on_busy="skip", expire=10)
def send(address: str) -> str:
    return "sent"


@pytest.mark.usefixtures("store")
def test_a_management_command_under_a_lock(elsewhere: Any) -> None:
    out = StringIO()
    call_command(Report(), stdout=out)
    assert out.getvalue() == "done\n"
    elsewhere("report")
    with pytest.raises(LockBusy):
        call_command(Report(), stdout=out)


@pytest.mark.usefixtures("store")
def test_a_plain_function_may_skip(elsewhere: Any) -> None:
    assert send("a@example.org") == "sent"
    elsewhere("mail:a@example.org")
    assert send("a@example.org") is None
