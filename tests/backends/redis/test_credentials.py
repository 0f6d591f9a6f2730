"""What gives credentials to redis-py's connections may fail, as a token service that is down. That is an outage."""

from __future__ import annotations

import gc
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from redis.credentials import CredentialProvider

from distlock_web import BackendUnavailable, configure, lock
from distlock_web.core.backend import Granted
from distlock_web.testing.contract.base import claim
from distlock_web.testing.harness import HARNESSES
from distlock_web.testing.servers import RedisServer
from tests.support.stores.redlock import redlock_url
from tests.support.waiting import SLACK


class TokenServiceDown(Exception):
    """As a cloud's client raises it."""


class Tokens(CredentialProvider):
    """Gives a name and a password, or raises."""

    def __init__(self) -> None:
        self.fail: Callable[[], None] = lambda: None

    def get_credentials(self) -> tuple[str, str]:
        self.fail()
        return "default", "secret"

    async def get_credentials_async(self) -> tuple[str, str]:
        return self.get_credentials()


def connect_func(tokens: Tokens) -> dict[str, Any]:
    """As clients of clouds that sign in by themselves."""

    def sign_in(connection: Any) -> None:
        tokens.get_credentials()
        connection._parser.on_connect(connection)
        connection.send_command("AUTH", "secret", check_health=False)  # first: some servers refuse CLIENT before it
        connection.read_response()
        connection.on_connect()

    return {"redis_connect_func": sign_in}


def fail() -> None:
    raise TokenServiceDown("no route to the token service")


@pytest.fixture
def server(make_redis: Callable[..., RedisServer]) -> RedisServer:
    return make_redis("--requirepass", "secret")


@pytest.fixture(params=["provider, threads", "provider, asyncio", "connect_func, threads"])
def signed_in(request: pytest.FixtureRequest, server: RedisServer) -> Iterator[tuple[Tokens, Any]]:
    """What gives the credentials, and a harness over a store that wants them."""
    tokens, (way, mode) = Tokens(), request.param.split(", ")
    options = {"credential_provider": tokens} if way == "provider" else connect_func(tokens)
    location = f"redis://127.0.0.1:{server.port}/0"
    registry = configure({"default": {"LOCATION": location, "OPTIONS": options}})
    yield tokens, HARNESSES[mode](registry.store("default"))
    registry.close()


def test_credentials_that_cannot_be_had_are_an_outage(signed_in: Any) -> None:
    """It was an error of the site: a 500, also where locks were to be left out while the store cannot be reached."""
    tokens, harness = signed_in

    async def case() -> None:
        tokens.fail = fail
        with pytest.raises(BackendUnavailable, match="no credentials: TokenServiceDown: no route to the tok") as caught:
            await harness.acquire(lock("a", expire=30))
        assert isinstance(caught.value.__cause__, redis.ConnectionError)
        assert isinstance(caught.value.__cause__.__cause__, TokenServiceDown)
        tokens.fail = lambda: None
        await harness.release(await harness.acquire(lock("a", expire=30)))

    harness.run(case())


def test_a_block_that_has_succeeded_does_not_fail_for_them(server: RedisServer, signed_in: Any) -> None:
    tokens, harness = signed_in

    async def case() -> None:
        async with harness.inside(lock("a", expire=30)):
            with redis.Redis(port=server.port, password="secret") as client:
                client.client_kill_filter(_type="normal", skipme=True)
            tokens.fail = fail
        tokens.fail = lambda: None  # what was put off is done

    harness.run(case())


