"""Which nodes vote: those that know who they are, with whom they vote, and that they have forgotten nothing."""

from __future__ import annotations

import contextvars
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any, TypeAlias

import pytest
import redis

from distlock_web import BackendUnavailable, ConfigurationError, Lease, LockBusy, configure, lock
from distlock_web.backends.redis.scripts.calls import Script
from distlock_web.backends.redlock import node as node_module
from distlock_web.backends.redlock.asking import Question
from distlock_web.backends.redlock.node import Node
from distlock_web.backends.redlock.quorum import Quorum
from distlock_web.backends.redlock.scripts import FOUND, VOTE
from distlock_web.core.backend import Granted
from distlock_web.core.runtime import drive, now
from distlock_web.testing.contract.base import claim
from distlock_web.testing.servers import RedisServer
from tests.support.clock_shift import ShiftedRedis, compiled_shim
from tests.support.stores.redlock import make_old, redlock_url
from tests.support.waiting import SLACK, eventually

Servers: TypeAlias = list[RedisServer]
Open: TypeAlias = Callable[..., Any]

NAME = "disLock:order:7"
DELAY = 2
#: Of a store whose nodes are to be heard, however busy the machine is.
PATIENT = {"socket_timeout": SLACK, "socket_connect_timeout": SLACK}


def takes() -> bool:
    """Whether somebody can have it who is inside of nothing."""
    return contextvars.Context().run(_takes)


def _takes() -> bool:
    try:
        with lock("order:7", expire=1):
            return True
    except (BackendUnavailable, LockBusy):
        return False


def take(seconds: float = 1) -> Lease:
    return lock("order:7", expire=seconds).acquire()


def take_everywhere(servers: Sequence[RedisServer], seconds: float) -> Lease:
    """A majority is enough for a lock: a node that still has the last one, or is asked late, has no vote for it."""
    for _ in range(50):
        lease = take(seconds)
        if all(_has_vote(server) for server in servers):
            return lease
        lease.release()
    raise TimeoutError("never had all votes")


def _has_vote(server: RedisServer) -> bool:
    with redis.Redis.from_url(server.url) as client:
        return bool(client.exists(NAME))


@pytest.fixture
def old(open_store: Open) -> Open:
    """The store over these nodes, which are a quorum for longer than their delay."""

    def make(servers: Servers, restart_delay: float = DELAY, **parameters: object) -> None:
        open_store(servers, restart_delay=restart_delay, **parameters).backend.prepare()
        for server in servers:
            make_old(server)
        eventually(takes, "the quorum is old enough")

    return make


def forget(server: RedisServer) -> None:
    with redis.Redis.from_url(server.url) as client:
        client.flushall()


def lost_before_another_has_it(held: Lease) -> bool:
    while not takes():
        pass
    return held.state == "lost"


def test_a_quorum_that_is_new_votes_after_its_delay(own_nodes: Servers, open_store: Open) -> None:
    """It looks like one that has lost its data everywhere, while a holder goes on."""
    open_store(own_nodes[:3], restart_delay=DELAY)
    begun = now()
    with pytest.raises(BackendUnavailable, match=r"may have forgotten locks.*votes again in [23] s"):
        take()
    eventually(takes, "it votes")
    assert now() - begun >= DELAY


def test_a_node_that_came_back_with_the_data_of_before_has_forgotten_what_came_after(
    make_redis: Callable[..., RedisServer], old: Open
) -> None:
    """It has its key from a snapshot, and the votes that it had then: not those of the last minutes."""
    nodes = [make_redis(), make_redis("--save", "3600 1"), make_redis()]
    old(nodes)
    with redis.Redis.from_url(nodes[1].url) as client:
        client.save()
    nodes[2].pause()
    held = take(DELAY)  # by the first two
    nodes[1].kill()
    nodes[1].start()
    with redis.Redis.from_url(nodes[1].url) as client:
        assert client.exists("disLock:~quorum"), "it has come back with the snapshot"
    nodes[2].resume()
    assert lost_before_another_has_it(held)


@pytest.mark.parametrize("restart_delay", [0, DELAY])
def test_a_server_that_does_not_tell_its_run_is_no_node(
    redlock_nodes: Servers, monkeypatch: pytest.MonkeyPatch, open_store: Open, restart_delay: int
) -> None:
    """Before and after a restart its run was the same: with an old snapshot it voted at once."""
    for script in (VOTE, FOUND):
        other = Script(script.source.replace(b"'run_id:'", b"'no_such:'"))
        assert other.source != script.source
        for part in ("_by_sha", "_by_source"):
            monkeypatch.setattr(script, part, getattr(other, part))
    open_store(redlock_nodes[:3], restart_delay=restart_delay)
    if restart_delay == 0:
        assert takes()
        return
    with pytest.raises(ConfigurationError, match="does not say in INFO which run of the server it is"):
        take()


