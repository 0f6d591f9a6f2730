"""What other code does while we connect: it gives credentials, or signs in by itself. A failure of it is an outage."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from inspect import iscoroutinefunction
from traceback import walk_tb
from typing import Any

from redis import exceptions as driver
from redis.credentials import CredentialProvider

#: What Python raises where code is wrong. It stays what it is: no 503 is to hide it, and no lock to be left out for it.
BUGS = (AttributeError, ImportError, NameError, NotImplementedError, TypeError)


def guarded(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """These keywords of a connection, where what other code raises is a failure to connect."""
    given = dict(kwargs)
    if (provider := given.get("credential_provider")) is not None:
        given["credential_provider"] = _Guarded(provider)
    if (sign_in := given.get("redis_connect_func")) is not None:
        given["redis_connect_func"] = _guarded_call(sign_in)
    return given


class _Guarded(CredentialProvider):
    def __init__(self, provider: CredentialProvider) -> None:
        self._provider = provider

    def get_credentials(self) -> Any:
        with _no_credentials(TimeoutError):
            return self._provider.get_credentials()

    async def get_credentials_async(self) -> Any:
        with _no_credentials(TimeoutError):
            return await self._provider.get_credentials_async()


def _guarded_call(sign_in: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def call(connection: Any) -> None:
        with _no_credentials(OSError):  # the connection raises it, too
            sign_in(connection)

    # Threads renew and listen for an event loop, too. So one that has to be awaited signs in nobody.
    return sign_in if iscoroutinefunction(sign_in) else call


class NoCredentials(driver.ConnectionError):
    """Words of another service: what Redis and the TLS library mean by the same ones is not meant."""


@contextmanager
def _no_credentials(connecting: type[Exception]) -> Iterator[None]:
    """A token service that is down raises what its own client likes: nobody would take that for an outage.

    ``connecting``: what stays as it is. One that hangs makes callers wait as a server does that hangs.
    """
    try:
        yield
    except (connecting, driver.RedisError, *BUGS):
        raise
    except Exception as error:
        if _is_of_a_signal(error):
            raise
        raise NoCredentials(f"no credentials: {type(error).__name__}: {error}") from error


def _is_of_a_signal(error: Exception) -> bool:
    """A handler has raised it, as a worker's time limit does: the caller has to hear it as it is."""
    handlers = {getattr(signal.getsignal(each), "__code__", None) for each in signal.valid_signals()}
    return any(frame.f_code in handlers for frame, _ in walk_tb(error.__traceback__))
