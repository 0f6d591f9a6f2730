"""The session: interrupted, or ended; its server stopped, restarted or missing. Unsure is not lost; lost is said."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss

from distlock_web import BackendUnavailable, ConfigurationError, Lease, LeaseLost, configure, lock
from distlock_web.backends.zookeeper import session as module
from distlock_web.backends.zookeeper.address import address
from distlock_web.backends.zookeeper.nodes import path_of
from distlock_web.core.backend import Claim
from distlock_web.core.config import StoreConfig
from distlock_web.core.registry import registry
from distlock_web.core.runtime import THREADS, drive, new_token, now
from distlock_web.core.worker import start_thread
from distlock_web.testing.fault_injector import FaultInjector
from distlock_web.testing.servers import free_port
from tests.support.callers import Beside, unrelated
from tests.support.forking import beside_threads, in_child
from tests.support.proxy import Proxy
from tests.support.waiting import LONG, SLACK, SOON, eventually
from tests.support.zookeeper_server import ZooKeeperServer

NAME = "disLock:order:7"
#: Seconds of a lease that a session of three surely outlives.
SHORT = 1.5


def end_our_session() -> None:
    """As the servers do with a session of which they have heard nothing for too long."""
    session: Any = registry().store("default").backend._session  # type: ignore[attr-defined]
    ident = session._client.client_id

    def ended() -> bool:
        twin = KazooClient(session.address.hosts, client_id=ident, timeout=60)
        try:
            twin.start()
            twin.stop()  # closing it anywhere ends it everywhere
        except ConnectionLoss:
            pass  # our own connection has taken the session back sooner
        finally:
            twin.close()
        return session._client.client_id not in (None, ident)

    eventually(ended, "we have a new session")


@pytest.mark.slow
def test_a_restart_of_the_server_costs_nobody_his_lock(own_zookeeper: ZooKeeperServer, beside: Beside) -> None:
    injector = FaultInjector(registry().store("default"))
    lease = lock("order:7", expire=LONG).acquire()
    waiter = beside(lock("order:7", expire=LONG, wait=LONG).acquire)
    eventually(lambda: "wait" in injector.calls, "its acquisition is answered, and it sleeps")
    own_zookeeper.kill()
    with pytest.raises(BackendUnavailable):
        lease.extend()
    lease.raise_if_lost()
    own_zookeeper.start()
    eventually(lambda: _extends(lease), "it answers again")
    assert not waiter.done()
    lease.release()
    later = waiter.result(SOON)
    assert later.fence > (lease.fence or 0)
    later.release()


def _waiters() -> int:
    found = drive(registry().store("default").port(THREADS).inspect([NAME]))
    return found[0].waiters if found else 0


def _extends(lease: Lease) -> bool:
    try:
        lease.extend()
    except BackendUnavailable:
        return False
    return True


def test_a_session_that_has_ended_is_a_loss(zookeeper_store: str, beside: Beside) -> None:
    """kazoo's own lock says that it is acquired, for ever."""
    lease = lock("order:7", expire=30.0).acquire()
    waiter = beside(lock("order:7", expire=30.0, wait=LONG).acquire)
    eventually(lambda: _waiters() == 1, "it waits")
    end_our_session()
    with pytest.raises(LeaseLost):
        lease.extend()
    assert lease.state == "lost"
    waiter.result(SOON).release()  # whose place had gone, too


