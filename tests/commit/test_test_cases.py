"""Projects test their views in a TestCase, whose transaction is open around everything and never commits."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import connection, transaction
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory, TestCase, TransactionTestCase, override_settings
from rest_framework.decorators import action
from rest_framework.exceptions import ValidationError
from rest_framework.response import Response
from rest_framework.routers import SimpleRouter
from rest_framework.viewsets import ViewSet

from distlock_web import ConfigurationError, distributed_lockable, lock
from distlock_web.django.views import UntilCommitMixin
from distlock_web.testing.plugin import hold_lock

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
@override_settings(
    ROOT_URLCONF=__name__,
    MIDDLEWARE=[],
    REST_FRAMEWORK={"EXCEPTION_HANDLER": "distlock_web.django.rest.exception_handler"},
)
class ARestView(TestCase):
    """REST framework rolls back what ATOMIC_REQUESTS has opened: here there is only the test's own transaction."""

    def setUp(self) -> None:
        settings = connection.settings_dict
        self.addCleanup(settings.__setitem__, "ATOMIC_REQUESTS", settings["ATOMIC_REQUESTS"])
        settings["ATOMIC_REQUESTS"] = True
        Group.objects.create(name="before")

    def names(self) -> set[str]:
        return {group.name for group in Group.objects.all()}

    def test_a_busy_lock_leaves_the_test_its_database(self) -> None:
        with hold_lock("order:7"):
            assert self.client.post("/orders/7/rename/").status_code == 409
        assert self.names() == {"before"}

    def test_a_refused_request_leaves_nothing_behind(self) -> None:
        assert self.client.post("/orders/7/rename/", {"fail": "1"}).status_code == 400
        assert self.names() == {"before"}

    def test_a_request_that_succeeds_has_written(self) -> None:
        with self.captureOnCommitCallbacks(execute=True):
            assert self.client.post("/orders/7/rename/").status_code == 200
        assert self.names() == {"before", "written", "after"}


class Orders(UntilCommitMixin, ViewSet):
    authentication_classes = ()

    @action(detail=True, methods=["POST"])
    @distributed_lockable(key="order:{pk}", until="commit")
    def rename(self, request: Any, pk: str) -> Response:
        Group.objects.create(name="written")
        transaction.on_commit(lambda: Group.objects.create(name="after"))
        if "fail" in request.data:
            raise ValidationError("no")
        return Response()


router = SimpleRouter()
router.register("orders", Orders, basename="order")
urlpatterns = router.urls


@MEMORY
class InATransactionTestCase(Both, TransactionTestCase):
    pass
