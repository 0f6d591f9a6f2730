"""A ``DISTLOCK`` mapping → frozen, checked values. A typo must not become a default."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from types import MappingProxyType
from typing import Any, TypeAlias

from .errors import ConfigurationError
from .formats import BEFORE, NEWEST
from .keys import must_escape

#: Those of ours, and the schemes of a LOCATION that means one; a driver may follow a scheme: ``mysql+pymysql://``.
_OURS = {
    "redis": ("redis.RedisBackend", "redis rediss unix redis+sentinel rediss+sentinel"),
    "redis-cluster": ("redis.cluster.ClusterBackend", "redis+cluster rediss+cluster"),
    "redlock": ("redlock.RedlockBackend", "redlock"),
    "sql": ("sql.SQLBackend", "mysql mariadb postgresql postgres sqlite"),
    "zookeeper": ("zookeeper.ZooKeeperBackend", "zookeeper"),
    "memory": ("memory.MemoryBackend", "memory"),
}
BACKENDS = {name: f"distlock_web.backends.{path}" for name, (path, _) in _OURS.items()}
SCHEMES = {scheme: name for name, (_, schemes) in _OURS.items() for scheme in schemes.split()}
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
#: The longest time that a setting may name, in seconds: ten years.
MAX_SECONDS = 315_360_000.0


#: A time, wherever one is given: seconds, a ``timedelta``, or text such as ``"1h30m"``, ``"90s"``, ``"500ms"``.
Duration: TypeAlias = float | timedelta | str

_UNITS = {"d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_DURATION = re.compile("".join(rf"(?:([0-9]+(?:\.[0-9]+)?){unit})?" for unit in _UNITS))


def _in_seconds(given: object) -> object:
    """A ``timedelta``, or text such as ``"1h30m"``, in seconds. What is neither stays as it is."""
    if isinstance(given, timedelta):
        return given.total_seconds()
    if isinstance(given, str) and given and (found := _DURATION.fullmatch(given)):
        return sum(float(number) * unit for number, unit in zip(found.groups("0"), _UNITS.values(), strict=True))
    return given


def check_seconds(
    given: object, setting: str, *, zero: bool = False, minimum: float = 0.0, or_none: str = "", text: bool = False
) -> float:
    """A time that cannot mislead, or ``ConfigurationError`` with the name of the setting and what would be right.

    ``text``: it comes from a URL or a command line, where a number is text, too.
    """
    if text and isinstance(given, str):
        with suppress(ValueError):
            given = float(given)
    seconds = _in_seconds(given)
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        right = "a number of seconds, {least}{or_none}, a timedelta, or text such as '1h30m', '90s', '500ms'"
    elif not 0 <= seconds <= MAX_SECONDS or (seconds == 0 and not zero):  # NaN is neither
        right = "a number of seconds, {least}{or_none}, and at most {most:.0f}"
    elif 0 < seconds < minimum:
        raise ConfigurationError(
            f"{setting} is {shown(given)}; the store cannot express less than {minimum:g} seconds."
        )
    else:
        return float(seconds)
    least = "0 or more" if zero else "greater than 0"
    right = right.format(least=least, or_none=or_none, most=MAX_SECONDS)
    raise ConfigurationError(f"{setting} is {shown(given)}; it has to be {right}.")


def check_timeout(given: Duration) -> float:
    """How long to wait for something at most. A number may be below 0, as that of Python's own events."""
    return given if isinstance(given, (int, float)) else check_seconds(given, "timeout", zero=True)


def shown(given: object) -> str:
    """What a message may show of a wrong value. What is in the wrong place may have a password in it."""
    if isinstance(given, str):
        return repr(without_credentials(given))
    if given is None or callable(given) or isinstance(given, (int, float, timedelta)):
        return repr(given)
    return f"of the type {type(given).__name__}"


def check_seconds_or_none(given: object, setting: str, *, zero: bool = False) -> float | None:
    """The same where None has a meaning of its own."""
    return None if given is None else check_seconds(given, setting, zero=zero, or_none=", or None")


