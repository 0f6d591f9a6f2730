"""Who reads the votes late, as in a busy event loop: no right clock is blamed, and the lock is not refused."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

import pytest
import redis

from distlock_web import BackendUnavailable, lock
from distlock_web.backends.redis.transport.exchange import Line
from distlock_web.backends.redis.transport.loop_connection import LoopConnection
from distlock_web.backends.redlock import asking
from distlock_web.backends.redlock import port as port_module
from distlock_web.backends.redlock.asking import Channel, Question
from distlock_web.backends.redlock.port import RedlockPort
from distlock_web.backends.redlock.quorum import Quorum
from distlock_web.backends.redlock.scripts import RELEASE, VOTE
from distlock_web.core.backend import Granted, drift
from distlock_web.core.runtime import THREADS, drive, now
from distlock_web.kit.outage import Outage
from distlock_web.testing.contract.base import claim
from distlock_web.testing.harness import HARNESSES
from distlock_web.testing.servers import RedisServer
from tests.support.stores.redlock import NODE_TIMEOUT, left_on
from tests.support.waiting import SLACK

NAME = "disLock:order:7"


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> Callable[[float, int], Counter[str]]:
    """``late(seconds, times)``: so many votes of each node are read so late. Counts them."""
    votes = Counter[str]()

    def make(seconds: float, times: int) -> Counter[str]:
        take = Question.take

        def read_late(self: Question, reply: Any) -> None:
            if self.script is VOTE:
                asked = f"{self.node} {self.args[0]}"
                votes[asked] += 1
                if votes[asked] <= times:
                    self.sent_at -= seconds
            take(self, reply)

        monkeypatch.setattr(Question, "take", read_late)
        return votes

    return make


@pytest.fixture
def three(own_nodes: list[RedisServer], open_store: Callable[..., Any], mode: Any) -> tuple[list[RedisServer], Any]:
    """Three nodes that know who they are and whose time is known, and a harness over them."""
    servers = own_nodes[:3]
    store = open_store(servers)
    store.backend.prepare()
    drive(HARNESSES["threads"](store).port.acquire(claim(name="disLock:other"), 0))
    return servers, mode(store)


@pytest.mark.parametrize("seconds", [0.6 * NODE_TIMEOUT, 2 * NODE_TIMEOUT])
def test_who_is_late_once_votes_once_more(three: Any, late: Any, seconds: float) -> None:
    """It slept, or was told that NTP has to correct clocks that are right."""
    _, harness = three
    votes = late(seconds, 1)

    async def case() -> None:
        begun = now()
        answer = await harness.port.acquire(claim(name=NAME, expire=10), 0)
        assert isinstance(answer, Granted)
        assert answer.since - begun < 5, "counted from before the first vote"

    harness.run(case())
    assert max(votes.values()) == 2


def test_who_is_always_late_waits_as_long_as_that_may_hide(three: Any, late: Any) -> None:
    """A busy event loop is no wrong clock: it costs its callers time, and not the lock."""
    _, harness = three
    late(2 * NODE_TIMEOUT, 1000)
    margin, begun = drift(10), now()

    async def case() -> None:
        granted = await harness.port.acquire(claim(name=NAME, expire=10), 0)
        assert isinstance(granted, Granted)

    harness.run(case())
    assert now() - begun >= 2 * NODE_TIMEOUT - margin


def test_who_is_later_than_the_lease_allows_is_told_so(three: Any, late: Any) -> None:
    servers, harness = three
    late(20.0, 1000)

    async def case() -> None:
        with pytest.raises(BackendUnavailable, match=r"read so late.* within the lease of 10 s"):
            await harness.port.acquire(claim(name=NAME, expire=10), 0)

    harness.run(case())
    assert not any(NAME in names for names in left_on(servers).values())


def test_who_oversleeps_the_difference_of_clocks_has_no_lease(
    three: Any, late: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease had ended when it was given, and its acquisition was a loss: an error of the site, not of the store."""
    servers, harness = three
    late(0.8 * NODE_TIMEOUT, 1000)
    slept: list[float] = []

    class Parker:
        async def park(self, seconds: float) -> None:
            slept.append(seconds)

    class Sleepy:
        def parker(self) -> Parker:
            return Parker()

    monkeypatch.setattr(port_module, "now", lambda: now() + 60 * len(slept))
    monkeypatch.setattr(harness.port, "runtime", Sleepy())

    async def case() -> None:
        with pytest.raises(BackendUnavailable, match=r"that took 60\.\d+ s of the lease of 10 s"):
            await harness.port.acquire(claim(name=NAME, expire=10), 0)

    harness.run(case())
    assert len(slept) == 1
    assert not any(NAME in names for names in left_on(servers).values())


