"""What is set up so that it will hurt, over all stores. ``docs/doctor.md`` explains every code.

The command line prints it, and Django's deploy check reports it. What only a server can tell comes from its backend
(``core.findings.Diagnosable``), what only a framework can tell from that.
"""

from __future__ import annotations

import logging
import os
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from configparser import Error as ConfigParserError
from configparser import RawConfigParser
from dataclasses import replace
from urllib.parse import parse_qs, urlsplit

from ..core.errors import ConfigurationError, DistLockError, LockBusy
from ..core.findings import SEVERITIES, Diagnosable, Finding
from ..core.registry import Registry, Store
from ..locks.decorator import LockedFunction
from ..locks.lock import lock
from ..locks.request_context import request_scope

logger = logging.getLogger("distlock_web")

#: The trial lock: nobody else takes one of this name.
TRIAL_KEY = "distlock doctor"


def by_severity(findings: Iterable[Finding]) -> list[Finding]:
    """The worst first."""
    return sorted(findings, key=lambda finding: (-SEVERITIES.index(finding.severity), finding.where, finding.code))


def examine_store(store: Store, gunicorn: float | None) -> Iterator[Finding]:
    """Everything that is wrong with this store. Blocking: it is asked once.

    ``gunicorn``: the time-out of its workers in seconds; None: there is no gunicorn.
    """
    where = f"store {store.alias}"
    for finding in (*_settings(store, gunicorn), *_server(store)):
        yield replace(finding, where=finding.where or where)


def _settings(store: Store, gunicorn: float | None) -> Iterator[Finding]:
    config = store.config
    if config.backend == "memory":
        yield Finding(
            "DL003", "warning", "The locks are kept in memory.",
            "They exclude nobody in other processes: another worker can take the same lock.",
            f'DISTLOCK[{store.alias!r}]["LOCATION"]: a store that all processes share.',
        )  # fmt: skip
    yield from examine_times("", config.expire, config.renew, gunicorn)


def examine_times(where: str, expire: float, renew: bool, gunicorn: float | None) -> Iterator[Finding]:
    """Whether a lease is as long as gunicorn lets a request run, and not longer."""
    if gunicorn is None or gunicorn == 0:  # 0: a worker is never given up
        return
    if expire < gunicorn and not renew:
        yield Finding(
            "DL004", "warning",
            f"A lock ends after {expire:g} s and is not renewed, but gunicorn lets a request run for {gunicorn:g} s.",
            "A slow request outlives its lock: the next request gets the lock while the first still runs.",
            "RENEW (renew=True), or an EXPIRE above gunicorn's timeout.", where,
        )  # fmt: skip
    elif expire > gunicorn:
        yield Finding(
            "DL005", "info", f"A lock lives {expire:g} s, but gunicorn ends a silent worker after {gunicorn:g} s.",
            f"After gunicorn ends a worker, its lock stays taken for up to {expire:g} s, and nobody gets it.",
            "A shorter EXPIRE with RENEW (renew=True).", where,
        )  # fmt: skip


def examine_functions(
    functions: Iterable[tuple[str, LockedFunction]], registry: Registry, gunicorn: float | None
) -> Iterator[Finding]:
    """The same for views that set ``expire`` or ``renew`` themselves; all others have the times of their store.

    ``functions``: each with the name that a finding shows.
    """
    seen: set[LockedFunction] = set()
    for where, function in functions:
        options = function.options
        if function in seen or (options.expire is None and options.renew is None):
            continue
        seen.add(function)
        config = registry.store(options.store).config
        expire = config.expire if options.expire is None else options.expire
        renew = config.renew if options.renew is None else options.renew
        yield from examine_times(where, expire, renew, gunicorn)


# A database that is shared with a cache ------------------------------------------------------------------------------


def shared_database(alias: str, cache: str, clearing: str) -> Finding:
    return Finding(
        "DL006", "warning", f"The locks are in the same Redis database as {cache}.",
        f"{clearing} empties the database: every lock is gone while its holder still runs.",
        "Another database number for one of them, such as redis://.../1.", f"store {alias}",
    )  # fmt: skip


def redis_database(location: str, number: object = None) -> tuple[str, int] | None:
    """Server and number of the database that a URL of Redis means; None: it is no such URL.

    ``number``: a setting beside the URL, which counts where the URL has none.
    """
    try:
        url = urlsplit(location)
        port = url.port or 6379
    except ValueError:  # its own finding, where a store has it
        return None
    if url.scheme not in ("redis", "rediss", "unix"):
        return None
    named = parse_qs(url.query).get("db", [url.path.strip("/") if url.scheme != "unix" else ""])[0]
    if url.scheme == "unix":
        server = url.path
    else:
        host = url.hostname or "localhost"
        server = f"{'127.0.0.1' if host == 'localhost' else host}:{port}"
    chosen = named or ("0" if number is None else str(number))
    return (server, int(chosen)) if chosen.isdigit() else None


