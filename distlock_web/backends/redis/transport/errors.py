"""Errors of the server and of redis-py → ours: what happened, and what to do."""

from __future__ import annotations

import asyncio
import re

from redis import exceptions as driver

from ....core.errors import BackendUnavailable, ConfigurationError, DistLockError, NotSent
from ....core.formats import refusal
from .address import RedisAddress
from .credentials import BUGS, NoCredentials

#: What a connection raises that breaks, or cannot be opened.
FAILURES = (OSError, driver.RedisError)
#: What it raises where the other side has ended it.
ENDED = (ConnectionError, driver.ConnectionError)
#: What it raises where nothing came in time.
TIMEOUTS = (TimeoutError, driver.TimeoutError)

#: The word that the server put in front, and that redis-py took off when it chose the class.
_WORD_OF = {
    driver.NoScriptError: "NOSCRIPT",
    driver.ReadOnlyError: "READONLY",
    driver.BusyLoadingError: "LOADING",
    driver.MasterDownError: "MASTERDOWN",
    driver.OutOfMemoryError: "OOM",
    driver.ClusterDownError: "CLUSTERDOWN",
    driver.ClusterCrossSlotError: "CROSSSLOT",
    driver.MovedError: "MOVED",
    driver.AskError: "ASK",
    driver.TryAgainError: "TRYAGAIN",
    driver.NoPermissionError: "NOPERM",
    driver.AuthenticationWrongNumberOfArgsError: "NOAUTH",
}


class Misconfigured(driver.RedisError):
    """What an address finds wrong with the settings when it connects."""


class TooFewReplicas(BackendUnavailable):
    """The server did what it was asked, and too few replicas have it."""


class ErrorReply(Exception):
    """The server answered with an error: its text."""

    @classmethod
    def from_driver(cls, error: driver.RedisError) -> ErrorReply:
        """What the server said, of redis-py's exception."""
        word = next((word for kind, word in _WORD_OF.items() if isinstance(error, kind)), "")
        text = str(error)
        return cls(text if word in text else f"{word} {text}")

    @property
    def no_script(self) -> bool:
        return str(self).startswith("NOSCRIPT")

    @property
    def not_primary(self) -> bool:
        """This server is not, or not yet, the one that takes writes: a failover has moved what we look for."""
        return _MOVED.search(str(self)) is not None


#: What a server cannot do now.
_NOT_NOW = {
    "READONLY": "is a replica, or a master that was demoted: it accepts no writes",
    "LOADING": "is still loading its data",
    "OOM": "is full (maxmemory) and refuses to store the lock",
    "BUSY": "is busy running a script",
    "MASTERDOWN": "is a replica without its master",
    "MISCONF": "cannot write to its disk and therefore refuses writes",
    "UNBLOCKED": "was demoted to a replica while it waited for its replicas",
    "NOREPLICAS": "has fewer replicas than its min-replicas-to-write",
    "CLUSTERDOWN": "belongs to a cluster that is down",
}
_NOT_EVER = {
    "WRONGTYPE": "has a key of another type under the lock's name: another program uses this PREFIX",
    "NOAUTH": "wants a password: put it into LOCATION (redis://:password@host) or OPTIONS",
    "WRONGPASS": "does not accept this user name and password",
    "MOVED": "belongs to a Redis Cluster: its LOCATION begins with redis+cluster://",
    "CROSSSLOT": "belongs to a Redis Cluster: its LOCATION begins with redis+cluster://",
    "NOPERM": (
        "does not allow this user what a lock needs: ACL SETUSER <name> resetchannels ~<PREFIX>* ~{<PREFIX>* "
        "&distlock:wake:* +@scripting +@string +@hash +@sortedset +@keyspace +@connection +@pubsub +time -@dangerous"
    ),
}
#: What it says without such a word in front.
_IN_PHRASES = {
    "unauthenticated": _NOT_EVER["NOAUTH"],  # a call of a script is longer than what it reads before a password came
    "executing the script can't run": _NOT_EVER["NOPERM"],  # Redis 7.0
    "without any password": "has no password: remove the one in LOCATION or OPTIONS",
    "tells no run_id": (
        "does not say in INFO which run of the server it is (run_id), so nobody notices that it has restarted: it "
        "cannot be a node of Redlock, unless restart_delay is 0"
    ),
    "DB index is out of range": "has no such database: check the number at the end of LOCATION (redis://host:6379/0)",
}
#: What the TLS library says, in capitals. Not an outage, so never a reason to go on without a lock.
_OF_TLS = {
    "CERTIFICATE_VERIFY_FAILED": (
        "shows a certificate that is not trusted: set OPTIONS ssl_ca_certs to its CA, or use the host name that is "
        "in the certificate"
    ),
    "CERTIFICATE_REQUIRED": "requires a client certificate: set OPTIONS ssl_certfile and ssl_keyfile",
}
# Since 7.0 the word stands in front; before that inside "ERR Error running script ...: -OOM command not allowed".
_WORD = re.compile(r"(?:^|-)({})\b".format("|".join((*_NOT_NOW, *_NOT_EVER))))
#: What our scripts say of a lock of a newer version: its format and its name. Redis adds where it was said.
_FORMAT = re.compile(r"-FORMAT (\d+) (.+?)(?:,? script: [0-9a-f]{40}\b.*)?$", re.DOTALL)
_MOVED = re.compile(r"(?:^|-)(READONLY|MASTERDOWN|LOADING|UNBLOCKED)\b")


