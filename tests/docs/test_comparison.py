"""README's comparison says of other libraries what their code says."""

from __future__ import annotations

import inspect


def defaults(function: object) -> dict[str, object]:
    assert callable(function)
    return {name: parameter.default for name, parameter in inspect.signature(function).parameters.items()}


def test_of_redis_py() -> None:
    from redis.exceptions import LockNotOwnedError
    from redis.lock import Lock

    assert defaults(Lock).items() >= {"timeout": None, "sleep": 0.1, "blocking_timeout": None}.items()
    assert "sleep(sleep)" in inspect.getsource(Lock.acquire)  # between two questions
    assert LockNotOwnedError.__name__ in inspect.getsource(Lock.do_release)


def test_of_django_redis() -> None:
    from django_redis.client.default import DefaultClient

    assert "client.lock(" in inspect.getsource(DefaultClient.lock)
    assert defaults(DefaultClient.lock).items() >= {"timeout": None, "sleep": 0.1}.items()


def test_of_python_redis_lock() -> None:
    import redis_lock

    assert defaults(redis_lock.Lock).items() >= {"expire": None, "auto_renewal": False}.items()
    assert "blpop" in inspect.getsource(redis_lock.Lock.acquire)
    assert "threading.Thread(" in inspect.getsource(redis_lock.Lock._start_lock_renewer)  # by each lock
    assert "NotAcquired" in inspect.getsource(redis_lock.Lock.release)


def test_of_pottery() -> None:
    import pottery
    from pottery import Redlock

    assert (Redlock._AUTO_RELEASE_TIME, Redlock._NUM_EXTENSIONS, Redlock._RETRY_DELAY) == (10, 3, 0.2)
    assert "random.uniform(0, self._RETRY_DELAY)" in inspect.getsource(Redlock)
    assert issubclass(pottery.ReleaseUnlockedLock, Exception)