@beside_threads
@pytest.mark.parametrize("pid", ["its own", "its parent's"])
def test_a_child_has_a_session_of_its_own(
    zookeeper_store: str, client: Any, pid: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if pid == "its parent's":  # in a namespace of its own
        mine = os.getpid()
        monkeypatch.setattr(os, "getpid", lambda: mine)
    lease = lock("order:7", expire=30).acquire()
    begun, parents = now(), registry().store("default").backend._session  # type: ignore[attr-defined]

    def child() -> None:
        with lock("order:8"):
            assert len(shown("order:8")) == 1
        parents._client.handler.stop()  # as at its end
        assert parents._client.handler._running, "kazoo's own was called"

    in_child(child)
    assert now() - begun < SLACK, "it waited for threads of its parent's"
    lease.extend()
    lease.release()
    assert client.get_children(path_of("disLock:order:8")) == []


def shown(key: str) -> list[Any]:
    return drive(registry().store("default").port(THREADS).inspect([f"disLock:{key}"]))


# What is wrong with the server, or with the settings -----------------------------------------------------------------


@pytest.mark.parametrize("how", ["nobody listens", "it says nothing", "no such host"])
def test_a_server_that_is_not_there_refuses_within_its_time(how: str, make_proxy: Callable[[int], Proxy]) -> None:
    host, port = "127.0.0.1", free_port()
    if how == "it says nothing":
        proxy = make_proxy(port)
        proxy.swallow()
        port = proxy.port
    if how == "no such host":
        host = "no-such-host.invalid"
    configure(
        {"default": {"LOCATION": f"zookeeper://{host}:{port}", "OPTIONS": {"timeout": 0.3, "session_timeout": 2}}}
    )
    for _ in range(2):
        begun = now()
        with pytest.raises(BackendUnavailable, match=host):
            lock("order:7", wait=0).acquire()
        assert now() - begun < 2 * 0.3 + SLACK


def test_one_dead_server_of_several_is_passed_over(zookeeper_server: ZooKeeperServer, zookeeper_url: str) -> None:
    chroot = zookeeper_url.rpartition("/")[2]
    hosts = f"127.0.0.1:{free_port()},127.0.0.1:{zookeeper_server.port}"
    configure({"default": {"LOCATION": f"zookeeper://{hosts}/{chroot}", "OPTIONS": {"timeout": 5}}})
    with lock("order:7"):
        pass


def test_a_chroot_that_is_missing_is_said(zookeeper_server: ZooKeeperServer) -> None:
    configure({"default": {"LOCATION": zookeeper_server.url + "/not/made"}})
    with pytest.raises(ConfigurationError, match="create /not/made"):
        lock("order:7").acquire()


def test_nodes_of_a_user_are_that_users_alone(zookeeper_url: str, client: Any) -> None:
    mine = {"LOCATION": zookeeper_url, "OPTIONS": {"auth": "me:secret"}}
    configure({"default": mine})
    with lock("order:7"):
        pass
    others = [
        {"LOCATION": zookeeper_url},
        {"LOCATION": zookeeper_url.replace("://", "://me:wrong@")},
    ]
    for other in others:
        configure({"default": other})
        with pytest.raises(ConfigurationError, match="auth") as refused:
            lock("order:7").acquire()
        assert "wrong" not in str(refused.value)
    configure({"default": {"LOCATION": zookeeper_url.replace("://", "://me:secret@")}})
    with lock("order:7"):
        pass


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"LOCATION": "zookeeper://"}, "zookeeper://10.0.0.1"),
        ({"LOCATION": "zookeeper://h:x"}, "LOCATION"),
        ({"LOCATION": "zookeeper://a,,b"}, "LOCATION"),
        ({"LOCATION": "zookeeper://h/a//b"}, "LOCATION"),
        ({"LOCATION": "zookeeper://u:topsecret@h:x"}, r"\*\*\*@h:x"),
        ({"LOCATION": "zookeeper://user:12/topsecret@h:2181"}, r"is 'zookeeper://\*\*\*@h:2181'.*: %2F and %40"),
        ({"LOCATION": "zookeeper://u:p@h:2181/topsecret@h:2181/locks"}, r"\*\*\*@h:2181/locks"),
        ({"OPTIONS": {"sesion_timeout": 3}}, "session_timeout"),
        ({"OPTIONS": {"session_timeout": 0}}, "session_timeout"),
        ({"OPTIONS": {"timeout": "1"}}, "timeout"),
        ({"OPTIONS": {"auth": "nobody"}}, "user:password"),
        ({"OPTIONS": {"use_ssl": 1}}, "use_ssl"),
        ({"OPTIONS": {"ca": "/no/such/file"}}, "does not exist"),
    ],
)
def test_a_setting_that_cannot_be_right_is_said(settings: dict[str, Any], words: str) -> None:
    configure({"default": {"BACKEND": "zookeeper", **settings}})
    with pytest.raises(ConfigurationError, match=words) as refused:
        lock("order:7").acquire()
    assert "topsecret" not in str(refused.value)


