"""Names of locks. Pure: no store, no framework.

A name is readable, of bounded length, and cannot be forged: what a client puts into a value can neither add a
separator nor imitate another key. A name never contains a brace, so a store may use braces for its own purposes.
"""

from __future__ import annotations

import hashlib
import re

from .errors import ConfigurationError

#: The longest name, in bytes; a longer one keeps its beginning and ends in a digest of the whole.
MAX_NAME_BYTES = 200

# '%' is what escapes, '~' begins the digest of a shortened name; braces belong to the store.
_RESERVED = frozenset("{}%~")
_PLAIN = frozenset("_-.@+")
# Most keys: nothing to escape, found in one step.
_ORDINARY = re.compile(r"[ -$&-z|]*")


def literal(text: str) -> str:
    """A whole key, or the fixed part of a template, made fit for a name."""
    if _ORDINARY.fullmatch(text):
        return text
    return "".join(_escape(char) if char in _RESERVED or _unprintable(char) else char for char in text)


def value(text: str, separators: str = ":") -> str:
    """A value from outside: everything but letters, digits and ``_ - . @ +`` is escaped, and so are the separators."""
    if text.isalnum() and text.isascii():
        return text
    return "".join(
        char if (char.isalnum() or char in _PLAIN) and char not in separators else _escape(char) for char in text
    )


def escape_key(part: object) -> str:
    """A value from outside as one part of a key that is put together by hand: ``lock(f"cart:{escape_key(name)}")``.

    It cannot add a separator, so ``cart:a:b`` is never made of one value. Templates do this by themselves.
    """
    if part is None:
        raise ConfigurationError("A part of a key is None; everybody without a value would share one lock.")
    return value(str(part))


def shorten(name: str) -> str:
    """A name of bounded length. Two different names stay different (SHA-256)."""
    data = name.encode("utf-8", "surrogatepass")
    if len(data) <= MAX_NAME_BYTES:
        return name
    digest = hashlib.sha256(data).hexdigest()[:40]
    return data[: MAX_NAME_BYTES - 41].decode("utf-8", "ignore") + "~" + digest


def _escape(char: str) -> str:
    return "".join(f"%{byte:02X}" for byte in char.encode("utf-8", "surrogatepass"))


def _unprintable(char: str) -> bool:
    return char != " " and not char.isprintable()


def whole(key: object) -> str:
    """A key that was given as it is, to ``lock(...)``."""
    if not isinstance(key, str) or not key:
        raise ConfigurationError(f"A lock's key is a string that is not empty, not {key!r}.")
    return literal(key)
