"""What settings may say, and what is refused: before anything is asked, or by name when the nodes are."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from typing import Any

import pytest

from distlock_web import ConfigurationError, configure, lock
from distlock_web.testing.servers import RedisServer
from tests.support.stores.redlock import redlock_url

#: For what has exactly as many nodes as a majority needs: none may be late on a busy machine.
PATIENT = {"socket_timeout": 2, "socket_connect_timeout": 2}
THREE = "127.0.0.1:7001,127.0.0.1:7002,127.0.0.1:7003"


def made(settings: dict[str, Any]) -> Any:
    return configure({"default": settings}).store("default").backend


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"LOCATION": "redlock://h1,h2/0"}, "names 2 nodes; a quorum needs 3"),
        ({"LOCATION": "redlock:///0"}, "it has to be such as redlock://"),
        ({"LOCATION": "redlock+unix://h1,h2,h3/0"}, "it has to be such as redlock://"),
        ({"LOCATION": "redlock://h1,h2,h1/0"}, "names Redis at h1:6379 twice"),
        ({"LOCATION": f"redlock://{THREE},127.0.0.1:7001/0"}, "twice"),
        ({"LOCATION": f"redlock://{THREE}/0?restart_delay=soon"}, r"^DISTLOCK\['default'\]: restart_delay is 'soon'"),
        (
            {"LOCATION": f"redlock://{THREE}/0", "OPTIONS": {"restart_delay": "soon"}},
            r"\['restart_delay'\] is",
        ),
        ({"LOCATION": f"redlock://{THREE}/0?restart_delay=-1"}, "restart_delay.*is -1"),
        ({"LOCATION": f"redlock://{THREE}/0", "OPTIONS": {"nodes": ["redis://h1"]}}, "twice, in LOCATION and"),
        ({"LOCATION": f"redlock://{THREE}/0", "OPTIONS": {"socket_timeuot": 1}}, "Did you mean 'socket_timeout'"),
        ({"LOCATION": f"redlock://{THREE}/0", "OPTIONS": {"restart_dely": 1}}, "Did you mean 'restart_delay'"),
        ({"LOCATION": f"redlock://{THREE}/0", "OPTIONS": {"min_replicas": 1}}, "min_replicas"),
        ({"BACKEND": "redlock", "OPTIONS": {"nodes": "redis://h1"}}, "is of type str; it has to be a list of redis"),
        ({"BACKEND": "redlock", "OPTIONS": {"nodes": 3}}, "is of type int; it has to be a list of redis"),
        ({"BACKEND": "redlock", "OPTIONS": {"nodes": ["redis://h1", b"redis://h2"]}}, "an item of type bytes"),
        ({"BACKEND": "redlock", "OPTIONS": {"nodes": ["redis+sentinel://h1/m"] * 3}}, "names a node by its sentinels"),
        ({"BACKEND": "redlock", "OPTIONS": {"nodes": ["h1", "h2", "h3"]}}, "it has to be a URL such as redis://"),
        ({"BACKEND": "redlock"}, "it has to be such as redlock://"),
    ],
)
def test_what_cannot_be_right_is_refused_by_name(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        made(settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"LOCATION": "redlock+unix://user:geheim@h1,h2,h3/0"},
        {"LOCATION": "redlock://user:12,34,56/geheim?a=b@h1,h2,h3/0"},
        {"BACKEND": "redlock", "OPTIONS": {"nodes": "redis://user:geheim@h1,h2,h3"}},
        {"BACKEND": "redlock", "OPTIONS": {"nodes": b"redis://user:geheim@h1"}},
        {"BACKEND": "redlock", "OPTIONS": {"nodes": ["redis://h1", b"redis://user:geheim@h2", "redis://h3"]}},
        {"BACKEND": "redlock", "OPTIONS": {"nodes": ["redis://h1", "redis://h2", "redis+sentinel://:geheim@h3/m"]}},
    ],
)
def test_a_message_has_no_password(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        made(settings)
    assert "geheim" not in "".join(traceback.format_exception(caught.value))


def test_every_node_gets_the_credentials_the_database_and_the_time_outs() -> None:
    nodes = made({"LOCATION": f"redlock://user:p%40ss@{THREE}/3?socket_timeout=0.1"})._nodes
    kwargs = [node.address.kwargs for node in nodes]
    assert [(each["username"], each["password"], each["db"], each["port"]) for each in kwargs] == [
        ("user", "p@ss", 3, port) for port in (7001, 7002, 7003)
    ]
    assert {(each["socket_timeout"], each["socket_connect_timeout"]) for each in kwargs} == {(0.1, 0.25)}


@pytest.mark.parametrize("nothing", [None, 0])
def test_a_time_out_of_nothing_is_the_default_of_a_node_and_not_that_of_one_server(nothing: int | None) -> None:
    options = {"socket_timeout": nothing, "socket_connect_timeout": nothing}
    nodes = made({"LOCATION": f"redlock://{THREE}/0", "OPTIONS": options})._nodes
    assert {node.address.kwargs[option] for node in nodes for option in options} == {0.25}


def test_nodes_may_have_options_of_their_own() -> None:
    urls = ["redis://h1:1/0?socket_timeout=0.5", "rediss://h2:2/0", "unix:///run/redis.sock"]
    nodes = made({"BACKEND": "redlock", "OPTIONS": {"nodes": urls, "max_connections": 7}})._nodes
    assert [node.timeout for node in nodes] == [0.5, 0.25, 0.25]
    assert [str(node) for node in nodes] == ["Redis at h1:1", "Redis at h2:2", "Redis at /run/redis.sock"]
    assert {node.address.max_connections for node in nodes} == {7}


def test_a_lease_longer_than_a_node_is_left_out_for_is_refused() -> None:
    configure({"default": {"LOCATION": f"redlock://{THREE}/0?restart_delay=20", "EXPIRE": 5}})
    with pytest.raises(ConfigurationError, match=r"longer than the longest lease .*, 20 s .*'restart_delay'"):
        lock("order:7", expire=21).acquire()


@pytest.mark.parametrize("database", [0, 1])
@pytest.mark.parametrize("restart_delay", [0, 60])
def test_one_server_under_two_names_is_refused(own_nodes: list[RedisServer], database: int, restart_delay: int) -> None:
    """Two votes of one server are a majority of three, and survive nothing. Two databases are one server."""
    first, second, _, _, _ = own_nodes
    places = f"127.0.0.1:{first.port}/0", f"localhost:{first.port}/{database}", f"127.0.0.1:{second.port}/0"
    options = {"nodes": [f"redis://{place}" for place in places], "restart_delay": restart_delay, **PATIENT}
    registry = configure({"default": {"BACKEND": "redlock", "OPTIONS": options}})
    try:
        with pytest.raises(ConfigurationError, match="are one server, and would vote twice"):
            lock("order:7").acquire()
    finally:
        registry.close()


def test_a_wrong_password_is_a_node_that_has_no_vote(
    make_redis: Callable[..., RedisServer], caplog: pytest.LogCaptureFixture
) -> None:
    with_password = [make_redis("--requirepass", "geheim") for _ in range(2)]
    without = [make_redis() for _ in range(3)]
    registry = configure({"default": {"LOCATION": redlock_url([*with_password, *without], **PATIENT)}})
    try:
        with caplog.at_level(logging.WARNING, "distlock_web"), lock("order:7"):
            pass
        assert "wants a password" in caplog.text
        registry.close()
        three = redlock_url([*with_password, without[0]], **PATIENT)
        registry = configure({"default": {"LOCATION": three, "PREFIX": "another quorum:"}})
        for _ in range(2):  # also when it is known: settings that are wrong are no outage
            with pytest.raises(ConfigurationError, match=r"0 of 3 nodes answered, 2 are needed: .*wants a password"):
                lock("order:7").acquire()
    finally:
        registry.close()


def test_a_lease_of_a_quorum_is_not_handed_over_and_goes_on(redlock_settings: dict[str, Any]) -> None:
    configure({"default": redlock_settings})
    with lock("order:7") as lease:
        with pytest.raises(ConfigurationError, match="cannot hand a lock over"):
            lease.detach()
        lease.extend()
