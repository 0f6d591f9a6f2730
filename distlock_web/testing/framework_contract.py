"""The contract that every web framework's integration passes: the cases, over an app of four endpoints.

The app is the author's, its locks are those of the process, and what its endpoints do is told by :class:`Work`::

    class TestMine(FrameworkContract):
        @pytest.fixture
        def site(self, work):
            app = MyFramework()

            @app.post("/pay/<order_id>")
            @once(key="pay:{request.headers[Idempotency-Key]}", keep="1h", expire=60)
            def pay(order_id):
                return my_response(*work.answer())

            @app.post("/ship/<order_id>")
            @distributed_lockable(key="order:{order_id:int}", expire=60)
            def ship(order_id):
                return my_response(*work.answer())

            @app.get("/export")
            @distributed_lockable(key="export", expire=60)
            def export():
                return my_stream(work.chunks())      # in async code work.achunks()

            @app.post("/help/<order_id>")
            def help(order_id):                      # no lock of its own
                return my_response(*work.help(order_id))   # in async code await work.ahelp(order_id)

            return WSGISite(app)                     # or ASGISite(app)
"""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import pytest

from ..core.request_id import current_origin, current_request_id, path_of
from ..locks.decorator import distributed_lockable
from ..locks.lease import current_lease
from .fakes import assert_lock_free, hold_lock, locks_in_memory, store_down
from .sites import Reply, Site

PATIENCE = 30.0
# What to look at when a case fails: the words of docs/integrations.md.
REFUSED = "LockBusy and the other REFUSALS have to become what `refusal` makes of them, wherever they are raised."
OUTERMOST = "RequestMiddleware, or a WebRequestBounds, has to be around the whole app: around its 404 and its 500, too."
STREAMED = "`streaming` or `is_stream` has to name this response, and `send_under_lock` to put a locked body into it."
CLOSED = "Somebody has to close the body: ASGI `asgi.locked_body`, WSGI the response's `close`."
VIEW = "`called_view` has to know this call for that of a view: ASGI `views_of`, or scope['endpoint'] before the call."
RECORDED = "`answer` or, under ASGI, AnswerMiddleware next to the views has to see the answer."
ASKED = "`who_asks`, under ASGI `user_of`, has to tell these two requests apart."
JSON = {"Accept": "application/json"}
KEY = {"Idempotency-Key": "k1", "Content-Type": "application/json"}


class EndpointAnswer(NamedTuple):
    """An answer: ``status, headers, body``."""

    status: int = 200
    headers: Mapping[str, str] = {}
    body: bytes = b"done"


class Work:
    """What the endpoints do, and what was seen while they did it."""

    def __init__(self) -> None:
        self.answers: Callable[[], EndpointAnswer] = EndpointAnswer
        self.runs = 0
        self.chunk: Callable[[int], bytes] = lambda number: b"%d\n" % number
        self.told: list[str] = []

    def answer(self) -> EndpointAnswer:
        """What ``/pay`` and ``/ship`` answer."""
        self.runs += 1
        return self.answers()

    def chunks(self) -> Iterator[bytes]:
        """The body of ``/export``."""
        try:
            for number in range(3):
                yield self._step(number)
        finally:
            self._note("end")

    async def achunks(self) -> AsyncIterator[bytes]:
        try:
            for number in range(3):
                yield self._step(number)
        finally:
            self._note("end")

    def help(self, order_id: str) -> EndpointAnswer:
        """What ``/help`` answers: the value of a function with a lock."""
        return EndpointAnswer(body=_help(order_id).encode())

    async def ahelp(self, order_id: str) -> EndpointAnswer:
        return EndpointAnswer(body=(await _ahelp(order_id)).encode())

    def _step(self, number: int) -> bytes:
        self._note("chunk")
        return self.chunk(number)

    def _note(self, what: str) -> None:
        lease = current_lease()
        self.told.append(f"{what} {'inside' if lease is not None and not lease.lost else 'outside'}")


