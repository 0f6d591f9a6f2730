"""Names of locks. Pure: no store, no framework.

A name is readable, of bounded length, and cannot be forged: what a client puts into a value can neither add a
separator nor imitate another key. A name never contains a brace, so a store may use braces for its own purposes.

One row has one name, however it is spelled: equal numbers have one text, and an object that stands for a row is its
table and primary key. A template's value and :func:`escape_key` are written in the same way, and a whole key keeps the
escapes that it has::

    key="cart:{x}"  =  lock(f"cart:{escape_key(x)}")    for every x
                    =  lock(f"cart:{x}")                for every text and whole number without ':', '|', '%' and braces
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, date, datetime, time, timedelta
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from enum import Enum
from numbers import Integral
from pathlib import PurePath
from types import CodeType
from typing import TypeGuard
from uuid import UUID

from . import integrations
from .errors import ConfigurationError, KeyUnavailable
from .integrations import Row, load_for

#: The longest name, in bytes; a longer one keeps its beginning and ends in a digest of the whole.
MAX_NAME_BYTES = 200
#: As many characters always fit: none has more than four bytes.
SURELY_SHORT = MAX_NAME_BYTES // 4

#: What no value can add to a name: ':' separates its parts, '|' marks a template's second choice.
SEPARATORS = ":|"

#: What knows rows once the library is there, as it is in a script that has installed nothing of ours.
_WITH_ROWS = {"django.db.models": "distlock_web.django.rows", "sqlalchemy.orm": "distlock_web.sqlalchemy"}

# '%' is what escapes, '~' begins the digest of a shortened name; braces belong to the store.
_RESERVED = frozenset("{}%~")
# Most keys: nothing to escape, found in one step.
is_ordinary = re.compile(r"[ -$&-z|]*").fullmatch
_ESCAPED = re.compile(r"(%[0-9A-F]{2})")
# A field of a template, or of an f-string: {}, {0}, {order_id}, {order.pk}. Not {"a": 1}.
_FIELD = re.compile(r"\{(\d*|[^\W\d][^{}]*)\}")
_EXACT = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN)


def escape_literal(text: str) -> str:
    """A whole key, or the fixed part of a template, made fit for a name. Escapes that it has already are kept."""
    if is_ordinary(text):
        return text
    parts = _ESCAPED.split(text)  # every second one is an escape
    parts[::2] = ["".join(_escape(char) if must_escape(char) else char for char in part) for part in parts[::2]]
    return "".join(parts)


def escape_value(text: str, separators: str = SEPARATORS) -> str:
    """A value from outside: it cannot add a separator, nor an escape."""
    if text.isalnum() and text.isascii():
        return text
    return "".join(_escape(char) if char in separators or must_escape(char) else char for char in text)


def escape_key(part: object, separators: str = SEPARATORS) -> str:
    """A value as one part of a key that is put together by hand: ``lock(f"cart:{escape_key(name)}")``.

    The escaped value contains no separator, so ``cart:a:b`` is never made of one value. Templates escape their values
    themselves, and both ways give the same lock. If the values are separated by another character than ``:``, pass it:
    ``f"{escape_key(a, ':|-')}-{escape_key(b, ':|-')}"``.

    Raises ``KeyUnavailable`` for None, a list or a mapping. Raises ``ConfigurationError`` for an object that has no
    stable text and does not stand for a row.
    """
    found = key_part(part, "A part of a key", separators)
    if found is None:
        raise KeyUnavailable("A part of a key is None; all callers without a value would share one lock.")
    return found


def key_part(found: object, where: str, separators: str = SEPARATORS) -> str | None:
    """A value as a part of a name; None where it is missing. ``where`` it stands, for messages.

    Raises ``KeyUnavailable`` where there are several, ``ConfigurationError`` where it has no stable text.
    """
    text = text_of(found)
    if text is not None:
        return escape_value(text, separators)
    # A visitor of Django's or of Flask-Login's who is not logged in has no identity.
    if found is None or getattr(found, "is_anonymous", None) is True:
        return None
    row = row_of(found)
    if row is not None:
        table, key = row
        parts = [key_part(each, where, separators + ",") for each in key]
        if None in parts:
            raise ConfigurationError(f"{where} is a row of {table} that is not saved: it has no primary key yet.")
        return f"{escape_value(table, separators)}:{','.join(map(str, parts))}"
    kind = type(found).__name__
    if isinstance(found, (list, dict)):  # as a client's JSON may be
        raise KeyUnavailable(f"{where} is a {kind}, but a key needs a single value.")
    raise ConfigurationError(
        f"{where} is a {kind} object, which has no stable text: in another process, or after a change, it would be "
        f"another lock. Name an attribute that identifies it, such as its pk or id."
    )


def text_of(found: object) -> str | None:
    """The text of a value that is the same in every process, and one for equal numbers; None: it has no such text."""
    if type(found) is int:
        return str(found)
    if isinstance(found, Enum):
        # One that is a text or a number is equal to that, and a database gives that back.
        return text_of(found.value) if isinstance(found, (str, int)) else f"{type(found).__name__}.{found.name}"
    if isinstance(found, str):
        return str(found)
    if isinstance(found, Integral) or (isinstance(found, float) and found.is_integer()):
        return str(int(found))  # True, which finds row 1, is 1
    if isinstance(found, float):
        return _decimal(Decimal(repr(float(found))))  # the number that Python prints, which is meant
    if isinstance(found, Decimal):
        return _decimal(found)
    if isinstance(found, datetime) and found.tzinfo is not None:
        with suppress(OverflowError):  # in the year 1 or 9999
            found = found.astimezone(UTC)
    if isinstance(found, (UUID, date, time, timedelta, PurePath)):
        return str(found)
    return found.hex() if isinstance(found, bytes) else None


def _decimal(found: Decimal) -> str:
    if not found.is_finite():
        return str(found)
    exact = found.normalize(_EXACT)
    return format(exact or Decimal(), "f") if abs(exact.adjusted()) < MAX_NAME_BYTES else str(exact)


def row_of(found: object) -> Row | None:
    """The row that an object stands for; None if it stands for none."""
    load_for(_WITH_ROWS)
    return next((row for lookup in integrations.installed.rows if (row := lookup(found)) is not None), None)


def shorten(name: str) -> str:
    """A name of bounded length. Two different names stay different (SHA-256)."""
    if len(name) <= SURELY_SHORT:
        return name
    data = name.encode("utf-8", "surrogatepass")
    if len(data) <= MAX_NAME_BYTES:
        return name
    digest = hashlib.sha256(data).hexdigest()[:40]
    return data[: MAX_NAME_BYTES - 41].decode("utf-8", "ignore") + "~" + digest


def must_escape(char: str) -> bool:
    """Whether a name never contains this character, so that it is escaped wherever it comes from."""
    return char in _RESERVED or not char.isprintable()


def _escape(char: str) -> str:
    return "".join(f"%{byte:02X}" for byte in char.encode("utf-8", "surrogatepass"))


def refuse_forgotten_f(given: object, code: CodeType) -> None:
    """``ConfigurationError`` for a key with a field that ``code`` has as a constant: nothing would fill it in.

    A text that was made at run time has its values already, and a client may have put braces into them.
    """
    for key in given if isinstance(given, (list, tuple)) else (given,):
        field = _FIELD.search(key) if isinstance(key, str) and not is_ordinary(key) else None
        if field is not None and _is_constant(key, code.co_consts):
            raise ConfigurationError(
                f"The key {key!r} has the field {field[0]}, but only the key of a decorator is filled in: an f is "
                f"missing in front of the string. If the braces are part of the text, use escape_key(...)."
            )


def _is_constant(text: str, constants: Iterable[object]) -> bool:
    """Whether it is one of them, itself: a text with the same characters may come from anywhere."""
    return any(each is text or (isinstance(each, tuple) and _is_constant(text, each)) for each in constants)


def whole_keys(given: object) -> tuple[str, ...]:
    """The keys that ``lock(...)`` was given, or that a key function gave: one, or several. ``ConfigurationError``."""
    if not _are_several(given):
        return (whole_key(given),)
    keys = tuple(map(whole_key, given))
    if not keys:
        raise ConfigurationError(
            "The list of keys is empty, and a lock needs at least one key. Where a call has nothing to lock, raise "
            "KeyUnavailable in the key function: a client gets a 400."
        )
    return keys


def _are_several(given: object) -> TypeGuard[Iterable[object]]:
    if isinstance(given, (str, bytes, Mapping)):
        return False
    # An object of a database library may be iterable, too: over its columns.
    return isinstance(given, (list, tuple)) or (isinstance(given, Iterable) and row_of(given) is None)


def whole_key(key: object) -> str:
    """A key that was given as it is, to ``lock(...)``: a string, or an object that stands for a row."""
    if isinstance(key, str) and key:
        return escape_literal(key)
    if isinstance(key, str) or text_of(key) is not None or key is None or isinstance(key, (list, dict)):
        raise ConfigurationError(
            f"A lock's key is {key!r}; it has to be a string that is not empty, or an object of Django or SQLAlchemy "
            f"that stands for a row."
        )
    found = key_part(key, "A lock's key")
    if found is None:
        raise KeyUnavailable("A lock's key is a visitor who is not logged in; all such visitors would share one lock.")
    return found
