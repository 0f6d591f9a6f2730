"""Who has a lock that is busy: said to the log and to code, not to the client."""

from __future__ import annotations

import os
import pickle
import re
from collections.abc import Callable
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import path
from flask import Flask

from distlock_web import HolderInfo, Lease, LockBusy, distributed_lockable, lock, request_scope
from distlock_web.flask import DistLock

Elsewhere = Callable[..., Lease]


@distributed_lockable(key="order")
def pay(request: HttpRequest) -> HttpResponse:
    return HttpResponse("paid")


@distributed_lockable(key="order", wait=0.05)
def pay_later(request: HttpRequest) -> HttpResponse:
    return HttpResponse("paid")


urlpatterns = [path("pay/", pay), path("pay-later/", pay_later)]


@pytest.fixture(autouse=True)
def site(settings: Any, store_settings: dict[str, Any]) -> None:
    settings.ROOT_URLCONF = __name__
    settings.MIDDLEWARE = ["distlock_web.django.middleware.RequestIDMiddleware"]
    settings.DISTLOCK = {"default": store_settings}


@pytest.mark.parametrize("wait", [0, 0.05])
def test_the_error_says_who(elsewhere: Elsewhere, wait: float) -> None:
    with request_scope("job-17", "send_invoice"):
        hold_in_the_running_request("order")
    with pytest.raises(LockBusy) as caught:
        lock("order", wait=wait).acquire()
    holder = caught.value.holder
    assert holder is not None
    assert (holder.request_id, holder.path, holder.pid) == ("job-17", "send_invoice", os.getpid())
    assert str(caught.value).startswith("Somebody else holds the lock 'disLock:order': send_invoice on ")
    assert re.search(rf"\(pid {os.getpid()}\), request job-17, for 0\.\d s\.$", str(caught.value))
    assert caught.value.held_for is not None
    assert 0 <= caught.value.held_for < 5
    assert pickle.loads(pickle.dumps(caught.value)).holder == holder


def hold_in_the_running_request(key: str) -> None:
    lock(key).acquire().detach()


def test_the_way_in_twice_says_who_is_inside(elsewhere: Elsewhere) -> None:
    """Siblings inside of one block take turns: who is in there is the block itself."""
    import threading
    from contextvars import copy_context

    with request_scope("r-1"), lock("order"):
        context, seen = copy_context(), []

        def sibling() -> None:
            try:
                lock("order").acquire()
            except LockBusy as busy:
                seen.append(busy.holder)

        with lock("order"):
            thread = threading.Thread(target=context.run, args=(sibling,))
            thread.start()
            thread.join()
    assert [holder and holder.request_id for holder in seen] == ["r-1"]


@pytest.mark.parametrize("url", ["/pay/", "/pay-later/"])
def test_the_log_names_it_and_the_answer_does_not(url: str, caplog: pytest.LogCaptureFixture) -> None:
    with request_scope("job-17", "send_invoice"):
        hold_in_the_running_request("order")
    with caplog.at_level("INFO", "distlock_web"):
        response = Client().get(url, headers={"accept": "application/json"})
    assert response.status_code == 409
    assert "send_invoice" in caplog.text
    assert "job-17" in caplog.text
    said = response.content.decode() + str(response.headers)
    assert not [
        word for word in ("send_invoice", "job-17", HolderInfo.loads(HolderInfo.current()).host) if word in said
    ]


def test_in_flask_too(store_settings: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    app = Flask("shop")
    app.config["DISTLOCK"] = {"default": store_settings}
    DistLock(app)
    app.add_url_rule("/pay", view_func=distributed_lockable(key="order")(lambda: "paid"))
    with app.app_context(), request_scope("job-17", "send_invoice"):
        hold_in_the_running_request("order")
    with caplog.at_level("INFO", "distlock_web"):
        response = app.test_client().get("/pay")
    assert response.status_code == 409
    assert "send_invoice" in caplog.text
    assert "send_invoice" not in response.text


def test_a_holder_that_nobody_knows(memory: None, monkeypatch: pytest.MonkeyPatch, elsewhere: Elsewhere) -> None:
    monkeypatch.setattr(HolderInfo, "current", classmethod(lambda *args: "another program's words"))
    elsewhere("order")
    with pytest.raises(LockBusy, match=r"^Somebody else holds the lock 'disLock:order', for 0.0 s\.$") as caught:
        lock("order").acquire()
    assert caught.value.holder is None


def test_a_call_that_is_skipped_says_who(memory: None, caplog: pytest.LogCaptureFixture) -> None:
    function = distributed_lockable(key="order", on_busy="skip")(lambda: "paid")
    with request_scope("job-17", "send_invoice"):
        hold_in_the_running_request("order")
    with caplog.at_level("INFO", "distlock_web"):
        assert function() is None
    assert "skipped. Did not get a lock for key disLock:order." in caplog.text
    assert "send_invoice" in caplog.text
    assert "request job-17" in caplog.text
