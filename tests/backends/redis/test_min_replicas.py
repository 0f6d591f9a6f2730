"""``min_replicas``: a lock counts only when so many replicas have it, however it was got; else it is given back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis

from distlock_web import BackendUnavailable, ConfigurationError, LockBusy, configure, lock
from distlock_web.backends.redis.scripts import ACQUIRE
from distlock_web.backends.redis.transport.errors import ErrorReply
from distlock_web.core.runtime import now
from distlock_web.testing.harness import Harness
from distlock_web.testing.servers import RedisServer
from tests.support.callers import Beside
from tests.support.modes import in_both_modes
from tests.support.redis_lock import KEY, documented_rules, held, left_behind, the_lock, until_queued
from tests.support.stores.sentinel import SentinelSetup
from tests.support.waiting import LONG, SLACK, SOON, eventually

TIMEOUT = 0.5
OPTIONS = {"min_replicas": 2, "replica_timeout": TIMEOUT}


class Replicated:
    """A master with two replicas, and the default store on it, for which both have to have a lock."""

    def __init__(self, setup: SentinelSetup) -> None:
        self.client = setup.clients[0]
        self.url = setup.servers[0].url
        self._replica = setup.servers[1]

    def configure(self, **options: Any) -> None:
        configure({"default": {"LOCATION": self.url, "OPTIONS": options}})

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """One of the replicas does not answer."""
        self._replica.pause()
        try:
            yield
        finally:
            self._replica.resume()

    def waits(self) -> int:
        """How often WAIT was sent."""
        stats: Any = self.client.info("commandstats")
        return int(stats.get("cmdstat_wait", {"calls": 0})["calls"])


@pytest.fixture
def replicated(sentinel_setup: SentinelSetup) -> Replicated:
    made = Replicated(sentinel_setup)
    made.client.flushall()
    assert made.client.wait(2, 20_000) == 2
    made.client.config_resetstat()
    made.configure(**OPTIONS)
    return made


@in_both_modes
async def test_what_too_few_replicas_have_is_refused_in_time_and_given_back(
    harness: Harness, replicated: Replicated
) -> None:
    await harness.release(await harness.acquire(the_lock()))
    with replicated.frozen():
        begun = now()
        with pytest.raises(BackendUnavailable, match="1 of the 2 replicas asked for by min_replicas"):
            await harness.acquire(the_lock())
        assert now() - begun < 2 * TIMEOUT + SLACK
        assert left_behind(replicated.client) == {}
    await _again(harness)


async def _again(harness: Harness) -> None:
    """When the replicas answer again, locks are to be had again: the time-out may be a short one at first."""
    for _ in range(100):
        try:
            await harness.release(await harness.acquire(the_lock(wait=LONG)))
            return
        except BackendUnavailable:
            await harness.sleep(0.05)
    raise AssertionError("the replicas answer, and no lock counts")


@in_both_modes
async def test_that_it_is_somebody_elses_needs_no_replicas(harness: Harness, replicated: Replicated) -> None:
    holder = await harness.acquire(the_lock())
    with replicated.frozen(), pytest.raises(LockBusy):
        await harness.unrelated(lambda: harness.acquire(the_lock())).result()
    await harness.release(holder)


@in_both_modes
async def test_a_lock_that_was_handed_over_is_confirmed_before_its_block_begins(
    harness: Harness, replicated: Replicated
) -> None:
    """The server has handed it over, and a failover now would hand it to another: nobody is inside meanwhile."""
    entered: list[float] = []

    async def wait() -> None:
        async with harness.inside(the_lock(wait=LONG)):
            entered.append(now())

    holder = await harness.acquire(the_lock())
    owner = (held(replicated.client) or {})["owner"]
    waiting = harness.unrelated(wait)
    await until_queued(harness, replicated.client)
    with replicated.frozen():
        await harness.release(holder)

        async def handed_over() -> bool:
            return (held(replicated.client) or {"owner": owner})["owner"] != owner

        await harness.until(handed_over)
        await harness.sleep(2 * TIMEOUT)
        assert entered == []
        thawed = now()
    await waiting.result()
    assert entered[0] >= thawed
    assert left_behind(replicated.client) == {}


@pytest.mark.timing
@in_both_modes
async def test_who_waits_in_vain_for_the_replicas_leaves_the_lock_to_others(
    harness: Harness, replicated: Replicated
) -> None:
    holder = await harness.acquire(the_lock())
    waiting = harness.unrelated(lambda: harness.acquire(the_lock(wait=1.0)))
    await until_queued(harness, replicated.client)
    with replicated.frozen():
        await harness.release(holder)
        with pytest.raises(BackendUnavailable, match="min_replicas"):
            await waiting.result()
        assert left_behind(replicated.client) == {}


@in_both_modes
async def test_an_extension_that_too_few_have_leaves_the_lease_as_it_was(
    harness: Harness, replicated: Replicated
) -> None:
    lease = await harness.acquire(the_lock(expire=LONG))
    with replicated.frozen():
        with pytest.raises(BackendUnavailable, match="min_replicas"):
            await harness.extend(lease, 10 * LONG)
        assert lease.remaining < LONG, "what a failover would forget is not believed"
        assert lease.state != "lost"
    for _ in range(100):
        try:
            await harness.extend(lease, 10 * LONG)
            break
        except BackendUnavailable:
            await harness.sleep(0.05)
    assert lease.remaining > 5 * LONG
    await harness.release(lease)


@in_both_modes
async def test_what_was_detached_is_attached_only_where_enough_have_it(
    harness: Harness, replicated: Replicated
) -> None:
    ticket = await harness.detach(await harness.acquire(the_lock()))
    with replicated.frozen(), pytest.raises(BackendUnavailable, match="min_replicas"):
        await harness.attach(ticket)
    assert left_behind(replicated.client) == {}
    await _again(harness)
    ticket = await harness.detach(await harness.acquire(the_lock()))
    await harness.release(await harness.attach(ticket))


@in_both_modes
async def test_what_is_detached_is_confirmed(harness: Harness, replicated: Replicated) -> None:
    """A failover forgot the ticket, when the task that it was sent to came: nobody could run it any more."""
    lease = await harness.acquire(the_lock())
    with replicated.frozen(), pytest.raises(BackendUnavailable, match="min_replicas"):
        await harness.detach(lease)
    assert left_behind(replicated.client) == {}, "nobody has the ticket"


def test_an_error_of_the_server_is_not_blamed_on_the_replicas() -> None:
    gives = ACQUIRE.gives
    assert gives is not None
    assert not gives(ErrorReply("NOPERM this user has no permissions"))
    assert not gives(0)
    assert gives(1)


def test_tasks_that_ask_at_the_same_time_share_a_confirmation(replicated: Replicated) -> None:
    """One WAIT each, one behind the other on their connection, would make a thousand tasks wait for a thousand."""
    crowd = 200

    replicated.configure(**{**OPTIONS, "replica_timeout": SOON, "socket_timeout": 2 * SOON})

    async def take(number: int) -> None:
        async with lock(f"{KEY}:{number}"):
            pass

    async def main() -> None:
        await take(crowd)
        before = replicated.waits()
        await asyncio.gather(*(take(number) for number in range(crowd)))
        assert 0 < replicated.waits() - before < crowd / 4

    asyncio.run(main())


@in_both_modes
async def test_the_script_and_the_wait_leave_in_one_write(harness: Harness, replicated: Replicated) -> None:
    await harness.release(await harness.acquire(the_lock()))
    monitor = replicated.client.monitor()
    with monitor as seen:
        seen.next_command()  # of its own
        await harness.release(await harness.acquire(the_lock()))
        words: list[str] = []
        sent = iter(seen.listen())
        while len(words) < 3:
            command = next(sent)
            if command["client_type"] != "lua":
                words += [command["command"].split()[0].upper()] if command["command"][:4] in ("EVAL", "WAIT") else []
    assert words == ["EVALSHA", "WAIT", "EVALSHA"]


def test_a_master_that_is_demoted_meanwhile(make_redis: Callable[..., RedisServer], beside: Beside) -> None:
    """The server says UNBLOCKED to whom it has kept waiting: not an error that nobody knows."""
    first, second = make_redis(), make_redis()
    options = {"min_replicas": 1, "replica_timeout": 5, "socket_timeout": 10}
    configure({"default": {"LOCATION": first.url, "OPTIONS": options}})
    with redis.Redis.from_url(first.url) as client:
        waiting = beside(lock(KEY).acquire)
        eventually(lambda: client.info("clients")["blocked_clients"] == 1, "somebody waits for replicas")
        client.replicaof("127.0.0.1", str(second.port))
        with pytest.raises(BackendUnavailable, match="replica"):
            waiting.result(SOON)


def test_the_rights_in_the_documents_suffice(replicated: Replicated) -> None:
    replicated.client.execute_command("ACL", "SETUSER", "locks", "on", ">pw", *documented_rules())
    configure({"default": {"LOCATION": replicated.url, "OPTIONS": {**OPTIONS, "username": "locks", "password": "pw"}}})
    with lock(KEY):
        pass


# Settings -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_replicas": 0}, "min_replicas.*is 0; it has to be a whole number, 1 or more"),
        ({"min_replicas": True}, "min_replicas.*is True"),
        ({"min_replicas": "two"}, "min_replicas.*is 'two'"),
        ({"min_replicas": 1.5}, "min_replicas.*is 1.5"),
        ({"replica_timeout": 1}, "replica_timeout.*is for min_replicas, which is not given"),
        ({"min_replicas": 1, "replica_timeout": 0}, "replica_timeout.*is 0"),
        ({"min_replicas": 1, "replica_timeout": 0.6}, "replica_timeout.*at most half of socket_timeout, which is 1 s"),
        ({"min_replica": 1}, "Did you mean 'min_replicas'"),
    ],
)
def test_what_cannot_be_right_is_refused(options: dict[str, Any], message: str) -> None:
    configure({"default": {"LOCATION": "redis://127.0.0.1:1", "OPTIONS": options}})
    with pytest.raises(ConfigurationError, match=message), lock("a"):
        pass


def test_a_wrong_time_of_the_url_is_not_blamed_on_the_options() -> None:
    configure({"default": {"LOCATION": "redis://127.0.0.1:1?min_replicas=1&replica_timeout=0.6"}})
    with pytest.raises(ConfigurationError, match=r"^DISTLOCK\['default'\]: replica_timeout is 0\.6; "), lock("a"):
        pass