def test_what_is_waited_for_sooner_than_a_node_is_not_asked_of_that_node(three: Any) -> None:
    """With a round trip above the margin of a short lease every acquisition waited for the slowest node."""
    nodes = three[1].store.backend._nodes
    port, mine = RedlockPort(THREADS, Quorum(nodes, 0), deque()), claim(name=NAME, expire=2)

    def voted(round_trip: float) -> list[Question]:
        ahead = 0.0, round_trip * 1_000_000
        answered = [Question(node, VOTE, node.keys(NAME), (), reply=[5, 0], ahead=ahead) for node in nodes[:2]]
        return [*answered, Question(nodes[2], VOTE, nodes[2].keys(NAME), ())]

    assert port._is_decided(mine, now() + 60, voted(0.03))
    assert port._is_decided(mine, now() - 1, voted(0.01))
    assert not port._is_decided(mine, now() - 1, voted(0.03))
    assert not port._is_decided(mine, now() + 60, voted(90))


def test_a_connection_that_is_opened_makes_no_vote_late(
    own_nodes: list[RedisServer], open_store: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread had asked one node when it connected to the next: that one's time-out was in the answer's."""
    store, done = open_store(own_nodes[:3]), list[str]()
    open_it, send = Channel.__init__, Channel.send

    def opened(self: Channel, *args: Any) -> None:
        open_it(self, *args)
        done.append("opened")

    def sent(self: Channel, question: Question) -> None:
        done.append("sent")
        send(self, question)

    monkeypatch.setattr(Channel, "__init__", opened)
    monkeypatch.setattr(Channel, "send", sent)
    drive(HARNESSES["threads"](store).port.acquire(claim(name=NAME), 0))
    assert done[:6] == ["opened"] * 3 + ["sent"] * 3


@pytest.mark.parametrize("busy", [False, True])
def test_a_vote_that_waits_for_its_connection_is_not_sent_after_its_end(
    own_nodes: list[RedisServer], open_store: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, busy: bool
) -> None:
    """Its release went past it, or was not sent there at all: the node had the lock until the lease was over."""
    store: Any = open_store(own_nodes)
    harness = HARNESSES["asyncio"](store)
    late = {node.server.outage for node in store.backend._nodes[3:]}
    open_it = LoopConnection.open

    async def case() -> None:
        opened = asyncio.Event()

        async def open_late(self: LoopConnection, timeout: float | None) -> Line:
            if self._outage in late:  # the vote; what comes after it finds the connection open
                late.remove(self._outage)
                await opened.wait()
            return await open_it(self, timeout)

        async def attempt() -> None:
            monkeypatch.setattr(LoopConnection, "open", open_late)
            lease = await harness.try_acquire(lock("order:7", expire=60))
            assert (lease is None) is busy
            if lease is not None:
                await harness.release(lease)

        async def all_have_ended() -> bool:
            return not asking._going_on

        if busy:
            async with harness.inside(lock("order:7", expire=60)):
                await harness.until(all_have_ended)
                await harness.unrelated(attempt).result()
        else:
            await attempt()
        assert not late
        opened.set()
        await harness.until(all_have_ended)

    harness.run(case())
    assert left_on(own_nodes) == {}


class TimeIsUp(Exception):
    """A worker's time limit, as a signal handler raises it."""


def test_a_vote_that_was_under_way_when_a_time_limit_came_is_taken_back_once_it_has_come(
    own_nodes: list[RedisServer], open_store: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its release went past it on another connection, and the node had the vote until the lease was over."""
    servers = own_nodes[:3]
    store = open_store(servers, socket_timeout=SLACK, socket_connect_timeout=SLACK)
    port: Any = HARNESSES["threads"](store).port
    mine = claim(name=NAME, expire=300)
    drive(port.acquire(mine, 0))  # connected, and the scripts are known
    drive(port.release(mine))
    under_way = list[tuple[int, bytes]]()
    send, ask = Channel.send, Quorum.ask
    postponed = list[tuple[float, Callable[[], object]]]()

    def keep(self: Channel, question: Question) -> None:
        if question.script is VOTE:
            question.begin()
            self._questions.append(question)
            under_way.append((self.node.address.kwargs["port"], question.script.call(question.keys, question.args)))
        else:
            send(self, question)

    def interrupted(*_: object) -> bool:
        raise TimeIsUp

    async def ask_interrupted(self: Quorum, script: Any, names: Any, args: Any, *rest: Any, **more: Any) -> Any:
        return await ask(self, script, names, args, interrupted if script is VOTE else rest[0], **more)

    def note(_: Outage, work: Callable[[], object], *, after: float, within: float) -> None:
        postponed.append((after, work))

    with monkeypatch.context() as patched:
        patched.setattr(Channel, "send", keep)
        patched.setattr(Quorum, "ask", ask_interrupted)
        patched.setattr(Outage, "postpone", note)
        with pytest.raises(TimeIsUp):
            drive(port.acquire(mine, 0))
        drive(port.cancel(mine))
        for at, packed in under_way:
            with redis.Redis(port=at) as client:
                connection: Any = client.connection_pool.make_connection()
                connection.send_packed_command([packed])
                assert connection.read_response()
                connection.disconnect()
    assert len(left_on(servers)) == len(under_way) == len(servers)
    later = [undo for after, undo in postponed if after > 0]
    assert len(later) == len(servers), "not before it has come"
    for undo in later:
        undo()
    assert left_on(servers) == {}
    assert not any(node.unheard for node in port._quorum.nodes)


def interrupted(*_: object) -> bool:
    raise TimeIsUp


def vote(node: Any) -> Question:
    args = (claim().token, 1, node.who, 0, 30_000, "", "", "somebody", "")
    return Question(node, VOTE, node.keys(NAME), args)


def test_a_vote_that_was_left_on_a_connection_that_is_cut_off_may_come_late_as_well(three: Any) -> None:
    """A time limit cut off the vote of another caller, and an older one before it: that one counted as lost."""
    node = three[1].store.backend._nodes[0]
    left, over, mine = vote(node), vote(node), vote(node)
    node.unheard.clear()  # of another lock's
    channel = Channel(node, False)
    for each in (left, over):
        each.begin()
        each.channel, each.deadline = channel, now() + 60
        channel._questions.append(each)
    left.leave()
    over.wanted = False
    with pytest.raises(TimeIsUp):
        asking.ask_in_thread([mine], interrupted, SLACK, patient=False)
    assert node.unheard == {left.token, mine.token}, "one that was taken back already is kept by nobody"


def test_a_release_that_fails_is_sent_again_once_the_vote_has_come_that_it_takes_back(
    three: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was sent again at once, before the vote; and its token was remembered for as long as the process lived."""
    node = three[1].store.backend._nodes[0]
    postponed = list[float]()
    monkeypatch.setattr(Outage, "postpone", lambda _, work, *, after, within: postponed.append(after))
    node.unheard.add(token := claim().token)
    for _ in range(2):
        question = Question(node, RELEASE, node.keys(NAME), (token, "", 0, ""), undo_within=60)
        question.fail(BackendUnavailable("It is gone."))
    assert postponed == [node.timeout, 0.0]
    assert token not in node.unheard


def test_what_is_undone_late_does_not_queue(three: Any) -> None:
    """Who waited then may have gone. While its token stood in front of the others, no release was told to any."""
    servers, harness = three
    node, token = harness.store.backend._nodes[0], claim().token
    for waits in (1, ""):
        question = Question(node, RELEASE, node.keys(NAME), (token, 1, 0, waits), undo_within=60)
        question._undo()
    with redis.Redis(port=servers[0].port) as client:
        assert client.keys("*:waiting") == []
