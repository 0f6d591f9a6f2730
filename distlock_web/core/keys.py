"""Names of locks. Pure: no store, no framework.

A name is readable, of bounded length, and cannot be forged: what a client puts into a value can neither add a
separator nor imitate another key. A name never contains a brace, so a store may use braces for its own purposes.

One meaning has one name, however it is spelled. A template's value and :func:`escape_key` escape the same characters
in the same way, and a whole key keeps the escapes that it has::

    key="cart:{x}"  =  lock(f"cart:{escape_key(x)}")    for every x
                    =  lock(f"cart:{x}")                for every x without ':', '|' and '%'
"""

from __future__ import annotations

import hashlib
import re
import string

from .errors import ConfigurationError, KeyUnavailable

#: The longest name, in bytes; a longer one keeps its beginning and ends in a digest of the whole.
MAX_NAME_BYTES = 200

#: What no value can add to a name: ':' separates its parts, '|' marks a template's second choice.
SEPARATORS = ":|"

# '%' is what escapes, '~' begins the digest of a shortened name; braces belong to the store.
_RESERVED = frozenset("{}%~")
# Most keys: nothing to escape, found in one step.
_ORDINARY = re.compile(r"[ -$&-z|]*")
_ESCAPED = re.compile(r"(%[0-9A-F]{2})")
# Where an object's text says only where in memory it is.
_ADDRESS = re.compile(r" at 0x[0-9A-Fa-f]+")


def escape_literal(text: str) -> str:
    """A whole key, or the fixed part of a template, made fit for a name. Escapes that it has already are kept."""
    if _ORDINARY.fullmatch(text):
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

    It cannot add a separator, so ``cart:a:b`` is never made of one value. Templates do the same by themselves, and
    the two spellings are one lock. Where something else than ``:`` stands between two values, say so, as a template
    of this form does: ``f"{escape_key(a, ':|-')}-{escape_key(b, ':|-')}"``.

    Raises ``KeyUnavailable`` for None, ``ConfigurationError`` for an object without a text of its own.
    """
    if part is None:
        raise KeyUnavailable("A part of a key is None; everybody without a value would share one lock.")
    try:
        return escape_value(text_of(part), separators)
    except ValueError as error:
        raise ConfigurationError(f"A part of a key {error}.") from error


def text_of(found: object, spec: str = "", conversion: str | None = None) -> str:
    """A value as a template writes it. ``ValueError`` goes on after the words for what it is."""
    if type(found) is int and not spec and not conversion:
        return str(found)
    formatter = string.Formatter()
    try:
        text = str(formatter.format_field(formatter.convert_field(found, conversion), spec))
    except (ValueError, TypeError) as error:
        raise ValueError(f"cannot be written: {error}") from error
    if isinstance(found, (set, frozenset)) or (not isinstance(found, str) and _ADDRESS.search(text)):
        raise ValueError(
            f"is a {type(found).__name__} object, whose text differs in every process: name an attribute of it"
        )
    return text


def shorten(name: str) -> str:
    """A name of bounded length. Two different names stay different (SHA-256)."""
    if len(name) <= MAX_NAME_BYTES // 4:  # no character has more than four bytes
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


def check_key(key: object) -> str:
    """A key that was given as it is, to ``lock(...)``."""
    if not isinstance(key, str) or not key:
        raise ConfigurationError(f"A lock's key is a string that is not empty, not {key!r}.")
    return escape_literal(key)