def translated(error: BaseException, address: RedisAddress) -> DistLockError:
    """The error for our caller; the driver's own stays behind it as ``__cause__``."""
    where = address.name
    if isinstance(error, Misconfigured):
        return ConfigurationError(f"{where} {error}.")
    if isinstance(error, driver.ResponseError):
        error = ErrorReply.from_driver(error)
    text = str(error)
    if isinstance(error, NoCredentials):
        return _no_answer(text, address)
    for phrase, meaning in _IN_PHRASES.items():
        if phrase in text:
            return ConfigurationError(f"{where} {meaning} ({text}).")
    # With what redis-py had caught: of its release 5 the text is "Error 1" in asyncio.
    of_tls = f"{text} {error.__context__}".upper().replace(" ", "_")
    for phrase, meaning in _OF_TLS.items():
        if phrase in of_tls:
            return ConfigurationError(f"{where} {meaning} ({text.rstrip('.')}).")
    if (newer := _FORMAT.search(text)) is not None:
        return refusal(f"The lock {newer[2]!r} at {where}", newer[1])
    word = _WORD.search(text)
    if word is not None:
        return _by_word(word[1], text, address)
    if isinstance(error, driver.AuthenticationError | driver.AuthenticationWrongNumberOfArgsError):
        return _by_word("WRONGPASS" if "invalid" in text else "NOAUTH", text, address)
    if isinstance(error, driver.BusyLoadingError):
        return _by_word("LOADING", text, address)
    if isinstance(error, ErrorReply):
        return DistLockError(f"{where} answered with an unknown error: {text}")
    return _no_answer(text or type(error).__name__, address)


def _no_answer(why: str, address: RedisAddress) -> BackendUnavailable:
    return BackendUnavailable(f"{address.name} does not answer: {why.rstrip('.')}.")


def as_error(reply: ErrorReply, address: RedisAddress) -> DistLockError:
    """The error for our caller, not raised: what the server said is its ``__cause__``."""
    error = translated(reply, address)
    error.__cause__ = reply
    return error


def _by_word(word: str, text: str, address: RedisAddress) -> DistLockError:
    if word in _NOT_NOW:
        return BackendUnavailable(f"{address.name} {_NOT_NOW[word]} ({text}).")
    meaning = _NOT_EVER[word].replace("<PREFIX>", address.prefix)
    return ConfigurationError(f"{address.name} {meaning} ({text}).")


def broke_connection(error: DistLockError) -> bool:
    """Whether this error, one of ``translated``, is of a connection that broke or could not be opened."""
    return isinstance(error.__cause__, FAILURES)


def may_come_late(error: BaseException) -> bool:
    """Whether an acquisition that has failed so may reach the server after what undoes it."""
    if isinstance(error, DistLockError):
        # Else it is ours, and who gives up asking cancels it; or it was not asked.
        return isinstance(error, BackendUnavailable) and not isinstance(error, NotSent | TooFewReplicas)
    # A worker's time limit ends the connection with it. A task that is cancelled undoes it on the same one. A bug is of
    # code that connects: nothing was sent.
    return not isinstance(error, (asyncio.CancelledError, GeneratorExit, *BUGS))