# Two lists of nodes ------------------------------------------------------------------------------------------------


def test_another_list_of_nodes_is_refused_until_it_is_adopted(own_nodes: Servers, old: Open, open_store: Open) -> None:
    """As in every deployment that exchanges a node: both lists had a majority of their own."""
    a, b, c, d, _ = own_nodes
    old([a, b, c])
    held = take(DELAY)
    new = open_store([a, b, d], restart_delay=DELAY)
    with pytest.raises(ConfigurationError, match=rf"127.0.0.1:{a.port} votes with .*:{c.port}.*distlock redlock adopt"):
        take()
    assert "2 of 3 nodes voted with others" in new.backend.adopt()
    assert lost_before_another_has_it(held)
    open_store([a, b, c], restart_delay=DELAY)
    with pytest.raises(ConfigurationError, match="All processes have to name the same nodes"):
        take()


def test_a_quorum_is_not_prepared_beside_a_node_that_votes_with_others(own_nodes: Servers, open_store: Open) -> None:
    a, b, c, d, e = own_nodes
    open_store([c, d, e])
    assert takes()
    with pytest.raises(ConfigurationError, match=f":{c.port} votes with .* All processes have to name the same nodes"):
        open_store([a, b, c]).backend.prepare()


def test_a_list_is_adopted_whole_and_node_by_node_or_the_old_one_counts(
    own_nodes: Servers, old: Open, open_store: Open
) -> None:
    a, b, c, d, e = own_nodes
    old([a, b, c])
    with pytest.raises(ConfigurationError, match="Exchange one node at a time"):
        open_store([a, d, e], restart_delay=DELAY).backend.adopt()
    b.pause()
    try:
        with pytest.raises(BackendUnavailable, match="2 of 3 nodes answered"):
            open_store([a, b, d], restart_delay=DELAY).backend.adopt()
    finally:
        b.resume()
    open_store([a, b, c], restart_delay=DELAY)
    assert takes(), "nothing has changed"


def test_a_list_is_not_adopted_where_a_lease_may_be_of_any_length(own_nodes: Servers, open_store: Open) -> None:
    a, b, c, d, _ = own_nodes
    open_store([a, b, c], restart_delay=0)
    assert takes()
    with pytest.raises(ConfigurationError, match=r"old one is 0 s.*delete 'disLock:~quorum'"):
        open_store([a, b, d], restart_delay=DELAY).backend.adopt()


def test_a_delay_does_not_become_shorter(own_nodes: Servers, old: Open, open_store: Open) -> None:
    """The new nodes alone may be a majority, and know nothing of a lease that is longer."""
    a, b, c, d, _ = own_nodes
    old([a, b, c], 2 * DELAY)
    with pytest.raises(ConfigurationError, match="may be longer than the new restart_delay, 2 s"):
        open_store([a, b, d], restart_delay=DELAY).backend.adopt()


def test_a_node_of_another_list_is_not_won_while_it_has_forgotten(
    own_nodes: Servers, old: Open, open_store: Open
) -> None:
    """A process with a new list that nobody has adopted: it would take one node after the other to its side."""
    a, b, c, d, _ = own_nodes
    old([a, b, c])
    a.restart()
    open_store([a, b, d], restart_delay=DELAY)
    with pytest.raises(ConfigurationError, match="All processes have to name the same nodes"):
        take()
    b.pause()  # and is not heard
    with pytest.raises(BackendUnavailable, match="has no memory of this quorum"):
        take()
    b.resume()
    old([a, b, c])


@pytest.mark.parametrize("repair", ["by hand", "it is gone", "it hangs"])
def test_who_only_renews_hears_of_a_repaired_node(own_nodes: Servers, open_store: Open, repair: str) -> None:
    """Only a vote made it forget the error, and it lost its leases."""
    port, held = open_store(own_nodes[:3]).renewal_port(), claim()
    assert isinstance(drive(port.acquire(held, 0)), Granted)
    with ExitStack() as stack:
        # More than may be missing: nobody waits for one that is slower than a majority.
        for node in own_nodes[:2]:
            client = stack.enter_context(redis.Redis.from_url(node.url, decode_responses=True))
            right = str(client.get("disLock:~quorum"))
            client.set("disLock:~quorum", right.replace(f":{own_nodes[2].port}/", ":1/"))
            stack.callback(client.set, "disLock:~quorum", right)
        with pytest.raises(ConfigurationError, match="All processes have to name the same nodes"):
            drive(port.extend([held]))
    if repair == "it is gone":
        own_nodes[0].kill()
    elif repair == "it hangs":
        own_nodes[0].pause()
    assert drive(port.extend([held])) == [None]


