"""What can go wrong, as types. A class's docstring is its default message."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, get_args

from .request_id import HolderInfo

logger = logging.getLogger("distlock_web")

#: Why a lease is lost. A store tells the first three; ``ended``: its own block has ended, or one around it.
LossReason: TypeAlias = Literal["expired", "taken", "revoked", "unreachable", "ended", "forked"]
#: What a client can send a value in.
Part: TypeAlias = Literal["header", "field"]


def add_note(error: BaseException, text: str, *args: object, fields: Mapping[str, object] | None = None) -> None:
    """Note this at somebody's error, which is raised whatever happens here; log it where that takes no note.

    ``fields``: of that log record, for the lock that it is about.
    """
    try:
        error.add_note("distlock_web: " + text % args)
    except Exception as failure:  # it is a frozen dataclass, or has its own __notes__
        logger.warning(text + " (%s takes no note: %s)", *args, type(error).__name__, failure, extra=fields)


class DistLockError(Exception):
    """A distributed lock failed."""

    #: For ``extra=`` of a log record: which lock was refused. Empty: no lock of this process was.
    log_fields: Mapping[str, object] = MappingProxyType({})

    def __init__(self, message: str | None = None, *, name: str | None = None) -> None:
        text = message or (type(self).__doc__ or "").strip().partition("\n")[0]
        super().__init__(text)
        self.name = name

    def __reduce__(self) -> tuple[Any, ...]:
        # Celery and multiprocessing pickle exceptions, and BaseException's own way loses keyword arguments.
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(cls: type[DistLockError], args: tuple[Any, ...], state: dict[str, Any]) -> DistLockError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class ConfigurationError(DistLockError, ValueError):
    """A setting, an option or a call is wrong; the message names it and says what would be right."""


class KeyUnavailable(DistLockError, ValueError):
    """The key of the lock cannot be made for this call: a value that it needs is missing, such as a request's.

    ``missing`` is what the client has to send, one of these: ``[("field", "id"), ("header", "X-Tenant")]``. Raises
    ``ConfigurationError`` if it is anything else.
    """

    def __init__(
        self, message: str | None = None, *, name: str | None = None, missing: Sequence[tuple[Part, str]] = ()
    ) -> None:
        super().__init__(message, name=name)
        if not _are_pairs(missing):
            raise ConfigurationError(f'missing is {missing!r}; it has to be pairs such as [("field", "id")].')
        #: What the client has to send, one of these: ``("header", "Idempotency-Key")``. Empty if that is not known.
        self.missing = tuple((part, name) for part, name in missing)


def _are_pairs(missing: object) -> bool:
    pairs = missing if isinstance(missing, list | tuple) else [None]
    return all(
        isinstance(pair, list | tuple) and len(pair) == 2 and pair[0] in get_args(Part) and isinstance(pair[1], str)
        for pair in pairs
    )


class LockBusy(DistLockError):
    """Another caller holds the lock."""

    def __init__(
        self,
        message: str | None = None,
        *,
        name: str | None = None,
        retry_after: float = 0.0,
        holder: HolderInfo | None = None,
        usual: float | None = None,
        held_for: float | None = None,
        record: str | None = None,
        limit: int = 1,
        full: bool = False,
    ) -> None:
        super().__init__(message, name=name)
        #: Seconds after which the present holder's lease ends unless it is renewed.
        self.retry_after = retry_after
        #: Who has it, as far as the store can say: for the log, not for the client.
        self.holder = holder
        #: Seconds that it was held lately, each time (the median, in this process). None: nothing is known of that.
        self.usual = usual
        #: Seconds that the present holder has had it, when we asked. None: the store does not tell.
        self.held_for = held_for
        #: What ``once`` has kept of the run that is done. None: it is not done.
        self.record = record
        #: How many may hold it at once, as the caller has asked for it.
        self.limit = limit
        #: As many wait for it as ``max_waiters`` lets: the caller was not let into the queue.
        self.full = full

    @property
    def estimate(self) -> float:
        """Seconds after which trying again makes sense: as long as it usually takes, no longer than the lease."""
        return self.retry_after if self.usual is None else min(self.usual, self.retry_after)


class KeyReused(DistLockError):
    """The key of this call was used for another one: other data, another caller or another address."""


class NotHeld(DistLockError):
    """This lease has already been released or handed over."""


class LeaseLost(DistLockError):
    """The lock was lost while its block was still running."""

    def __init__(
        self, message: str | None = None, *, name: str | None = None, reason: LossReason | None = None
    ) -> None:
        super().__init__(message, name=name)
        self.reason = reason


class BackendUnavailable(DistLockError):
    """The store of the locks does not answer."""


class NotSent(BackendUnavailable):
    """The store of the locks was not asked.

    For authors of stores: the request was not sent, or what was sent was undone. Nothing of this verb is done, for
    sure, and the same request would only wait again. So it is neither repeated nor cancelled, except a release that
    leaves something (``cooldown``): that is asked for once more.
    """


class OpenTransactionWarning(RuntimeWarning):
    """A lock is released before the transaction around it commits: others do not see yet what was done under it."""


class StaleFence(DistLockError):
    """A newer holder has written here: this write came too late and was refused."""
