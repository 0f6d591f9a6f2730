"""Errors of the server and of redis-py → ours: what happened, and what to do."""

from __future__ import annotations

import re

from redis import exceptions as driver

from ....core.errors import BackendUnavailable, ConfigurationError, DistLockError


class Refused(Exception):
    """The server answered with an error: its text."""

    @property
    def no_script(self) -> bool:
        return str(self).startswith("NOSCRIPT")


#: What a server cannot do now.
_NOT_NOW = {
    "READONLY": "is a replica, or a master that was demoted: it accepts no writes",
    "LOADING": "is still loading its data",
    "OOM": "is full (maxmemory) and refuses to store the lock",
    "BUSY": "is busy running somebody's script",
    "MASTERDOWN": "is a replica without its master",
    "MISCONF": "cannot write to its disk and therefore refuses writes",
    "NOREPLICAS": "has fewer replicas than its min-replicas-to-write",
    "CLUSTERDOWN": "belongs to a cluster that is down",
}
_NOT_EVER = {
    "WRONGTYPE": "has a key of another kind where the lock should be: somebody else uses this PREFIX",
    "NOAUTH": "wants a password: put it into LOCATION (redis://:password@host) or OPTIONS",
    "WRONGPASS": "does not accept this user name and password",
    "NOPERM": (
        "does not allow this user what a lock needs: the keys under PREFIX (~disLock:* ~{disLock:*), the channels "
        "&distlock:*, and +eval +evalsha +subscribe +publish with what the scripts call"
    ),
}
#: What it says without such a word in front.
_IN_PHRASES = {
    "unauthenticated": _NOT_EVER["NOAUTH"],  # a call of a script is longer than what it reads from a stranger
    "without any password": "has no password: take the one in LOCATION or OPTIONS out",
    "DB index is out of range": "has no such database: see the number at the end of LOCATION (redis://host:6379/0)",
}
# Since 7.0 the word stands in front; before that inside "ERR Error running script ...: -OOM command not allowed".
_WORD = re.compile(r"(?:^|-)({})\b".format("|".join((*_NOT_NOW, *_NOT_EVER))))


def translated(error: BaseException, where: str) -> DistLockError:
    """The error for our caller; the driver's own stays behind it as ``__cause__``."""
    text = str(error)
    for phrase, what in _IN_PHRASES.items():
        if phrase in text:
            return ConfigurationError(f"{where} {what} ({text}).")
    word = _WORD.search(text)
    if word is not None:
        return _by_word(word[1], text, where)
    if isinstance(error, driver.AuthenticationError | driver.AuthenticationWrongNumberOfArgsError):
        return _by_word("WRONGPASS" if "invalid" in text else "NOAUTH", text, where)
    if isinstance(error, driver.NoPermissionError):
        return _by_word("NOPERM", text, where)
    if isinstance(error, driver.BusyLoadingError):
        return _by_word("LOADING", text, where)
    if isinstance(error, Refused | driver.ResponseError):
        return DistLockError(f"{where} answered with an error that we do not know: {text}")
    return BackendUnavailable(f"{where} does not answer: {(text or type(error).__name__).rstrip('.')}.")


def _by_word(word: str, text: str, where: str) -> DistLockError:
    if word in _NOT_NOW:
        return BackendUnavailable(f"{where} {_NOT_NOW[word]} ({text}).")
    return ConfigurationError(f"{where} {_NOT_EVER[word]} ({text}).")