def test_no_thread_stays_when_the_store_is_closed(zookeeper_store: str) -> None:
    with lock("order:7"):
        assert any(thread.name == "distlock-zookeeper" for thread in threading.enumerate())
    registry().close()
    eventually(
        lambda: not any(thread.name.startswith("distlock-zookeeper") for thread in threading.enumerate()), "they end"
    )


def test_who_waits_while_the_store_is_closed_asks_again(zookeeper_store: str, beside: Beside) -> None:
    """Its place had gone with the session: it slept on, for as long as the lease was that it had seen."""
    holder = lock("order:7", expire=LONG).acquire()
    waiter = beside(unrelated, "order:7", expire=LONG, wait=LONG)
    backend: Any = registry().store("default").backend
    eventually(lambda: [line.waiters for line in drive(backend.sync_port().inspect())] == [1], "it waits")
    backend.close()
    eventually(lambda: backend._session._client is not None, "it begins another session by itself", SOON)
    eventually(lambda: [line.waiters for line in drive(backend.sync_port().inspect())] == [1], "it has a place again")
    holder.release()
    waiter.result(SOON).release()


def test_a_client_that_gets_one_thread_of_two_leaves_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each attempt left one more, where threads were short."""
    started: list[threading.Thread] = []

    def start(name: str, work: Callable[..., object], *args: object) -> threading.Thread:
        if started:
            raise RuntimeError("can't start new thread")
        started.append(start_thread(name, work, *args))
        return started[0]

    monkeypatch.setattr(module, "start_thread", start)
    with pytest.raises(RuntimeError, match="new thread"):
        module._Handler(1.0).start()
    started[0].join(SOON)
    assert not started[0].is_alive()


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[module.Session]:
    """A session whose server is not there, and has 0.4 seconds for an answer."""
    store = StoreConfig("default", location=f"zookeeper://127.0.0.1:{free_port()}", options={"timeout": 0.4})
    session = module.Session(address(store), lambda: None)
    yield session
    session.close()


def test_a_write_that_was_lost_with_its_connection_is_no_answer(alone: module.Session) -> None:
    """The silence ended, and as many as came then waited for a time-out each."""
    lost = SimpleNamespace(wait=lambda seconds: True, exception=ConnectionLoss())
    alone._client = SimpleNamespace(is_running=True, set_async=lambda path, value: lost)  # type: ignore[assignment]
    threading.Timer(0.05, alone._connected.set).start()
    with pytest.raises(BackendUnavailable):
        alone._probe()
    alone._client = None


def test_kazoos_own_threads_are_never_made_to_wait_for_themselves(zookeeper_store: str) -> None:
    """Garbage that is collected in one may release a lock."""
    lease, refused = lock("order:7", expire=30).acquire(), threading.Event()

    def release() -> None:
        with pytest.raises(BackendUnavailable, match="from the thread that reads"):
            lease.release()
        refused.set()

    session: Any = registry().store("default").backend._session  # type: ignore[attr-defined]
    session._client.handler.spawn(release).join(SOON)
    assert refused.is_set()


@pytest.mark.slow
def test_a_request_that_had_little_time_says_nothing_about_the_server(own_zookeeper: ZooKeeperServer) -> None:
    """A renewal that could wait for 50 ms, and did so in vain, had everybody else refused, "for 0.5 s now"."""
    claim = Claim("disLock:order:7", new_token(), LONG)
    port = registry().store("default").backend.sync_port()
    drive(port.acquire(claim, 0))
    own_zookeeper.pause()
    with pytest.raises(BackendUnavailable):
        drive(port.extend([claim], 0.05))
    other = Claim("disLock:order:8", new_token(), LONG)
    with pytest.raises(BackendUnavailable, match=r"does not answer\.$"):  # it was asked, and waited for
        drive(port.acquire(other, 0))
    with pytest.raises(BackendUnavailable, match=r"does not answer, for \d\.\d s so far"):
        drive(port.acquire(other, 0))