@pytest.mark.parametrize("mode", sorted(HARNESSES))
@pytest.mark.parametrize(
    "error",
    [
        TokenServiceDown("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed"),
        TokenServiceDown("unauthenticated"),
        OSError("unauthenticated"),
    ],
    ids=repr,
)
def test_words_of_the_token_service_are_not_taken_for_words_of_redis(
    server: RedisServer, mode: str, error: Exception
) -> None:
    """Redis had no trusted certificate then, or wanted a password: an error of the settings, and no outage."""
    tokens = Tokens()
    location = f"redis://127.0.0.1:{server.port}/0"
    registry = configure({"default": {"LOCATION": location, "OPTIONS": {"credential_provider": tokens}}})
    harness = HARNESSES[mode](registry.store("default"))

    def refuse() -> None:
        raise error

    async def case() -> None:
        tokens.fail = refuse
        with pytest.raises(BackendUnavailable, match=f"does not answer: no credentials: {type(error).__name__}: "):
            await harness.acquire(lock("a", expire=30))
        tokens.fail = lambda: None

    harness.run(case())
    registry.close()


def mistake() -> None:
    raise TypeError("unsupported operand")


def test_a_bug_of_what_gives_them_is_raised_as_it_is(signed_in: Any) -> None:
    tokens, harness = signed_in

    async def case() -> None:
        tokens.fail = mistake
        with pytest.raises(TypeError, match="unsupported operand"):
            await harness.acquire(lock("a", expire=30))

    harness.run(case())
    server = harness.store.backend.server
    assert not server.ambiguous
    assert not server.outage._postponed, "nothing was sent, and the thread met the bug ten times a second"


@pytest.mark.parametrize("mode", sorted(HARNESSES))
def test_a_bug_that_each_node_of_a_quorum_meets_is_raised_as_it_is(
    make_redis: Callable[..., RedisServer], mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    """An event loop was told that no node had answered in time, and asyncio logged the bug once for each node."""
    tokens = Tokens()
    tokens.fail = mistake
    location = redlock_url([make_redis() for _ in range(3)], socket_timeout=SLACK, socket_connect_timeout=SLACK)
    registry = configure({"default": {"LOCATION": location, "OPTIONS": {"credential_provider": tokens}}})
    harness = HARNESSES[mode](registry.store("default"))

    async def case() -> None:
        with pytest.raises(TypeError, match="unsupported operand"):
            await harness.acquire(lock("a", expire=30))

    harness.run(case())
    registry.close()
    gc.collect()
    assert "never retrieved" not in caplog.text


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="POSIX")
def test_a_time_limit_that_comes_meanwhile_is_raised_as_it_is(server: RedisServer) -> None:
    """A token service that hangs is what it is most likely to end."""

    class TimeIsUp(Exception):
        pass

    def handler(*_: object) -> None:
        raise TimeIsUp

    tokens = Tokens()
    tokens.fail = lambda: signal.raise_signal(signal.SIGUSR1)
    location = f"redis://127.0.0.1:{server.port}/0"
    registry = configure({"default": {"LOCATION": location, "OPTIONS": {"credential_provider": tokens}}})
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(TimeIsUp):
            lock("a", expire=30).acquire()
    finally:
        signal.signal(signal.SIGUSR1, before)
        tokens.fail = lambda: None
        registry.close()


@pytest.mark.parametrize("mode", sorted(HARNESSES))
def test_one_node_of_a_quorum_without_credentials_is_one_node_that_is_gone(
    make_redis: Callable[..., RedisServer], mode: str
) -> None:
    """Its failure ended the whole acquisition."""
    servers = [make_redis() for _ in range(3)]
    for each in servers:
        with redis.Redis(port=each.port) as client:
            client.config_set("requirepass", "secret")
    asked: list[None] = []
    tokens = Tokens()

    def first_only() -> None:
        asked.append(None)
        if len(asked) == 1:
            fail()

    tokens.fail = first_only
    settings = {
        "LOCATION": redlock_url(servers, socket_timeout=SLACK, socket_connect_timeout=SLACK),
        "OPTIONS": {"credential_provider": tokens},
    }
    registry = configure({"default": settings})
    harness = HARNESSES[mode](registry.store("default"))

    async def case() -> None:
        mine = claim(name="disLock:a")
        assert isinstance(await harness.port.acquire(mine, 0), Granted)
        assert await harness.port.release(mine) is None

    harness.run(case())
    registry.close()
