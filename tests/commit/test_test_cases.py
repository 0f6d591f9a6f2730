"""Projects test their views in a TestCase, whose transaction is open around everything and never commits."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory, TestCase, TransactionTestCase, override_settings

from distlock_web import ConfigurationError, distributed_lockable, lock

MEMORY = override_settings(DISTLOCK={"default": {"BACKEND": "memory"}})


@distributed_lockable(key="order", until="commit")
def view(request: HttpRequest, fail: bool = False) -> HttpResponse:
    Group.objects.create(name="written")
    transaction.on_commit(lambda: Group.objects.create(name="after"))
    if fail:
        raise ZeroDivisionError
    return HttpResponse("done")


class Both:
    """The same in each of Django's kinds of test case. No warning is given in any: here they are errors."""

    def test_it_answers_and_writes(self: Any) -> None:
        with self.captureOnCommitCallbacks(execute=True) if isinstance(self, TestCase) else nullcontext():
            assert view(RequestFactory().get("/")).content == b"done"
        assert {group.name for group in Group.objects.all()} == {"written", "after"}

    def test_it_rolls_back(self: Any) -> None:
        with pytest.raises(ZeroDivisionError):
            view(RequestFactory().get("/"), fail=True)
        assert not Group.objects.exists()

    def test_a_plain_lock_says_nothing(self: Any) -> None:
        with lock("order"):
            Group.objects.create(name="written")


@MEMORY
class InATestCase(Both, TestCase):
    def test_a_transaction_of_the_tests_own_is_as_real_as_any(self) -> None:
        with pytest.raises(ConfigurationError, match="one is open already"), transaction.atomic():
            view(RequestFactory().get("/"))


@MEMORY
class InATransactionTestCase(Both, TransactionTestCase):
    pass
