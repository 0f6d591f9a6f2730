"""A ``DISTLOCK`` mapping → frozen, checked values. A typo must not become a default."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib import import_module
from types import MappingProxyType
from typing import Any

from .errors import ConfigurationError
from .keys import must_escape

BACKENDS = {
    "redis": "distlock_web.backends.redis.RedisBackend",
    "redis-cluster": "distlock_web.backends.redis.cluster.ClusterBackend",
    "redlock": "distlock_web.backends.redlock.RedlockBackend",
    "sql": "distlock_web.backends.sql.SQLBackend",
    "zookeeper": "distlock_web.backends.zookeeper.ZooKeeperBackend",
    "memory": "distlock_web.backends.memory.MemoryBackend",
}
#: What to install for a backend, or for a scheme of its LOCATION, where the extra has another name.
EXTRAS = {
    "redis-cluster": "redis",
    "redlock": "redis",
    "mariadb": "mysql",
    "mysql": "mysql",
    "postgres": "postgresql",
    "postgresql": "postgresql",
    "sqlite": "sqlite",
}
#: Which of them a LOCATION means, by its scheme; a driver may follow it: ``mysql+pymysql://``.
SCHEMES = {
    "redis": "redis",
    "rediss": "redis",
    "unix": "redis",
    "redis+sentinel": "redis",
    "rediss+sentinel": "redis",
    "redis+cluster": "redis-cluster",
    "rediss+cluster": "redis-cluster",
    "redlock": "redlock",
    "mysql": "sql",
    "mariadb": "sql",
    "postgresql": "sql",
    "postgres": "sql",
    "sqlite": "sql",
    "zookeeper": "zookeeper",
    "memory": "memory",
}

#: The longest time that a setting may name, in seconds: ten years.
MAX_SECONDS = 315_360_000.0


def check_seconds(given: object, setting: str, *, zero: bool = False, minimum: float = 0.0, or_none: str = "") -> float:
    """A time that cannot mislead, or ``ConfigurationError`` with the name of the setting and what would be right."""
    if isinstance(given, bool) or not isinstance(given, (int, float)):
        right = "a number of seconds, {least}{or_none}"
    elif not 0 <= given <= MAX_SECONDS or (given == 0 and not zero):  # NaN is neither
        right = "a number of seconds, {least}{or_none}, and at most {most:.0f}"
    elif 0 < given < minimum:
        raise ConfigurationError(f"{setting} is {given}; the store cannot express less than {minimum:g} seconds.")
    else:
        return float(given)
    least = "0 or more" if zero else "greater than 0"
    right = right.format(least=least, or_none=or_none, most=MAX_SECONDS)
    raise ConfigurationError(f"{setting} is {shown(given)}; it has to be {right}.")


def shown(given: object) -> str:
    """What a message may show of a wrong value. What is in the wrong place may have a password in it."""
    if isinstance(given, str):
        return repr(without_credentials(given))
    if given is None or callable(given) or isinstance(given, (int, float)):
        return repr(given)
    return f"of the type {type(given).__name__}"


def check_seconds_or_none(given: object, setting: str, *, zero: bool = False) -> float | None:
    """The same where None has a meaning of its own."""
    return None if given is None else check_seconds(given, setting, zero=zero, or_none=", or None")


@dataclass(frozen=True, slots=True)
class DatabaseAddress:
    """A database that a framework knows, for a backend that opens connections of its own."""

    kind: str  #: ``postgresql``, ``mysql`` or ``sqlite``
    name: str  #: for SQLite its file
    host: str = ""
    port: int | None = None
    user: str = ""
    password: str = field(default="", repr=False)
    query: Mapping[str, Any] = field(default_factory=dict, repr=False)  #: what stands behind the ``?`` of its URL
    connect_args: Mapping[str, Any] = field(default_factory=dict, repr=False)  #: further keywords of its driver
    migrated: bool = False  #: its tables come by the framework's migrations


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """One alias of ``DISTLOCK``: where its locks live and what they default to."""

    alias: str
    backend: str = "redis"  #: an alias of ours or a dotted path
    location: str = field(default="", repr=False)  #: may have a password in it
    cache: str = ""  #: a Django cache whose server is used, in place of ``location``
    database: str = ""  #: a database of Django or of Flask-SQLAlchemy, in place of ``location``
    prefix: str = "disLock:"
    expire: float = 10.0
    wait: float | None = 0.0
    renew: bool = False
    on_busy: str | Callable[..., Any] = "raise"
    on_lost: str | Callable[..., Any] = "raise"
    on_backend_error: str | Callable[..., Any] = "raise"
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    #: What a framework has for ``cache`` or ``database``, made when the backend asks for it.
    resource: Callable[[], object] | None = None

    @property
    def given(self) -> tuple[str, ...]:
        """Those of the settings that not every backend understands."""
        beside = {"LOCATION": self.location, "CACHE": self.cache, "DATABASE": self.database, "OPTIONS": self.options}
        return tuple(name for name, value in beside.items() if value)

    @property
    def path(self) -> str:
        return BACKENDS.get(self.backend, self.backend)

    @property
    def extra(self) -> str:
        """What to install for it: of an SQL store with the driver of its database."""
        scheme = self.location.partition("://")[0].partition("+")[0]
        return EXTRAS.get(scheme) or EXTRAS.get(self.backend, self.backend)


def parse(mapping: object) -> dict[str, StoreConfig]:
    """Check a whole ``DISTLOCK`` mapping. Raises ``ConfigurationError`` at the first thing that is wrong."""
    if not isinstance(mapping, Mapping) or not mapping:
        raise ConfigurationError('DISTLOCK has to be a mapping such as {"default": {"LOCATION": "redis://..."}}.')
    if "default" not in mapping:
        raise ConfigurationError(f'DISTLOCK needs an entry "default"; it has {", ".join(map(repr, mapping))}.')
    return {alias: _parse_one(alias, given) for alias, given in mapping.items()}


_SETTINGS = (
    "BACKEND", "LOCATION", "CACHE", "DATABASE", "PREFIX", "EXPIRE", "WAIT", "RENEW",
    "ON_BUSY", "ON_LOST", "ON_BACKEND_ERROR", "OPTIONS",
)  # fmt: skip
#: Those that say where the locks live: one of them at most.
_PLACES = ("LOCATION", "CACHE", "DATABASE")


#: The words of each policy. A setting may also be a callable, or the dotted path of one.
_POLICIES = {
    "on_busy": ("raise", "skip"),
    "on_lost": ("raise", "warn", "cancel"),
    "on_backend_error": ("raise", "open"),
}
#: The settings beside ``DISTLOCK``: what holds for every alias that does not say its own.
PROJECT_POLICIES = tuple(f"DISTLOCK_{name.upper()}" for name in _POLICIES)
PROJECT_SETTINGS = ("DISTLOCK", "DISTLOCK_REQUEST_ID_HEADER", "DISTLOCK_USER", *PROJECT_POLICIES)


def unknown_settings(names: Iterable[str], where: str, *more: str) -> Iterator[ConfigurationError]:
    """For every name that begins like a setting of ours and is none. ``more``: what only this framework has."""
    known = (*PROJECT_SETTINGS, *more)
    for name in names:
        if name.startswith("DISTLOCK") and name not in known:
            message = unknown_name(f"{where} the setting", name, known)
            own = name.removeprefix("DISTLOCK_")
            if own in _SETTINGS:
                message = f'{where} the setting {name!r}, which belongs to a store: DISTLOCK["default"]["{own}"].'
            elif own == "URL":
                message = f'{where} the setting {name!r}, which is for the environment: here it is DISTLOCK["default"].'
            elif own == "UI":
                message = f"{where} the setting {name!r}, which is for Flask: in Django the admin has the page."
            yield ConfigurationError(message)


def with_policies(mapping: Any, project: Mapping[str, Any]) -> Any:
    """A ``DISTLOCK`` mapping in which every alias has the project's policies (``DISTLOCK_ON_BUSY`` …) or its own.

    Raises ``ConfigurationError`` with the name of the setting that is wrong.
    """
    common = {
        name.upper(): _policy(project[setting], name, setting)
        for name, setting in zip(_POLICIES, PROJECT_POLICIES, strict=True)
        if setting in project
    }
    if not common:
        return mapping
    if mapping is None:
        raise ConfigurationError(f"DISTLOCK_{next(iter(common))} is for the stores of DISTLOCK, which is not set.")
    if not isinstance(mapping, Mapping):
        return mapping  # parse() says what is wrong with it
    return {alias: {**common, **given} if isinstance(given, Mapping) else given for alias, given in mapping.items()}


def _parse_one(alias: object, given: object) -> StoreConfig:
    where = f"DISTLOCK[{alias!r}]"
    if not isinstance(alias, str) or not isinstance(given, Mapping):
        raise ConfigurationError(f"{where} has to be a mapping of settings.")
    for name in given:
        if name not in _SETTINGS:
            raise ConfigurationError(unknown_name(f"{where} has the setting", name, _SETTINGS))
    location, cache, database = (_text(given, name, "", where) for name in _PLACES)
    meant = "" if "BACKEND" in given else "sql" if database else _backend_of(location, where)
    backend = _text(given, "BACKEND", meant, where)
    if backend not in BACKENDS and not re.fullmatch(r"\w+(\.\w+)+", backend):
        raise ConfigurationError(
            unknown_name(f'{where}["BACKEND"] names', without_credentials(backend), tuple(BACKENDS))
            + " A dotted path does."
        )
    if len(places := [name for name in _PLACES if given.get(name)]) > 1:
        raise ConfigurationError(f"{where} has both {' and '.join(places)}: the locks live in one place, name one.")
    options = given.get("OPTIONS", {})
    if not isinstance(options, Mapping):
        raise ConfigurationError(f'{where}["OPTIONS"] has to be a mapping.')
    return StoreConfig(
        alias=alias,
        backend=backend,
        location=location,
        cache=cache,
        database=database,
        prefix=check_prefix(given.get("PREFIX", "disLock:"), f'{where}["PREFIX"]'),
        expire=check_seconds(given.get("EXPIRE", 10), f'{where}["EXPIRE"]'),
        wait=check_seconds_or_none(given.get("WAIT", 0), f'{where}["WAIT"]', zero=True),
        renew=check_flag(given.get("RENEW", False), f'{where}["RENEW"]'),
        **{name: _policy(given.get(name.upper(), "raise"), name, f'{where}["{name.upper()}"]') for name in _POLICIES},
        options=MappingProxyType(dict(options)),
    )


def _backend_of(location: str, where: str) -> str:
    """The backend that a URL means where none is named; of what is no URL, Redis says what is wrong with it."""
    scheme, mark, _ = location.partition("://")
    backend = SCHEMES.get(scheme) or SCHEMES.get(scheme.partition("+")[0])
    if backend is None and mark:
        raise ConfigurationError(unknown_name(f'{where}["LOCATION"] has the scheme', scheme, tuple(SCHEMES)))
    return backend or "redis"


def without_credentials(location: str) -> str:
    """A URL as a message may show it. Also one that is wrong, where nobody can tell the password from the rest."""
    scheme, mark, rest = location.partition("://") if "://" in location else ("", "", location)
    _, at, place = rest.rpartition("@")  # the last: a password that should have been encoded may have one
    if not at and place.startswith(":"):  # the host and its @ were forgotten
        place = ":***"
    return scheme + mark + ("***@" if at else "") + re.sub(r"(?i)(\w*pass\w*=)[^&]*", r"\1***", place)


def _text(given: Mapping[str, Any], name: str, default: str, where: str) -> str:
    found = given.get(name, default)
    if not isinstance(found, str):
        raise ConfigurationError(f"{where}[{name!r}] is {shown(found)}; it has to be a string.")
    return found


def check_prefix(given: object, setting: str) -> str:
    """The fixed beginning of names. It is no template, and braces in a name belong to the store."""
    if not isinstance(given, str) or any(map(must_escape, given)):
        raise ConfigurationError(
            f"{setting} is {shown(given)}; it has to be text without braces, '%', '~' and control characters. "
            f"What differs from call to call belongs into the key."
        )
    return given


def check_flag(given: object, setting: str) -> bool:
    if not isinstance(given, bool):
        raise ConfigurationError(f"{setting} is {shown(given)}; it has to be True or False.")
    return given


def is_async(function: object) -> bool:
    """Whether a call gives a coroutine: of an ``async def``, a partial of one, an object with such a ``__call__``."""
    return callable(function) and any(map(inspect.iscoroutinefunction, (function, type(function).__call__)))


def check_plain(given: Any, setting: str) -> Any:
    """What is called where nobody can await what it gives. ``ConfigurationError`` if it is asynchronous."""
    if is_async(given):
        raise ConfigurationError(
            f"{setting} is {given!r}, a coroutine function; it has to be a plain one: nobody would await it."
        )
    return given


def check_policy(given: Any, name: str, setting: str = "") -> Any:
    """One of the words of this policy, or a callable. ``setting``: what it is called where it is given."""
    words, setting = _POLICIES[name], setting or name
    if not callable(given) and given not in words:
        raise ConfigurationError(
            f"{setting} is {shown(given)}; it has to be {', '.join(map(repr, words))} or a callable."
        )
    # A loss is told of by the thread that notices it.
    return check_plain(given, setting) if name == "on_lost" else given


def _policy(given: Any, name: str, setting: str) -> Any:
    """A policy as a setting may say it, where a callable can be named by its dotted path."""
    if not isinstance(given, str) or "." not in given:
        return check_policy(given, name, setting)
    module, _, attribute = given.rpartition(".")
    try:
        found = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(f"{setting} is {given!r}, which cannot be imported: {error}.") from error
    if not callable(found):
        raise ConfigurationError(f"{setting} is {given!r}, which is no callable.")
    return check_policy(found, name, setting)


def unknown_name(where: str, name: object, known: tuple[str, ...]) -> str:
    """The message for a name that does not exist, with the one that was probably meant."""
    close = get_close_matches(str(name).upper() if known and known[0].isupper() else str(name), known, 1)
    hint = f" Did you mean {close[0]!r}?" if close else f" It may be: {', '.join(known)}."
    return f"{where} {name!r}, which does not exist.{hint}"
