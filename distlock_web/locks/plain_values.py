"""Values that ``once`` keeps. What is read back is what was written, of the same types, or it is not kept at all."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

#: Bytes of UTF-8 that are kept of one value, as JSON.
MAX_BYTES = 64 * 1024

#: The only name in an object that stands for what JSON has not: ``{"": ["Decimal", "9.90"]}``.
_TAG = ""
#: How a text becomes a value of this type again. It is kept only if that is told apart from the first by nothing.
_READ: Mapping[type, Callable[[str], Any]] = {
    Decimal: Decimal,
    UUID: UUID,
    datetime: datetime.fromisoformat,
    date: date.fromisoformat,
    time: time.fromisoformat,
    bytes: b64decode,
}
_NAMED = {kind.__name__: read for kind, read in _READ.items()}


class NotPlain(ValueError):
    """It cannot be kept; why, in words that follow "it": "has 70,000 bytes …"."""


def pack(value: object) -> Any:
    """The value as what JSON can say, of which :func:`unpack` makes an equal one. Raises :class:`NotPlain`.

    Nothing of the value is used up: an iterator is refused, not read.
    """
    try:
        packed = _pack(value)
        size = size_of(packed)
        # Only a subclass can differ here, one that shows other items than it compares.
        is_equal = size > MAX_BYTES or unpack(packed) == value
    except NotPlain:
        raise
    except Exception as error:  # it nests too deeply, has a number that JSON has not, or compares by code of its own
        raise NotPlain(f"is no plain data ({type(error).__name__}: {error})") from error
    if size > MAX_BYTES:
        raise NotPlain(f"has {size:,} bytes, more than {MAX_BYTES:,}")
    if not is_equal:
        raise NotPlain(f"is a {type(value).__name__}, and would be another value when it is read back")
    return packed


def size_of(packed: Any) -> int:
    """Bytes of its JSON in UTF-8."""
    return len(json.dumps(packed, ensure_ascii=False, allow_nan=False).encode("utf-8", "surrogatepass"))


def _pack(value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, list):
        return [_pack(each) for each in value]
    if isinstance(value, dict):
        if all(isinstance(name, str) for name in value) and _TAG not in value:
            return {str(name): _pack(each) for name, each in value.items()}
        return {_TAG: ["dict", [[_pack(name), _pack(each)] for name, each in value.items()]]}
    kind = type(value)
    if kind is tuple:
        return {_TAG: ["tuple", [_pack(each) for each in value]]}
    if kind in _READ:
        text = b64encode(value).decode() if kind is bytes else str(value)
        if repr(_READ[kind](text)) == repr(value):  # equal times may be of different zones
            return {_TAG: [kind.__name__, text]}
    elif not (isinstance(value, Enum) or hasattr(value, "__html__")):  # these are more than their text
        for plain in (str, int, float):
            if isinstance(value, plain):
                return plain(value)
    raise NotPlain(f"has {kind.__module__}.{kind.__qualname__}, which is no plain data")


def unpack(packed: Any) -> Any:
    """The value again."""
    if isinstance(packed, list):
        return [unpack(each) for each in packed]
    if not isinstance(packed, dict):
        return packed
    if packed.keys() != {_TAG}:
        return {name: unpack(each) for name, each in packed.items()}
    kind, said = packed[_TAG]
    if kind == "dict":
        return {unpack(name): unpack(each) for name, each in said}
    return tuple(unpack(each) for each in said) if kind == "tuple" else _NAMED[kind](said)
