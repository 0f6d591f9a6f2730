"""What stands in ZooKeeper: one node for each that has or wants a lock, in order, and nothing afterwards."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from kazoo.exceptions import NoNodeError

from distlock_web import BackendUnavailable, ConfigurationError, configure, lock
from distlock_web.backends.zookeeper import lock_queue, places
from distlock_web.backends.zookeeper.nodes import digest_of, in_order, name_of, path_of
from distlock_web.core.backend import Busy, Claim, Granted
from distlock_web.core.registry import registry
from distlock_web.core.runtime import THREADS, drive, new_token, now
from tests.support.callers import Beside
from tests.support.proxy import Proxy
from tests.support.waiting import LONG, SOON, eventually
from tests.support.zookeeper_server import ZooKeeperServer

pytestmark = pytest.mark.usefixtures("zookeeper_store")
NAME = "disLock:order:7"


def port() -> Any:
    return registry().store("default").port(THREADS)


def claim(expire: float = LONG, name: str = NAME) -> Claim:
    return Claim(name, new_token(), expire, "a holder")


def child_node(digest: str, number: int) -> str:
    return f"{digest}_{number:010d}"


def line_of(client: Any, name: str = NAME) -> list[str]:
    return sorted(client.get_children(path_of(name)), key=lambda node: node.rpartition("_")[2])


def test_a_free_lock_costs_two_writes_and_two_reads(zookeeper_server: ZooKeeperServer, client: Any) -> None:
    with lock("order:7"):
        pass  # makes the lock's own node
    changes, packets = client.exists(path_of(NAME)).cversion, zookeeper_server.count("zk_packets_received")
    for _ in range(20):
        with lock("order:7"):
            pass
    packets = zookeeper_server.count("zk_packets_received") - packets
    assert 20 * 4 <= packets <= 20 * 4 + 10, "pings, and our own questions"
    assert client.exists(path_of(NAME)).cversion - changes == 40, "one came and one went, each time"


def test_a_renewal_in_the_race_with_a_removal_wins_or_loses_once(client: Any) -> None:
    """Who finds a lease over removes the node in the version that it saw."""
    store: Any = registry().store("default").backend
    mine = claim(expire=3.0)
    drive(port().acquire(mine, 0))
    view = store._verbs._queue.look(NAME)
    eventually(lambda: store._verbs._queue.head(view).remaining <= 0, "its lease is over")
    seen = store._verbs._queue.head(view)
    client.set(seen.path, seen.record.dumps())  # the renewal that was on its way
    store._verbs._queue.touch()
    assert store._verbs._queue.judge(view, seen) is None, "by what it knew"
    assert len(line_of(client)) == 1, "but the renewal was first"
    assert isinstance(drive(port().acquire(claim(), 0)), Busy)
    eventually(lambda: isinstance(drive(port().acquire(claim(expire=5), 0)), Granted), "it ends, too")
    with pytest.raises(NoNodeError):
        client.set(seen.path, b"")  # a renewal that comes now


def _becomes_persistent(mine: Claim) -> None:
    assert drive(port().extend([mine._replace(expire=300)])) == [None]


def _cools_down(mine: Claim) -> None:
    assert drive(port().release(mine, 300)) is None


def _is_parked(mine: Claim) -> None:
    assert drive(port().extend([mine._replace(expire=30)])) == [None]
    registry().close()


@pytest.mark.parametrize("made_anew", [_becomes_persistent, _cools_down, _is_parked])
def test_who_saw_the_node_before_does_not_remove_the_one_that_was_made_in_its_place(
    client: Any, made_anew: Callable[[Claim], None]
) -> None:
    """Both have the same path and the same version: who was late removed a lease of five minutes."""
    store: Any = registry().store("default").backend
    mine = claim(expire=3.0)
    drive(port().acquire(mine, 0))
    assert drive(port().extend([mine])) == [None]
    view = store._verbs._queue.look(NAME)
    seen = store._verbs._queue.head(view)
    made_anew(mine)
    assert client.exists(seen.path).version == seen.stat.version
    eventually(lambda: store._verbs._clock.remaining(seen.stat, seen.record.expire) <= 0, "by what it saw it is over")
    store._verbs._queue.touch()
    assert store._verbs._queue.judge(view, replace(seen, remaining=0.0)) is None
    assert len(line_of(client)) == 1
    assert isinstance(drive(port().acquire(claim(), 0)), Busy)


def test_nor_does_it_begin_another_lease_for_it(client: Any) -> None:
    """It was first while it waited; who came behind it was to say that its lease had begun, and did so much later."""
    store: Any = registry().store("default").backend
    before, mine = claim(), claim(expire=10.0)
    drive(port().acquire(before, 0))
    busy = drive(port().acquire(mine, None))
    drive(port().release(before))
    view = store._verbs._queue.look(NAME)
    seen = store._verbs._queue.head(view)
    assert isinstance(drive(port().wait(mine, busy, LONG)), Granted)
    assert drive(port().extend([mine._replace(expire=300)])) == [None]  # it becomes persistent
    assert client.exists(seen.path).version == seen.stat.version
    store._verbs._queue.judge(view, seen)
    (shown,) = drive(port().inspect([NAME]))
    assert shown.remaining > 100


# Several writers of one lease --------------------------------------------------------------------------------------


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch, beside: Beside) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Do this in another thread, as far as its first request: that is sent when what this gives is called."""

    def begin(work: Callable[[], Any]) -> Callable[[], Any]:
        store: Any = registry().store("default").backend
        here, reckoned, go_on, send = threading.get_ident(), threading.Event(), threading.Event(), store._session.send

        def held_back(*requests: Any, timeout: float | None = None) -> list[Any]:
            if threading.get_ident() != here and not reckoned.is_set():
                reckoned.set()
                go_on.wait(SOON)
            answers: list[Any] = send(*requests, timeout=timeout)
            return answers

        monkeypatch.setattr(store._session, "send", held_back)
        done = beside(work)
        assert reckoned.wait(SOON)

        def finish() -> Any:
            go_on.set()
            return done.result(SOON)

        return finish

    return begin