# Clocks ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def clocks() -> Iterator[list[ShiftedRedis]]:
    with ExitStack() as stack:
        library = compiled_shim(stack)
        servers = []
        for number in range(3):
            folder = library.parent / str(number)
            folder.mkdir()
            own = folder / library.name
            own.symlink_to(library)
            servers.append(stack.enter_context(ShiftedRedis(own)))
        yield servers


def test_a_clock_that_is_ahead_of_the_others_has_no_vote(clocks: list[ShiftedRedis], old: Open) -> None:
    _, b, c = clocks
    old(clocks)
    c.kill()
    assert takes()
    b.shift(60)
    assert not takes()
    c.start()
    eventually(takes, "when c is old enough there are two whose clocks agree")


@pytest.mark.parametrize("restart_delay", [0, DELAY])
@pytest.mark.parametrize("step", [0.15, 0.9, 60])
def test_a_clock_that_is_set_ahead_gives_nobody_a_lock_that_is_held(
    clocks: list[ShiftedRedis], old: Open, open_store: Open, step: float, restart_delay: int
) -> None:
    """A step ends a vote early. A small one is waited for; with a great one the node's vote does not count."""
    _, b, c = clocks
    if restart_delay:
        old(clocks)
    else:
        open_store(clocks, restart_delay=0)
    held = take_everywhere(clocks, DELAY)
    with redis.Redis.from_url(c.url) as client:
        client.delete(NAME)  # as where another came at the same moment, and gave this vote back
    b.shift(step)
    assert lost_before_another_has_it(held)
    b.shift(0)
    assert takes()


def test_clocks_are_compared_as_of_one_moment(node: Node) -> None:
    """A slow answer, or a busy process, makes no clock a wrong one; and what it hides is counted."""
    quorum = Quorum([node] * 3, 0)

    def apart(*ahead: tuple[float, float]) -> tuple[float, float]:
        return quorum.apart([Question(node, VOTE, node.keys(NAME), (), ahead=each) for each in ahead])

    assert apart((0, 1_000), (0, 2_000), (9e6, 9e6)) == (0, 0.002)
    assert apart((-300_000, 200_000), (0, 1_000), (9e6, 9e6)) == (0, 0.5)
    assert apart((0, 1_000), (50_000, 60_000), (51_000, 59_000)) == (0, 0.01)
    assert apart((0, 1_000), (50_000, 60_000), (90_000, 99_000)) == (0.03, 0.049)
    assert apart((0, 1_000)) == (math.inf, math.inf)


def test_nodes_that_come_back_with_clocks_behind_are_not_believed_though_they_agree(
    clocks: list[ShiftedRedis], old: Open
) -> None:
    """Two of three: a majority of clocks, by which they were old enough as soon as NTP had set them."""
    a, b, c = clocks
    old(clocks)
    a.kill()
    held = take(DELAY)  # by b and c
    for server in (b, c):
        server.kill()
        server.shift(-60)
        server.start()
    a.start()
    begun = now()
    while now() - begun < DELAY / 4:  # they are all asked
        assert not takes()
    for server in (b, c):
        server.shift(0)
    assert lost_before_another_has_it(held)


# Founded in vain ---------------------------------------------------------------------------------------------------


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """How often all nodes were asked who they are. What is done once a second is not done again in this test."""
    monkeypatch.setattr(node_module, "FOUNDED_AGAIN_AFTER", 3600.0)
    times, look = list[None](), Quorum.look

    async def noted(self: Quorum) -> list[Question]:
        times.append(None)
        return await look(self)

    monkeypatch.setattr(Quorum, "look", noted)
    return times


def is_told_once(looked: list[None], caplog: pytest.LogCaptureFixture, why: str) -> None:
    """However many acquisitions there are; and the log says why it could not be told."""
    eventually(lambda: takes() and bool(looked), "a vote is heard of the node that has forgotten")
    for _ in range(20):
        takes()
    assert len(looked) == 1, "each acquisition asked three times, and waited for the slowest node"
    said = [record.getMessage() for record in caplog.records if "cannot be told which node it is" in record.message]
    assert [why in text for text in said] == [True], said


