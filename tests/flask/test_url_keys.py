"""A key of a URL's text: what is not of its form is a 404, as with a URL converter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from flask import Flask
from flask.views import MethodView

from distlock_web import KeyUnavailable, configure, current_lease, distributed_lockable
from distlock_web.flask import DistLock


def held() -> str:
    lease = current_lease()
    assert lease is not None
    return lease.name.removeprefix("disLock:")


by_number = distributed_lockable(key="wallet:{pk:int}")


@by_number
def function(pk: str) -> str:
    return held()


@by_number
async def coroutine(pk: str) -> str:
    return held()


class Method(MethodView):
    @by_number
    def get(self, pk: str) -> str:
        return held()


@distributed_lockable(key="wallet:{request.args[pk]:int}")
def argument() -> str:
    return held()


@pytest.fixture(params=["with the extension", "without"])
def site(request: pytest.FixtureRequest) -> Flask:
    configure({"default": {"BACKEND": "memory"}})
    app = Flask("wallets")
    app.add_url_rule("/function/<pk>", view_func=function)
    app.add_url_rule("/coroutine/<pk>", view_func=coroutine)
    app.add_url_rule("/method/<pk>", view_func=Method.as_view("method"))
    app.add_url_rule("/as_view/<pk>", view_func=by_number(as_view()))
    app.add_url_rule("/argument", view_func=argument)
    if request.param == "with the extension":
        DistLock(app)
    return app


def as_view() -> Callable[..., Any]:
    class Plain(MethodView):
        def get(self, pk: str) -> str:
            return held()

    def view(pk: str) -> Any:
        return Plain.as_view("plain")(pk=pk)

    return view


@pytest.mark.parametrize("address", ["/function/", "/coroutine/", "/method/", "/as_view/", "/argument?pk="])
def test_a_number_is_a_number_and_all_else_leads_nowhere(site: Flask, address: str) -> None:
    client = site.test_client()
    for spelled in ("1", "01", "%2B1", "%201", "\u0661"):
        answer = client.get(address + spelled)
        assert (answer.status_code, answer.text) == (200, "wallet:1"), spelled
    answer = client.get(address + "one")
    assert answer.status_code == 404
    assert "wallet" not in answer.text, "nothing of the key is told"


def test_outside_of_a_request_it_is_an_error_that_names_the_field(site: Flask) -> None:
    with site.app_context(), pytest.raises(KeyUnavailable, match=r"function: the field \{pk:int\} .* be made of 'one'"):
        function("one")