#: What names begin with where no ``PREFIX`` is set: that of the seeds.
DEFAULT_PREFIX = "disLock:"


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """One alias of ``DISTLOCK``: where its locks live and what they default to."""

    alias: str
    backend: str = "redis"  #: an alias of ours or a dotted path
    location: str = field(default="", repr=False)  #: may have a password in it
    cache: str = ""  #: a Django cache whose server is used, in place of ``location``
    database: str = ""  #: a database of Django, in place of ``location``
    prefix: str = DEFAULT_PREFIX
    expire: float = 10.0
    wait: float | None = 0.0
    renew: bool = False
    on_busy: str | Callable[..., Any] = "raise"
    on_lost: str | Callable[..., Any] = "raise"
    on_backend_error: str | Callable[..., Any] = "raise"
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    format: int = BEFORE  #: in which things are stored: see ``formats.py``
    #: What a framework has for ``cache`` or ``database``, made when the backend asks for it.
    resource: Callable[[], object] | None = None

    @property
    def given(self) -> tuple[str, ...]:
        """Those of the settings that not every backend understands."""
        beside = {"LOCATION": self.location, "CACHE": self.cache, "DATABASE": self.database, "OPTIONS": self.options}
        return tuple(name for name, value in beside.items() if value)

    def check_options(self, known: tuple[str, ...]) -> None:
        """``ConfigurationError`` for an option that this backend does not have."""
        for name in self.options:
            if name not in known:
                raise ConfigurationError(unknown_name(f'{self._where}["OPTIONS"] has', name, known))

    def seconds(self, option: str, default: float, *, zero: bool = False, minimum: float = 0.0) -> float:
        """A time of ``OPTIONS``."""
        setting = f'{self._where}["OPTIONS"][{option!r}]'
        return check_seconds(self.options.get(option, default), setting, zero=zero, minimum=minimum)

    def wrong_location(self, right: str) -> ConfigurationError:
        """The error for a ``LOCATION`` that the backend cannot use; ``right`` says what it has to be."""
        shown = without_credentials(self.location)
        return ConfigurationError(f'{self._where}["LOCATION"] is {shown!r}; it has to be {right}.')

    @property
    def _where(self) -> str:
        return f"DISTLOCK[{self.alias!r}]"

    @property
    def path(self) -> str:
        return BACKENDS.get(self.backend, self.backend)

    @property
    def extra(self) -> str:
        """What to install for it: of an SQL store with the driver of its database."""
        scheme = self.location.partition("://")[0].partition("+")[0]
        return EXTRAS.get(scheme) or EXTRAS.get(self.backend, self.backend)


def parse(mapping: object) -> dict[str, StoreConfig]:
    """Check a whole ``DISTLOCK`` mapping. ``ConfigurationError`` for the first mistake, with notes of the others."""
    configs, mistakes = read(mapping)
    for other in mistakes[1:]:
        mistakes[0].add_note(f"Another mistake: {other}")
    if mistakes:
        raise mistakes[0]
    return configs


def read(mapping: object) -> tuple[dict[str, StoreConfig], list[ConfigurationError]]:
    """Every alias of a ``DISTLOCK`` mapping, with what is right of its settings; and every mistake."""
    if not isinstance(mapping, Mapping) or not mapping:
        wrong = "empty" if mapping is None or isinstance(mapping, Mapping) else shown(mapping)
        form = 'a mapping such as {"default": {"LOCATION": "redis://..."}}'
        return {}, [ConfigurationError(f"DISTLOCK is {wrong}; it has to be {form}.")]
    mistakes: list[ConfigurationError] = []
    if "default" not in mapping:
        known = ", ".join(map(_shown_alias, mapping))
        mistakes.append(ConfigurationError(f'DISTLOCK has no entry "default", only {known}; it has to have one.'))
    return {alias: _read_one(alias, given, mistakes) for alias, given in mapping.items()}, mistakes