@distributed_lockable(key="order:{order_id:int}", expire=60)
def _help(order_id: str) -> str:
    return "helped"


@distributed_lockable(key="order:{order_id:int}", expire=60)
async def _ahelp(order_id: str) -> str:
    return "helped"


class FrameworkContract:
    """All cases. Subclass it, name the subclass ``Test…`` and give the fixture ``site``."""

    @pytest.fixture(autouse=True)
    def _stores(self) -> Iterator[None]:
        with locks_in_memory():
            yield

    @pytest.fixture
    def work(self) -> Work:
        return Work()

    # A lock ----------------------------------------------------------------------------------------------------------

    def test_a_view_runs_inside_of_its_lock_which_is_free_after_it(self, site: Site, work: Work) -> None:
        names: list[str] = []

        def look() -> EndpointAnswer:
            lease = current_lease()
            names.append(lease.name if lease is not None else "none")
            return EndpointAnswer()

        work.answers = look
        replies = [site.send("POST", "/ship/0700") for _ in range(2)]
        assert [reply.status for reply in replies] == [200, 200], f"The app does not work yet: {replies[0]}"
        assert names == ["disLock:order:700"] * 2
        assert_lock_free("order:700")

    def test_of_two_at_once_one_is_refused(self, site: Site, work: Work) -> None:
        entered, leave = threading.Event(), threading.Event()

        def wait() -> EndpointAnswer:
            entered.set()
            assert leave.wait(PATIENCE)
            return EndpointAnswer()

        work.answers = wait
        with ThreadPoolExecutor(1) as threads:
            first = threads.submit(site.send, "POST", "/ship/0700")
            assert entered.wait(PATIENCE)
            second = site.send("POST", "/ship/700", JSON)
            leave.set()
            assert (first.result().status, second.status, work.runs) == (200, 409, 1), REFUSED
        assert int(second.headers["retry-after"]) >= 1

    def test_another_order_is_not_refused(self, site: Site, work: Work) -> None:
        with hold_lock("order:7"):
            assert site.send("POST", "/ship/8").status == 200

    def test_a_number_that_is_none_leads_nowhere(self, site: Site, work: Work) -> None:
        reply = site.send("POST", "/ship/seven")
        assert (reply.status, work.runs) == (404, 0), f"{VIEW} And `no_such_page` has to be its 404."

    def test_a_view_that_raises_leaves_no_lock(self, site: Site, work: Work) -> None:
        work.answers = _raise
        assert site.send("POST", "/ship/7").status == 500, "What a view raises is the framework's, or the server's."
        assert_lock_free("order:7")

    def test_a_function_that_a_view_calls_is_locked_and_no_view(self, site: Site) -> None:
        assert site.send("POST", "/help/7").body == b"helped"
        with hold_lock("order:7"):
            assert site.send("POST", "/help/7").status == 409, REFUSED
        # No 404: nobody says that it was in the URL.
        assert site.send("POST", "/help/seven").status == 400, "`called_view` takes this call of a helper for a view's."

    # What a refused client is told -----------------------------------------------------------------------------------

    def test_a_program_gets_problem_details(self, site: Site) -> None:
        with hold_lock("order:7"):
            reply = site.send("POST", "/ship/7", {"Accept": "application/problem+json", "Req-Id": "click-1"})
        assert reply.status == 409, REFUSED
        said = json.loads(reply.body)
        assert (said["code"], said["status"], said["request_id"]) == ("lock_busy", 409, "click-1")
        assert reply.headers["content-type"].startswith("application/problem+json")
        assert "order" not in reply.body.decode()  # a client does not see a key

    def test_a_browser_gets_a_page(self, site: Site) -> None:
        with hold_lock("order:7"):
            reply = site.send("POST", "/ship/7", {"Accept": "text/html,*/*;q=0.8"})
        assert (reply.status, reply.headers["content-type"].partition(";")[0]) == (409, "text/html"), REFUSED
        assert "Accept" in reply.headers["vary"]

    def test_htmx_does_not_swap_it_in(self, site: Site) -> None:
        with hold_lock("order:7"):
            reply = site.send("POST", "/ship/7", {"HX-Request": "true"})
        assert reply.headers.get("hx-reswap") == "none", f"{REFUSED} All of its headers count."

    def test_a_store_that_does_not_answer_is_a_503(self, site: Site, work: Work) -> None:
        with store_down():
            reply = site.send("POST", "/ship/7", JSON)
        assert (reply.status, work.runs) == (503, 0), REFUSED
        assert json.loads(reply.body)["code"] == "lock_unavailable"
        assert site.send("POST", "/ship/7").status == 200

    # The request -----------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("path", ["/ship/7", "/ship/seven", "/nowhere"])
    def test_its_id_goes_in_and_comes_back_with_every_answer(self, site: Site, path: str) -> None:
        assert site.send("POST", path, {"Req-Id": "click-1"}).headers.get("req-id") == "click-1", OUTERMOST

    def test_an_answer_that_is_an_error_has_it(self, site: Site, work: Work) -> None:
        work.answers = _raise
        assert site.send("POST", "/ship/7", {"Req-Id": "click-1"}).headers.get("req-id") == "click-1", OUTERMOST

    @pytest.mark.parametrize("given", [None, "no id", "x" * 500])
    def test_without_a_fit_one_each_gets_its_own(self, site: Site, given: str | None) -> None:
        headers = {} if given is None else {"Req-Id": given}
        made = {site.send("POST", "/ship/7", headers).headers.get("req-id") for _ in range(2)}
        assert len(made) == 2, OUTERMOST
        assert given not in made

    def test_people_see_its_id_and_its_route_and_nothing_of_the_url(self, site: Site, work: Work) -> None:
        seen: list[tuple[str, str]] = []

        def look() -> EndpointAnswer:
            origin = current_origin()
            seen.append((current_request_id(), path_of(origin) if origin is not None else ""))
            return EndpointAnswer()

        work.answers = look
        site.send("POST", "/ship/7777", {"Req-Id": "click-1"})
        [(request_id, path)] = seen
        assert request_id == "click-1", OUTERMOST
        what = "Method and route, no URL: `route` of RequestMiddleware, `path` of WebRequestBounds, or `note_route`."
        assert path.startswith("POST "), what
        assert "ship" in path, what
        assert "7777" not in path, what

    # A stream --------------------------------------------------------------------------------------------------------

    def test_a_body_runs_inside_of_its_lock_to_its_end(self, site: Site, work: Work) -> None:
        assert site.send("GET", "/export").body == b"0\n1\n2\n"
        assert work.told == ["chunk inside"] * 3 + ["end inside"], STREAMED
        assert_lock_free("export")

    def test_until_then_others_are_refused(self, site: Site, work: Work) -> None:
        sending, send_on = threading.Event(), threading.Event()

        def chunk(number: int) -> bytes:
            sending.set()
            assert send_on.wait(PATIENCE)
            return b"x"

        work.chunk = chunk
        with ThreadPoolExecutor(1) as threads:
            first = threads.submit(site.send, "GET", "/export")
            assert sending.wait(PATIENCE)
            second = site.send("GET", "/export")
            send_on.set()
            assert (first.result().body, second.status) == (b"xxx", 409), STREAMED

    def test_a_body_that_fails_leaves_no_lock(self, site: Site, work: Work) -> None:
        work.chunk = lambda number: b"x" if number == 0 else _raise().body
        site.send("GET", "/export")
        assert_lock_free("export")
        assert work.told[-1] == "end inside", STREAMED

    def test_a_client_that_goes_leaves_no_lock(self, site: Site, work: Work) -> None:
        site.hang_up("/export")
        assert work.told[-1] == "end inside", f"{STREAMED} {CLOSED}"
        assert_lock_free("export")

    # once ------------------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize(
        "answer",
        [
            EndpointAnswer(201, {"Content-Type": "text/plain; charset=utf-8", "Location": "/orders/7"}, b"paid"),
            EndpointAnswer(200, {"Content-Type": "application/pdf"}, b"%PDF\xff\x00"),
            EndpointAnswer(302, {"Location": "/thanks/"}, b""),
        ],
        ids=["text", "bytes", "redirect"],
    )
    def test_the_second_gets_what_the_first_got(self, site: Site, work: Work, answer: EndpointAnswer) -> None:
        work.answers = lambda: answer
        first, second = self._pay(site), self._pay(site)
        assert work.runs == 1, f"{VIEW} {RECORDED}"
        assert (first.status, second.status) == (answer.status,) * 2, f"{RECORDED} `respond` has to make it again."
        assert first.body == second.body == answer.body, "`respond` has to make it again, byte for byte."
        for name in answer.headers:
            assert first.headers[name.lower()] == second.headers[name.lower()]
        assert "idempotency-replayed" not in first.headers
        assert second.headers["idempotency-replayed"] == "true"

    def test_a_cookie_and_a_header_that_nobody_has_allowed_are_the_first_ones_alone(
        self, site: Site, work: Work
    ) -> None:
        work.answers = lambda: EndpointAnswer(200, {"Set-Cookie": "session=ann", "X-Debug": "secret"})
        first, second = self._pay(site), self._pay(site)
        assert first.headers["x-debug"] == "secret"
        assert "session=ann" in first.headers["set-cookie"]
        assert "x-debug" not in second.headers
        assert "session=ann" not in second.headers.get("set-cookie", "")

    @pytest.mark.parametrize(
        ("path", "other"),
        [
            ("/pay/7", {"Authorization": "Bearer other"}),
            ("/pay/7", {"X-Api-Key": "other"}),
            ("/pay/7", {"Host": "other.example"}),
            ("/pay/7?pay=other", {}),
            ("/pay/8", {}),
        ],
    )
    def test_nobody_else_gets_it(self, site: Site, work: Work, path: str, other: dict[str, str]) -> None:
        self._pay(site)
        assert (site.send("POST", path, {**KEY, **other}, b"{}").status, work.runs) == (422, 1), ASKED

    def test_nor_for_another_body(self, site: Site, work: Work) -> None:
        self._pay(site)
        assert (self._pay(site, b'{"order": 8}').status, work.runs) == (422, 1), ASKED

    def test_without_its_header_it_is_a_400_that_names_it(self, site: Site, work: Work) -> None:
        reply = site.send("POST", "/pay/7", JSON, b"{}")
        assert (reply.status, work.runs) == (400, 0), f"{REFUSED} `variables` has to have the request: headers['X']."
        assert "Idempotency-Key" in reply.body.decode()

    @pytest.mark.parametrize("status", [402, 500, None])
    def test_a_failure_may_be_tried_again(self, site: Site, work: Work, status: int | None) -> None:
        work.answers = _raise if status is None else lambda: EndpointAnswer(status)
        assert self._pay(site).status == (status or 500)
        work.answers = EndpointAnswer
        assert (self._pay(site).status, work.runs) == (200, 2), RECORDED

    def test_of_an_answer_that_is_too_large_it_is_kept_that_it_was_done(self, site: Site, work: Work) -> None:
        work.answers = lambda: EndpointAnswer(body=b"x" * 1_000_000)
        first, second = self._pay(site), self._pay(site)
        assert (len(first.body), second.status, work.runs) == (1_000_000, 200, 1), f"{VIEW} {RECORDED}"
        assert second.body.startswith(b"This has been done.")

    @staticmethod
    def _pay(site: Site, body: bytes = b"{}") -> Reply:
        return site.send("POST", "/pay/7", KEY, body)


def _raise() -> EndpointAnswer:
    raise ValueError("the view's own")