def renewal(mine: Claim) -> Callable[[], Any]:
    return lambda: drive(registry().store("default").renewal_port().extend([mine], 5.0))


@pytest.mark.parametrize("longer", [8.0, 300.0])
@pytest.mark.parametrize("renewed_before", [False, True])
def test_a_renewal_that_is_sent_after_an_extension_does_not_shorten_it(
    late: Any, longer: float, renewed_before: bool
) -> None:
    """It was reckoned before: somebody else was let in. A longer one than the session is a node that is made anew."""
    mine = claim(expire=3.0)
    drive(port().acquire(mine, 0))
    if renewed_before:
        assert drive(port().extend([mine])) == [None]
    finish = late(renewal(mine))
    assert drive(port().extend([mine._replace(expire=longer)])) == [None]
    assert finish() == [None]
    (shown,) = drive(port().inspect([NAME]))
    assert longer / 2 < shown.remaining <= longer + 0.1
    assert drive(port().extend([mine])) == [None]
    assert drive(port().release(mine)) is None


def test_a_renewal_that_is_sent_after_a_release_does_not_end_its_cooldown(late: Any) -> None:
    mine = claim(expire=3.0)
    drive(port().acquire(mine, 0))
    finish = late(renewal(mine))
    assert drive(port().release(mine, 300)) is None
    assert finish() == ["expired"]
    (shown,) = drive(port().inspect([NAME]))
    assert shown.state == "cooldown"
    assert shown.remaining > 100


@pytest.mark.parametrize("first", ["park", "extend"])
def test_what_is_parked_while_it_is_extended_keeps_the_longer_lease(late: Any, client: Any, first: str) -> None:
    mine = claim(expire=8.0)
    drive(port().acquire(mine, 0))
    store: Any = registry().store("default").backend
    works = [store._verbs.park, renewal(mine._replace(expire=30))]
    if first == "park":
        works.reverse()
    finish = late(works[0])
    works[1]()
    finish()
    (node,) = line_of(client)
    stat = client.exists(f"{path_of(NAME)}/{node}")
    assert not stat.ephemeralOwner
    (shown,) = drive(port().inspect([NAME]))
    assert shown.remaining > 20


@pytest.mark.timing
def test_an_extension_whose_answer_was_lost_is_not_taken_back_by_a_renewal(proxied: Proxy) -> None:
    with lock("order:7"):
        pass
    mine = claim(expire=1.5)
    drive(port().acquire(mine, 0))
    proxied.lose_answer(b'"held"')
    with pytest.raises(BackendUnavailable):
        drive(port().extend([mine._replace(expire=30)]))
    assert proxied.lost == 1
    eventually(lambda: _renewed(mine), "the session goes on")
    (shown,) = drive(port().inspect([NAME]))
    assert shown.remaining > 20