# The server ----------------------------------------------------------------------------------------------------------


def _server(store: Store) -> Sequence[Finding]:
    found: list[Finding] = []
    try:
        backend = store.backend
    except ConfigurationError as error:
        return [_wrong(error)]
    try:
        # A lock as any other needs the connection, the password and every right. In a request of its own, so that it
        # re-enters no lock of the caller's. (An empty context would do that, too, but lose Flask's app.)
        with request_scope(path=TRIAL_KEY):
            _take_trial_lock(store.alias)
    except DistLockError as error:
        found.append(_wrong(error) if isinstance(error, ConfigurationError) else _unavailable(error))
    if isinstance(backend, Diagnosable):
        try:
            found += backend.diagnose()
        except DistLockError as error:
            if not found:  # else it is the same, said once more
                found.append(_unavailable(error))
    return found


def _take_trial_lock(alias: str) -> None:
    try:
        lock(TRIAL_KEY, store=alias, wait=0).acquire().release()
    except LockBusy:  # another doctor: it can be taken
        pass


def _wrong(error: DistLockError) -> Finding:
    return Finding("DL002", "error", str(error), "No lock of this store can be taken.", "What the message names.")


def _unavailable(error: DistLockError) -> Finding:
    return Finding(
        "DL001", "error", f"No lock can be taken: {error}",
        "Requests that need a lock are answered with 503, or go on without it.",
        "The address and the network from here to there, or the server.",
    )  # fmt: skip


# uWSGI ---------------------------------------------------------------------------------------------------------------


def examine_uwsgi(options: Mapping[str, object] | None) -> Iterator[Finding]:
    """Whether threads run, and none is cut off by the fork. None: there is no uWSGI."""
    if options is None:
        return
    set_here = {name for name, value in options.items() if _is_on(value)}
    if set_here.isdisjoint({"enable-threads", "threads"}):
        yield Finding(
            "DL008", "warning", "enable-threads is not set.",
            "uWSGI before 2.0.27 runs no thread between two requests: leases are not renewed, and end after EXPIRE.",
            "enable-threads = true.", "uWSGI",
        )  # fmt: skip
    if set_here.isdisjoint({"lazy-apps", "lazy", "py-call-uwsgi-fork-hooks"}):
        yield Finding(
            "DL009", "warning", "uWSGI forks after it has imported the app, and does not tell Python.",
            "If a start-up job has started a thread (renew, wait, SQL, ZooKeeper), a worker may hang for ever.",
            "lazy-apps = true, or py-call-uwsgi-fork-hooks = true.", "uWSGI",
        )  # fmt: skip


def _is_on(value: object) -> bool:
    text = value.decode() if isinstance(value, bytes) else str(value)
    return text.strip().casefold() not in ("false", "off", "no", "0")


def uwsgi_options(file: str | None = None) -> Mapping[str, object] | None:
    """uWSGI's options: those of this file, or of the uWSGI that this runs in. None: neither is there.

    Raises ``ConfigurationError`` where the file cannot be read.
    """
    if file is None:
        uwsgi = sys.modules.get("uwsgi")
        if uwsgi is None:
            return None
        # Since 2.0.27 threads run in any case: what counts is whether they do.
        return {**uwsgi.opt, **({"enable-threads": True} if getattr(uwsgi, "has_threads", False) else {})}
    parser = RawConfigParser(strict=False, allow_no_value=True)
    try:
        with open(file, encoding="utf-8") as text:
            parser.read_file(text)
        return dict(parser.items("uwsgi"))
    except (OSError, UnicodeDecodeError, ConfigParserError) as error:
        raise ConfigurationError(f"{file} is not an .ini file with a section [uwsgi]: {error}") from error


# gunicorn ------------------------------------------------------------------------------------------------------------


def gunicorn_timeout() -> float | None:
    """The workers' time-out that the environment's ``GUNICORN_CMD_ARGS`` names. None: nothing is known of one."""
    try:
        words = shlex.split(os.environ.get("GUNICORN_CMD_ARGS", ""))
    except ValueError as error:
        logger.warning("GUNICORN_CMD_ARGS is ignored: %s. gunicorn itself does not start with it.", error)
        return None
    for number, word in enumerate(words):
        option, _, value = word.partition("=")
        if option in ("-t", "--timeout"):
            value = value or next(iter(words[number + 1 :]), "")
        elif word.startswith("-t"):
            value = word[2:]
        else:
            continue
        return float(value) if value.isdigit() else None
    return None
