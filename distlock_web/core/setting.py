"""What may be set, and what a value of it has to be: each check makes the value, or says what would be right."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from datetime import timedelta
from difflib import get_close_matches
from importlib import import_module
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

from .errors import ConfigurationError
from .formats import BEFORE, NEWEST
from .keys import must_escape
from .location import without_credentials


class Setting(NamedTuple):
    """A row: one thing that can be set. Readers, messages, the doctor and the documentation's tables come from it."""

    name: str
    #: Makes the value, or raises ``ConfigurationError`` that says what would be right; it is told what to call it.
    check: Callable[[Any, str], Any]
    default: Any  #: where nothing is given
    meaning: str  #: for people, in Markdown
    in_words: str = ""  #: the default, where it depends on something else


Settings: TypeAlias = Mapping[str, Setting]


def table(*rows: Setting) -> Settings:
    return {row.name: row for row in rows}


def check_known(given: Iterable[object], known: Collection[str], where: str) -> None:
    """``ConfigurationError`` for a name that does not exist, with the one that was probably meant."""
    for name in given:
        if name not in known:
            raise ConfigurationError(unknown_name(where, name, known))


def unknown_name(where: str, name: object, known: Collection[str]) -> str:
    """The message for a name that does not exist, with the one that was probably meant."""
    upper = next(iter(known), "").isupper()
    close = get_close_matches(str(name).upper() if upper else str(name), known, 1)
    hint = f" Did you mean {close[0]!r}?" if close else f" It may be: {', '.join(known)}."
    return f"{where} {shown(name)}, which does not exist.{hint}"


def shown(given: object) -> str:
    """What a message may show of a wrong value. What is in the wrong place may have a password in it."""
    if isinstance(given, str):
        return repr(without_credentials(given))
    if given is None or callable(given) or isinstance(given, (int, float, timedelta)):
        return repr(given)
    return f"of type {type(given).__name__}"


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


def check_wait(given: object, setting: str) -> float | None:
    """How long to queue; None: for ever."""
    return None if given is None else check_seconds(given, setting, zero=True, or_none=", or None")


def check_text(given: object, setting: str) -> str:
    if not isinstance(given, str):
        raise ConfigurationError(f"{setting} is {shown(given)}; it has to be a string.")
    return given


def check_mapping(given: object, setting: str) -> Mapping[str, Any]:
    """Of what is none no more is said than its type: there may be a password in it."""
    if not isinstance(given, Mapping):
        raise ConfigurationError(f"{setting} is of type {type(given).__name__}; it has to be a mapping.")
    return MappingProxyType(dict(given))


def check_file(given: Any, setting: str) -> Any:
    """A file of TLS that can be read. One that is not there would look like a server that is not."""
    if given is not None and not os.access(given, os.R_OK):
        why = "cannot be read" if os.path.exists(given) else "does not exist"
        raise ConfigurationError(f"{setting} names {str(given)!r}, which {why}.")
    return given


def or_none(check: Callable[[Any, str], Any]) -> Callable[[Any, str], Any]:
    """The same check, where None means that nothing is given."""
    return lambda given, setting: None if given is None else check(given, setting)


def unchecked(given: Any, setting: str) -> Any:
    """For the driver, which says by itself what is wrong with it."""
    return given


def check_prefix(given: object, setting: str) -> str:
    """The fixed beginning of names. It is no template, and braces in a name belong to the store."""
    if not isinstance(given, str) or any(map(must_escape, given)):
        raise ConfigurationError(
            f"{setting} is {shown(given)}; it has to be text without braces, '%', '~' and control characters. Put "
            f"what differs from call to call into the key."
        )
    return given


def check_count(given: object, setting: str, *, below: int | None = None, text: bool = False) -> int:
    """How many there may be: 1 or more. ``text``: as in :func:`check_seconds`."""
    if text and isinstance(given, str) and given.isdecimal():
        given = int(given)
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
    """What is called where what it gives cannot be awaited. ``ConfigurationError`` if it is asynchronous."""
    if is_async(given):
        raise ConfigurationError(
            f"{setting} is {given!r}, a coroutine function; it has to be a plain function, because nobody would await "
            f"the coroutine."
        )
    return given


def refuse_coroutine(made: object, message: str) -> None:
    """``ConfigurationError`` if what a plain function was called for is a coroutine, which would not be awaited."""
    if inspect.iscoroutine(made):
        made.close()
        raise ConfigurationError(message)


#: The path of something in a module.
DOTTED = re.compile(r"\w+(\.\w+)+")


class Policy(NamedTuple):
    """What is to be done then: one of these words, or a callable."""

    words: tuple[str, ...]
    plain: bool = False  #: it is called where what it gives cannot be awaited

    def check(self, given: Any, setting: str) -> Any:
        if not callable(given) and given not in self.words:
            raise ConfigurationError(
                f"{setting} is {shown(given)}; it has to be {', '.join(map(repr, self.words))} or a callable."
            )
        return check_plain(given, setting) if self.plain else given

    def read(self, given: Any, setting: str) -> Any:
        """As a setting may say it, where a callable can be named by its dotted path."""
        if not isinstance(given, str) or "." not in given:
            return self.check(given, setting)
        module, _, attribute = given.rpartition(".")
        wanted = "it has to be the dotted path of a callable"
        if not DOTTED.fullmatch(given):  # nor imported: the error would repeat a part of it
            raise ConfigurationError(f"{setting} is {shown(given)}; {wanted}.")
        try:
            found = getattr(import_module(module), attribute)
        except (ImportError, AttributeError) as error:
            raise ConfigurationError(
                f"{setting} is {given!r}, which cannot be imported ({error}); {wanted}."
            ) from error
        if not callable(found):
            raise ConfigurationError(f"{setting} is {given!r}, which is not callable; {wanted}.")
        return self.check(found, setting)


ON_BUSY = Policy(("raise", "skip"))
ON_LOST = Policy(("raise", "warn", "cancel"), plain=True)  # a loss is told of by the thread that notices it
ON_BACKEND_ERROR = Policy(("raise", "open"))