def _renewed(mine: Claim) -> bool:
    try:
        return bool(drive(port().extend([mine])) == [None])
    except BackendUnavailable:
        return False


def test_what_is_made_anew_keeps_its_fence_and_what_is_known_of_the_one_before(client: Any) -> None:
    before, mine = claim(), claim(expire=10)
    first = drive(port().acquire(before, 0))
    assert drive(port().revoke(NAME, first.fence))
    granted = drive(port().acquire(mine, 0))
    _becomes_persistent(mine)
    (shown,) = drive(port().inspect([NAME]))
    assert shown.fence == granted.fence
    assert drive(port().extend([before])) == ["revoked"]


def test_tokens_are_not_in_zookeeper(client: Any) -> None:
    mine = claim(expire=10)
    drive(port().acquire(mine, 0))
    (node,) = line_of(client)
    data, stat = client.get(f"{path_of(NAME)}/{node}")
    assert mine.token not in node + data.decode()
    assert node.startswith(digest_of(mine.token))
    assert stat.ephemeralOwner, "what a session has goes with it"
    drive(port().release(mine))


def test_a_lease_longer_than_the_session_outlives_it(client: Any) -> None:
    """Its holder believes in it for so long, also when it is cut off: the node must not go with the session before."""
    mine = claim(expire=300)
    drive(port().acquire(mine, 0))
    (node,) = line_of(client)
    assert not client.exists(f"{path_of(NAME)}/{node}").ephemeralOwner
    longer = claim(expire=30, name="other")
    drive(port().acquire(longer, 0))
    assert drive(port().extend([longer._replace(expire=300)])) == [None]
    (node,) = line_of(client, "other")
    assert not client.exists(f"{path_of('other')}/{node}").ephemeralOwner


def test_what_was_never_released_is_removed_by_its_own_process(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "TIDY_EVERY", 0.05)
    drive(port().acquire(claim(expire=0.1), 0))
    cooling = claim(name="other")
    drive(port().acquire(cooling, 0))
    drive(port().release(cooling, 0.1))

    def gone() -> bool:
        with lock("a third"):
            return not line_of(client) and not line_of(client, "other")

    eventually(gone, "the nodes are removed")


def test_a_listing_removes_what_a_dead_process_left(client: Any) -> None:
    with lock("order:7"):
        pass
    data = json.dumps(["cooldown", 0.05, "a dead one", 0]).encode()
    client.create(f"{path_of(NAME)}/{child_node(digest_of('x'), 3)}", data)
    eventually(lambda: drive(port().inspect()) == [], "its time is over")
    with lock("another"):  # an answer of now: what time it is there
        assert [found.name for found in drive(port().inspect())] == ["disLock:another"]
    eventually(lambda: not line_of(client), "it is removed")