#: Those that say where the locks live: one of them at most.
_PLACES = ("LOCATION", "CACHE", "DATABASE")

#: The words of each policy. A setting may also be a callable, or the dotted path of one.
POLICIES = {
    "on_busy": ("raise", "skip"),
    "on_lost": ("raise", "warn", "cancel"),
    "on_backend_error": ("raise", "open"),
}


def _is_alias(alias: object) -> bool:
    return isinstance(alias, str) and "://" not in alias


def _shown_alias(alias: object) -> str:
    return repr(alias) if _is_alias(alias) else shown(alias)


def _read_one(alias: object, given: object, mistakes: list[ConfigurationError]) -> StoreConfig:
    where, values = f"DISTLOCK[{_shown_alias(alias)}]", {}
    if not _is_alias(alias):
        mistakes.append(ConfigurationError(f'{where}: the alias of a store has to be a name such as "default".'))
    if not isinstance(given, Mapping):
        mistakes.append(ConfigurationError(f"{where} is {shown(given)}; it has to be a mapping of settings."))
        given = {}
    for name, value in given.items():
        try:
            if name not in SETTINGS:
                raise ConfigurationError(unknown_name(f"{where} has the setting", name, tuple(SETTINGS)))
            values[name.lower()] = SETTINGS[name](value, f'{where}["{name}"]')
        except ConfigurationError as error:
            mistakes.append(error)
    places = [name for name in _PLACES if values.get(name.lower())]
    if len(places) > 1:
        what = "the locks live in one place, name one."
        mistakes.append(ConfigurationError(f"{where} has both {' and '.join(places)}: {what}"))
        values = {name: value for name, value in values.items() if name.upper() not in places}
    if "BACKEND" not in given:
        try:
            values["backend"] = "sql" if values.get("database") else _backend_of(values.get("location", ""), where)
        except ConfigurationError as error:
            mistakes.append(error)
    return StoreConfig(str(alias) if _is_alias(alias) else shown(alias), **values)


_DOTTED = re.compile(r"\w+(\.\w+)+")


def _backend(given: object, setting: str) -> str:
    backend = _text(given, setting)
    if backend not in BACKENDS and not _DOTTED.fullmatch(backend):
        known = unknown_name(f"{setting} names", backend, tuple(BACKENDS))
        raise ConfigurationError(f"{known} A dotted path of a class is accepted as well.")
    return backend


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


def _text(given: object, setting: str) -> str:
    if not isinstance(given, str):
        raise ConfigurationError(f"{setting} is {shown(given)}; it has to be a string.")
    return given


def _options(given: object, setting: str) -> Mapping[str, Any]:
    if not isinstance(given, Mapping):
        raise ConfigurationError(f"{setting} is {shown(given)}; it has to be a mapping.")
    return MappingProxyType(dict(given))


def check_prefix(given: object, setting: str) -> str:
    """The fixed beginning of names. It is no template, and braces in a name belong to the store."""
    if not isinstance(given, str) or any(map(must_escape, given)):
        raise ConfigurationError(
            f"{setting} is {shown(given)}; it has to be text without braces, '%', '~' and control characters. Put "
            f"what differs from call to call into the key."
        )
    return given


def check_count(given: object, setting: str, below: int | None = None) -> int:
    """How many there may be: 1 or more."""
    if isinstance(given, bool) or not isinstance(given, int) or given < 1 or (below is not None and given >= below):
        most = "" if below is None else f", less than {below:,}"
        raise ConfigurationError(f"{setting} is {shown(given)}; it has to be a whole number, 1 or more{most}.")
    return given


def check_format(given: object, setting: str) -> int:
    """One of the two in which things may be stored."""
    if type(given) is not int or given not in (BEFORE, NEWEST):
        raise ConfigurationError(
            f"{setting} is {shown(given)}; it has to be {BEFORE}, or {NEWEST} when all processes have this version."
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
            f"{setting} is {given!r}, a coroutine function; it has to be a plain function, because nobody would await "
            f"the coroutine."
        )
    return given