def test_a_node_whose_clock_is_wrong_is_not_told_again_by_each_acquisition(
    clocks: list[ShiftedRedis], old: Open, looked: list[None], caplog: pytest.LogCaptureFixture
) -> None:
    old(clocks, **PATIENT)
    looked.clear()
    clocks[2].kill()
    clocks[2].shift(60)
    clocks[2].start()
    is_told_once(looked, caplog, "its clock is 60 s ahead of the others'")


def test_a_node_that_is_full_is_not_told_again_by_each_acquisition_and_its_refusal_is_said(
    own_nodes: Servers, open_store: Open, looked: list[None], caplog: pytest.LogCaptureFixture
) -> None:
    servers = own_nodes[:3]
    store = open_store(servers, **PATIENT)
    store.backend.prepare()
    looked.clear()
    forget(servers[2])
    with redis.Redis.from_url(servers[2].url) as client:
        client.config_set("maxmemory", 1)
        is_told_once(looked, caplog, "is full (maxmemory)")
        servers[1].kill()
        with pytest.raises(BackendUnavailable, match=r"cannot be told which node it is: .* is full"):
            take()
        client.config_set("maxmemory", 0)
    store.backend._nodes[2].unfounded_until = 0.0  # a second later
    eventually(takes, "the node is told who it is, and votes")


def test_a_node_that_does_not_say_who_it_is_is_not_looked_at_by_each_acquisition(
    own_nodes: Servers, open_store: Open, looked: list[None], caplog: pytest.LogCaptureFixture
) -> None:
    """INFO is not allowed there. With a delay of 0 only the look at all nodes asks for it, and no vote."""
    servers = own_nodes[:3]
    open_store(servers, **PATIENT).backend.prepare()
    looked.clear()
    forget(servers[2])
    with redis.Redis.from_url(servers[2].url) as client:
        client.execute_command("ACL", "SETUSER", "default", "-info")
    is_told_once(looked, caplog, "does not allow this user")


def test_a_node_that_forgets_again_is_warned_of_again(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    """Another process had told it meanwhile, and it had voted here. The reason of before had silenced the new one."""

    def voted(reply: list[int]) -> None:
        Question(node, VOTE, node.keys(NAME), (claim().token, 1)).take(reply)

    for reply in ([-1, 0], [5, 0], [-1, 0]):
        node.not_founded("it is full")
        voted(reply)
    assert ["it is full" in text for text in caplog.messages] == [True, True]


def test_a_node_that_refuses_several_scripts_is_warned_of_once(
    own_nodes: Servers, open_store: Open, caplog: pytest.LogCaptureFixture
) -> None:
    """Redis names the script that it refuses. So each lock that was renewed was warned of twice."""
    servers = own_nodes[:3]
    open_store(servers, **PATIENT).backend.prepare()
    take().release()
    with redis.Redis.from_url(servers[2].url) as client:
        client.execute_command("ACL", "SETUSER", "default", "-time")
    for _ in range(5):
        lease = take(30)
        lease.extend()
        lease.release()
    assert ["does not allow this user" in text for text in caplog.messages] == [True]


# What comes late ---------------------------------------------------------------------------------------------------


@pytest.fixture
def node(redlock_nodes: list[RedisServer]) -> Node:
    backend: Any = configure({"default": {"LOCATION": redlock_url(redlock_nodes)}}).store("default").backend
    assert takes()
    return backend._nodes[0]


def vote(node: Node, token: str, attempt: int, expire: float = 30) -> int:
    args = (token, attempt, node.who, 0, round(expire * 1000), "", "", "somebody", "")
    return int(ask(node, VOTE, *args)[0])


def ask(node: Node, script: Script, *args: str | int) -> Any:
    names = [NAME] if script is not FOUND else []
    return drive(node.server.threads().run(script, node.keys(*names), args))


def test_a_birth_that_is_told_late_is_not_believed(node: Node, redlock_nodes: list[RedisServer]) -> None:
    """A node that was emptied again meanwhile would count its delay from the first time."""
    forget(redlock_nodes[0])
    with redis.Redis.from_url(redlock_nodes[0].url) as client:
        seconds, us = client.time()
    at = seconds * 1_000_000 + us
    answer = ask(node, FOUND, node.who, at - 5_000_000, 1_000_000, "")
    assert answer[0] == 0
    assert vote(node, claim().token, 1) == -1
    assert ask(node, FOUND, node.who, at, 60_000_000, "")[0] == 1
    assert vote(node, claim().token, 1) > 0