def test_a_fence_that_has_fallen_behind_the_time_is_raised(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy lock keeps its node for days; a store that is used instead begins at the time."""
    with lock("order:7") as lease:
        fences = [lease.fence or 0]
    threading.Event().wait(0.3)
    monkeypatch.setattr(lock_queue, "MAX_LAG", 100_000)  # microseconds
    for _ in range(5):
        mine = claim()
        answers = [drive(port().acquire(mine, 0)) for _ in range(2)]
        assert isinstance(answers[0], Granted)
        assert answers[0] == answers[1], "asked twice, it is the same"
        (shown,) = drive(port().inspect([NAME]))
        assert shown.fence == answers[0].fence
        fences.append(shown.fence or 0)
        drive(port().release(mine))
    assert fences == sorted(set(fences))
    assert fences[1] - fences[0] > 100_000, "with the time, and not the next number"


def test_a_revoked_waiter_that_is_first_has_lost_its_turn(client: Any) -> None:
    holder, waiting = claim(), claim()
    drive(port().acquire(holder, 0))
    busy = drive(port().acquire(waiting, None))
    drive(port().release(holder))
    (shown,) = drive(port().inspect([NAME]))
    assert drive(port().revoke(NAME, shown.fence))
    assert line_of(client) == []
    answer = drive(port().wait(waiting, busy, 5))  # it stands at the end of the line again
    assert isinstance(answer, Granted)
    assert answer.fence > shown.fence
    drive(port().release(waiting))


def test_what_is_held_outlives_the_close_of_the_store(client: Any) -> None:
    """Also what waits: it stands in the line again."""
    lease = lock("order:7", expire=30).acquire()
    waiting = claim()
    busy = drive(port().acquire(waiting, None))
    assert isinstance(busy, Busy)
    registry().close()
    (node,) = line_of(client)
    stat = client.exists(f"{path_of(NAME)}/{node}")
    assert not stat.ephemeralOwner
    lease.extend()
    begun = now()
    drive(port().wait(waiting, busy._replace(recheck_after=0.01), 5))
    assert len(line_of(client)) == 2
    lease.release()
    assert isinstance(drive(port().wait(waiting, busy, LONG)), Granted)
    assert now() - begun < SOON
    drive(port().release(waiting))


# Waiters that do not come when it is their turn ----------------------------------------------------------------------


@pytest.fixture
def absent(zookeeper_store: str, zookeeper_settings: dict[str, Any]) -> Any:
    """A port of another session, whose waiters do nothing unless they are asked: a process that was killed."""
    return configure({"default": zookeeper_settings, "absent": zookeeper_settings}).store("absent").port(THREADS)


@pytest.mark.slow
def test_those_of_one_process_that_is_gone_cost_the_next_one_turn(absent: Any, beside: Beside) -> None:
    """They cost a lease each, one after the other, until their session ended."""
    expire = 1.5
    holder = claim()
    drive(port().acquire(holder, 0))
    for _ in range(6):
        drive(absent.acquire(claim(expire=expire), None))
    waiter = beside(lock("order:7", expire=expire, wait=LONG).acquire)
    eventually(lambda: drive(port().inspect([NAME]))[0].waiters == 7, "it waits")
    drive(port().release(holder))
    begun = now()
    waiter.result(LONG).release()
    assert now() - begun < 3 * expire


def _passed_over(store: Any) -> None:
    """It is the turn of the first in the line, and is over; the next one looks."""
    view = store._verbs._queue.look(NAME)
    assert store._verbs._queue.judge(view, store._verbs._queue.head(view)).record.state == "offered"
    eventually(lambda: _judged(store, view), "its turn is over")


def _judged(store: Any, view: Any) -> bool:
    head = store._verbs._queue.head(view)
    return head is None or store._verbs._queue.judge(view, head) is None


def test_who_does_not_come_has_half_of_its_lease_for_that(absent: Any, client: Any) -> None:
    holder = claim()
    drive(port().acquire(holder, 0))
    drive(absent.acquire(claim(expire=30), None))
    drive(port().release(holder))
    assert isinstance(drive(port().acquire(claim(), 0)), Busy)
    (shown,) = drive(port().inspect([NAME]))
    assert 10 < shown.remaining <= 15
    assert shown.state == "held"


def test_who_is_passed_over_with_its_process_and_lives_stands_at_the_end_of_the_line(absent: Any, client: Any) -> None:
    store: Any = registry().store("default").backend
    holder, late, other, mine = claim(), claim(expire=0.5), claim(), claim()
    drive(port().acquire(holder, 0))
    drive(absent.acquire(late, None))
    busy = drive(absent.acquire(other, None))
    drive(port().acquire(mine, None))
    drive(port().release(holder))
    _passed_over(store)
    (node,) = line_of(client)
    assert node.startswith(digest_of(mine.token)), "both of them"
    assert isinstance(drive(port().acquire(mine, None)), Granted)
    assert isinstance(drive(absent.wait(other, busy._replace(recheck_after=0.01), 0.1)), Busy)
    drive(port().release(mine))
    assert isinstance(drive(absent.wait(other, busy, LONG)), Granted)


def test_one_that_has_just_come_is_not_passed_over(absent: Any, client: Any) -> None:
    """It may have the lock by then, and not have written that: alone in the line it need not."""
    store: Any = registry().store("default").backend
    holder, late = claim(), claim(expire=0.5)
    drive(port().acquire(holder, 0))
    drive(absent.acquire(late, None))
    come = registry().store("absent").backend._verbs._queue.join(claim())  # type: ignore[attr-defined]
    drive(port().release(holder))
    _passed_over(store)
    assert line_of(client) == [come.queue[-1].node]


def test_those_of_the_process_that_looks_stay_in_the_line(client: Any) -> None:
    """One of its threads was late; that it looks shows that it lives."""
    store: Any = registry().store("default").backend
    holder, late, mine = claim(), claim(expire=0.5), claim()
    for each, wait in ((holder, 0), (late, None), (mine, None)):
        drive(port().acquire(each, wait))
    drive(port().release(holder))
    _passed_over(store)
    (node,) = line_of(client)
    assert node.startswith(digest_of(mine.token))


# Answers that never came ----------------------------------------------------------------------------------------------


@pytest.fixture
def near(proxied: Proxy, zookeeper_settings: dict[str, Any]) -> Any:
    """A port of another session of usual length, past the proxy that the default store is behind."""
    behind = {"LOCATION": zookeeper_settings["LOCATION"].replace(_port_of(zookeeper_settings), str(proxied.port))}
    settings = {"default": {**behind, "OPTIONS": {"timeout": 0.5}}, "near": zookeeper_settings}
    found = configure(settings).store("near").port(THREADS)
    assert isinstance(drive(found.acquire(claim(name="warm"), 0)), Granted)
    _until_answered(lambda: drive(port().inspect()))
    return found


def _port_of(settings: dict[str, Any]) -> str:
    return str(settings["LOCATION"].rpartition(":")[2].partition("/")[0])


def _until_answered(ask: Callable[[], Any]) -> Any:
    answers: list[Any] = []

    def answered() -> bool:
        try:
            answers.append(ask())
        except BackendUnavailable:
            return False
        return True

    eventually(answered, "it is answered")
    return answers[0]


def _unsent(*_: object) -> Any:
    raise BackendUnavailable("ZooKeeper cannot be reached.")


def _says(client: Any, token: str) -> str:
    (node,) = [node for node in line_of(client) if node.startswith(digest_of(token))]
    return str(json.loads(client.get(f"{path_of(NAME)}/{node}")[0])[0])


@pytest.mark.parametrize(
    "lost", [b"", b'"claimed"', b'"waiting"', b'"held"', b'"claimed" "waiting" "held"', b"unsent", b'"claimed" unsent']
)
@pytest.mark.parametrize("leaves", ["before it came", "before it looks again", "after"])
def test_whichever_answer_is_lost_a_waiter_is_seen_to_wait_and_a_holder_to_hold(
    near: Any, proxied: Proxy, client: Any, monkeypatch: pytest.MonkeyPatch, lost: bytes, leaves: str
) -> None:
    """One whose "I wait" was not answered took the lock without writing it: the next one went past it. And one whose
    place was made without an answer never wrote that it waits: it was removed, as one whose lease was over."""
    holder, mine, behind = claim(), claim(expire=8), claim()

    def leave() -> None:
        if not left:
            left.append(drive(near.release(holder)))

    left: list[Any] = []
    drive(near.acquire(holder, 0))
    if leaves == "before it came":
        leave()
    for state in lost.split():
        if state == b"unsent":
            monkeypatch.setattr(lock_queue.LockQueue, "_send_watching", _unsent)
        else:
            proxied.lose_answer(state)
    try:
        answer: Any = drive(port().acquire(mine, None))
    except BackendUnavailable:
        answer = None
    monkeypatch.undo()
    if leaves == "before it looks again":
        leave()
    if not isinstance(answer, Granted):
        answer = _until_answered(lambda: drive(port().acquire(mine, None)))
    if leaves == "after":
        assert isinstance(answer, Busy)
        assert _says(client, mine.token) == "waiting"
        leave()
        answer = _until_answered(lambda: drive(port().acquire(mine, None)))
    assert isinstance(answer, Granted)
    assert _says(client, mine.token) in ("claimed", "held")
    busy = drive(near.acquire(behind, None))
    assert isinstance(busy, Busy)
    assert busy.remaining >= answer.since + mine.expire - now() - 0.01, "it is not let in while the other one holds"
    assert _until_answered(lambda: drive(port().release(mine))) is None
    assert isinstance(drive(near.acquire(behind, None)), Granted)


def test_a_line_goes_on_where_its_numbers_begin_again() -> None:
    nodes = [child_node("0" * 32, number) for number in (-(2**31) + 1, 2**31 - 1, -(2**31), 2**31 - 2)]
    assert [child.number for child in in_order([*nodes, "lost+found"])] == [
        2**31 - 2,
        2**31 - 1,
        -(2**31),
        -(2**31) + 1,
    ]


@pytest.mark.parametrize(
    "name", [".", "..", "a/b", "%2E", "%2F", "zookeeper", "ä", "🔒", "a b:c|d", "\ud800", "x" * 200]
)
def test_every_name_is_one_node(client: Any, name: str) -> None:
    path = path_of(name)
    assert path.count("/") == 2
    assert name_of(path.rpartition("/")[2]) == name
    mine = claim(name=name)
    assert isinstance(drive(port().acquire(mine, 0)), Granted)
    assert [found.name for found in drive(port().inspect())] == [name]
    drive(port().release(mine))


def test_a_stranger_in_the_line_is_said_and_not_removed(client: Any) -> None:
    with lock("order:7"):
        pass
    stranger = f"{path_of(NAME)}/{child_node(digest_of('x'), 0)}"
    client.create(stranger, b"<xml/>")
    with pytest.raises(ConfigurationError, match="no lock of distlock_web"):
        lock("order:7").acquire()
    assert client.exists(stranger)
    assert len(line_of(client)) == 1, "and we have left the line"


#: What the node of a lock says, and the one in its queue, if there is one.
STRANGERS: dict[str, tuple[bytes | None, ...]] = {
    "made by hand": (b"",),
    "without data": (None,),
    "of another program": (b"<xml/>",),
    "of a newer version": (b'{"format": 9, "base": 1}',),
    "in the queue, without data": (b'[1, ""]', None),
    "in the queue, of another program": (b'[1, ""]', b"<xml/>"),
    "in the queue, of a newer version": (b'[1, ""]', b'{"format": 9}'),
}


@pytest.mark.parametrize("component", ["disLock:strange", "%zz", "%ff", "a\u00e4"])
@pytest.mark.parametrize("stranger", STRANGERS)
def test_a_stranger_is_left_out_of_the_list(
    client: Any, caplog: pytest.LogCaptureFixture, stranger: str, component: str
) -> None:
    """One node made all other locks invisible, also to who would release one by force."""
    says, *in_queue = STRANGERS[stranger]
    path = f"/distlock/{component}"
    with lock("order:7"):
        client.create(path, says)
        for data in in_queue:
            client.create(f"{path}/{child_node(digest_of('x'), 0)}", data)
        assert [found.name for found in drive(port().inspect())] == [NAME]
        assert [found.name for found in drive(port().inspect([NAME]))] == [NAME]
        if component in ("disLock:strange", "%ff"):  # the others are read as another name's
            assert path in caplog.text
        if component == "disLock:strange":
            with pytest.raises(ConfigurationError, match=r"no lock of distlock_web|newer version"):
                drive(port().inspect([component]))
            for both in ([component, NAME], [NAME, component]):
                assert [found.name for found in drive(port().inspect(both))] == [NAME]
    client.delete(path, recursive=True)


@pytest.mark.parametrize("first", ["done", "not done", "not done, and removed"])
def test_a_release_whose_answer_was_lost_is_asked_for_again_after_the_lease(
    client: Any, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """By the lease alone the lock seemed to be lost, and its cooldown was removed. What others had removed was kept."""
    monkeypatch.setattr(places, "TIDY_EVERY", 0.0)
    store: Any = registry().store("default").backend
    mine, send = claim(), store._session.send
    assert isinstance(drive(port().acquire(mine, 0)), Granted)

    def unanswered(*requests: Any, **options: Any) -> Any:
        if first == "done":
            send(*requests, **options)
        raise BackendUnavailable("No answer.")

    with monkeypatch.context() as patch:
        patch.setattr(store._session, "send", unanswered)
        with pytest.raises(BackendUnavailable):
            drive(port().release(mine, LONG))
    place = store._verbs._places.get(mine.token)
    place.lease = place.lease._replace(expire=0.0, since=now() - LONG)  # it is over, by now
    if first == "not done, and removed":
        client.delete(place.path)
    for _ in range(2):
        with lock("another"):
            pass  # removes what has ended
    lost = first == "not done, and removed"
    for _ in range(2):
        assert drive(port().release(mine, LONG)) == ("expired" if lost else None)
    assert [line.state for line in drive(port().inspect([NAME]))] == ([] if lost else ["cooldown"])