def refuse_coroutine(made: object, message: str) -> None:
    """``ConfigurationError`` if what a plain function was called for is a coroutine, which nobody would await."""
    if inspect.iscoroutine(made):
        made.close()
        raise ConfigurationError(message)


def check_policy(given: Any, name: str, setting: str = "", more: tuple[str, ...] = ()) -> Any:
    """One of the words of this policy, or a callable. ``setting``: what it is called where it is given.

    ``more``: words that no setting has.
    """
    words, setting = POLICIES[name] + more, setting or name
    if not callable(given) and given not in words:
        raise ConfigurationError(
            f"{setting} is {shown(given)}; it has to be {', '.join(map(repr, words))} or a callable."
        )
    # A loss is told of by the thread that notices it.
    return check_plain(given, setting) if name == "on_lost" else given


def read_policy(name: str, given: Any, setting: str) -> Any:
    """A policy as a setting may say it, where a callable can be named by its dotted path."""
    if not isinstance(given, str) or "." not in given:
        return check_policy(given, name, setting)
    module, _, attribute = given.rpartition(".")
    wanted = "it has to be the dotted path of a callable"
    if not _DOTTED.fullmatch(given):  # nor imported: the error would repeat a part of it
        raise ConfigurationError(f"{setting} is {shown(given)}; {wanted}.")
    try:
        found = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(f"{setting} is {given!r}, which cannot be imported ({error}); {wanted}.") from error
    if not callable(found):
        raise ConfigurationError(f"{setting} is {given!r}, which is not callable; {wanted}.")
    return check_policy(found, name, setting)


#: The settings of a store, and what makes a value of each, or refuses it.
SETTINGS: dict[str, Callable[[Any, str], Any]] = {
    "BACKEND": _backend,
    "LOCATION": _text,
    "CACHE": _text,
    "DATABASE": _text,
    "PREFIX": check_prefix,
    "EXPIRE": check_seconds,
    "WAIT": partial(check_seconds_or_none, zero=True),
    "RENEW": check_flag,
    **{name.upper(): partial(read_policy, name) for name in POLICIES},
    "OPTIONS": _options,
    "FORMAT": check_format,
}


#: The words of other libraries. ``timeout`` is how long the lock lives in redis-py, how long to queue in django-pglock.
ELSEWHERE = {
    "timeout": "How long the lock lives is expire=10, how long to queue for it is wait=10.",
    "blocking_timeout": "How long to queue is wait=10.",
    "blocking": "Not to queue at all is wait=0, to queue for ever is wait=None.",
    "auto_renewal": "To renew the lock while the block runs is renew=True.",
    "auto_release_time": "How long the lock lives is expire=10.",
    "ttl": "How long the lock lives is expire=10.",
    "lock_id": "The lock's name is its key, the first argument.",
    "additional_time": "extend(5) gives the lease at least 5 more seconds from now, extend() its whole expire again.",
}


def refuse_arguments(call: str, given: Iterable[object], named: Iterable[str]) -> None:
    """``ConfigurationError`` for arguments that a method has in other libraries, and here has not."""
    for name in named:
        known = ELSEWHERE.get(name, "The options of a lock stand in lock(...), such as lock(key, expire=10).")
        raise ConfigurationError(f"{call} has no {name}=. {known}")
    for value in given:
        raise ConfigurationError(
            f"{call} has no argument, and was given {value!r}. Not to queue at all is lock(key, wait=0), to queue for "
            f"3 s is lock(key, wait=3). try_acquire() returns None where acquire() raises LockBusy."
        )


def unknown_name(where: str, name: object, known: tuple[str, ...]) -> str:
    """The message for a name that does not exist, with the one that was probably meant."""
    close = get_close_matches(str(name).upper() if known and known[0].isupper() else str(name), known, 1)
    hint = f" Did you mean {close[0]!r}?" if close else f" It may be: {', '.join(known)}."
    return f"{where} {shown(name)}, which does not exist.{hint}"
