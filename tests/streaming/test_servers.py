"""A streamed body keeps its lock until its last byte or until its client has gone, on real servers."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from distlock_web import lock
from tests.support.revoking import revoke
from tests.support.waiting import eventually
from tests.support.web_servers import Client, Server, is_free, the_lock

Serve = Callable[..., Server]
Seen = Callable[[], list[str]]

pytestmark = pytest.mark.timeout(180)

#: Server and view, where the body is produced as it is sent.
STREAMED = [
    ("gunicorn sync", "sync_sync"),
    ("gunicorn threads", "sync_sync"),
    ("uvicorn", "async_async"),
    ("uvicorn", "sync_async"),
    ("flask", "generator"),
    ("flask", "in_tuple"),
    ("flask", "response_in_tuple"),
    ("flask", "with_context"),
    ("flask", "from_coroutine"),
]
#: A file is sent by the server in its own way: no body of ours can tell anything.
FILES = [("gunicorn sync", "file"), ("gunicorn threads", "file"), ("flask", "file")]
#: Where view and body differ in their mode Django makes a list of the body first, and warns.
LISTED = [("uvicorn", "async_sync"), ("uvicorn", "sync_sync"), ("gunicorn threads", "sync_async")]
MANY = 1000  #: chunks of 64 KB: more than the buffers between the two can take


@pytest.mark.parametrize(("name", "view"), [*STREAMED, *FILES])
def test_a_client_that_goes_away_leaves_no_lock(serve: Serve, seen: Seen, name: str, view: str) -> None:
    client = Client(serve(name), f"/long/{view}/?chunks={MANY}")
    client.read(20 * 65536)
    assert the_lock() is not None
    assert lock("export").try_acquire() is None
    client.close()
    eventually(is_free, "the lock is free", 30)  # the lease would have lived for a minute
    if "file" not in view:
        assert seen() == ["begun r-1 2", "ended r-1 1"]  # the body's finally ran under the lock, for its request


@pytest.mark.parametrize(
    ("name", "view"), [*STREAMED, *(pytest.param(*file, marks=pytest.mark.timing) for file in FILES)]
)
def test_a_slow_reader_keeps_the_lock_until_the_last_byte(serve: Serve, seen: Seen, name: str, view: str) -> None:
    client = Client(serve(name), f"/short/{view}/?chunks={MANY}")
    client.read(65536)
    first = the_lock()
    assert first is not None
    until = time.monotonic() + 3  # three leases long
    while time.monotonic() < until:
        client.read(65536)
        now = the_lock()
        assert now is not None
        assert now.fence == first.fence
        time.sleep(0.1)
    assert client.read_all() > (MANY - 60) * 65536
    if "file" not in view:
        assert client.saw_the_end
        assert seen() == ["begun r-1 2", "complete r-1 1", "ended r-1 1"]
    eventually(is_free, "the lock is free", 30)


@pytest.mark.parametrize(("name", "view"), LISTED)
def test_where_django_makes_a_list_of_it_the_lock_is_kept_for_that(
    serve: Serve, seen: Seen, name: str, view: str
) -> None:
    client = Client(serve(name), f"/long/{view}/?chunks=20")
    assert client.read_all() > 20 * 65536
    eventually(is_free, "the lock is free", 30)
    assert seen() == ["begun r-1 2", "complete r-1 1", "ended r-1 1"]


@pytest.mark.parametrize(("name", "view"), [STREAMED[0], STREAMED[2]])
def test_compressed_on_its_way(serve: Serve, seen: Seen, name: str, view: str) -> None:
    """GZipMiddleware puts a generator of its own in between, which nobody closes but us."""
    server = serve(name)
    gzip = "Accept-Encoding: gzip"
    client = Client(server, f"/long/{view}/?chunks=50", gzip)
    client.read_all()
    assert b"gzip" in client.head
    assert client.saw_the_end
    eventually(is_free, "the lock is free", 30)
    assert seen() == ["begun r-1 2", "complete r-1 1", "ended r-1 1"]

    client = Client(server, f"/long/{view}/?chunks={MANY}", gzip, request_id="r-2")
    client.read(65536)
    assert the_lock() is not None
    client.close()
    eventually(is_free, "the lock is free", 30)
    assert seen()[3:] == ["begun r-2 2", "ended r-2 1"]


@pytest.mark.parametrize(("name", "view"), [STREAMED[0], *STREAMED[2:5]])
def test_a_lock_that_is_lost_breaks_the_transfer(
    start: Serve, redis_store: str, seen: Seen, name: str, view: str
) -> None:
    server = start(name)
    server.said()
    client = Client(server, f"/short/{view}/?chunks={MANY}")
    client.read(65536)
    lost = the_lock()
    assert lost is not None
    assert revoke(lost.name, lost.fence)
    with lock("export", expire=60):
        until = time.monotonic() + 4.5  # a renewal tells it: at a third of the 10 s that the body itself asks for
        while time.monotonic() < until:
            client.read(65536)
            time.sleep(0.1)
        assert client.read_all() < (MANY - 60) * 65536
        assert not client.saw_the_end
        assert the_lock() is not None  # the second holder's, which the first one's end leaves alone
        eventually(lambda: seen() == ["begun r-1 2", "ended r-1 1"], "the body has been closed")
    assert "LeaseLost" in server.said()


def test_the_next_request_of_the_same_thread_is_not_inside(serve: Serve) -> None:
    """gunicorn's sync worker serves one after another in one thread."""
    server = serve("gunicorn sync")
    for number in range(3):
        client = Client(server, "/long/sync_sync/?chunks=2", request_id=f"r-{number}")
        assert client.read_all() > 2 * 65536
        assert b"200 OK" in client.head
    client = Client(server, f"/long/sync_sync/?chunks={MANY}")
    client.read(65536)
    client.reset()
    with lock("export", wait=30):
        busy = Client(server, "/long/sync_sync/?chunks=2")
        busy.read_all()
        assert b"409 Conflict" in busy.head
