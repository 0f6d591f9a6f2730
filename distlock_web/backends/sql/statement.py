"""SQL with named parameters, for a driver of any way to mark them; and the rows of an answer."""

from __future__ import annotations

import re
from collections import namedtuple
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal

from ...core.backend import StatementResult

#: How a driver marks a parameter.
Placeholder = Literal["%s", "?"]
_NAMED = re.compile(r":([a-z_]+)")


class Statement:
    """One of ours: ``:name`` is a parameter, and a list is as many as it has. The text itself has no other colon."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._parts = _NAMED.split(text)

    def bound(self, placeholder: Placeholder, given: Mapping[str, Any]) -> tuple[str, list[Any]]:
        """The text with the driver's marks, and the values in their order."""
        text, values = [self._parts[0]], list[Any]()
        for name, after in zip(self._parts[1::2], self._parts[2::2], strict=True):
            value = given[name]
            if isinstance(value, (list, tuple)):
                text.append(f"({', '.join([placeholder] * len(value))})")
                values += value
            else:
                text.append(placeholder)
                values.append(value)
            text.append(after)
        return "".join(text), values


def execute(connection: Any, text: str, values: Sequence[Any] = ()) -> StatementResult:
    """On a driver's connection: all that it has found."""
    cursor = connection.cursor()
    cursor.execute(text, values) if values else cursor.execute(text)
    if cursor.description is None:
        found = StatementResult([], cursor.rowcount)
    else:
        row = _row_of(tuple(column[0] for column in cursor.description))
        found = StatementResult([row(*values) for values in cursor.fetchall()], cursor.rowcount)
    cursor.close()
    return found


def execute_many(connection: Any, text: str, several: Sequence[Sequence[Any]]) -> None:
    """The same with each of these values, without an answer."""
    cursor = connection.cursor()
    cursor.executemany(text, several)
    cursor.close()


@lru_cache(maxsize=256)
def _row_of(columns: tuple[str, ...]) -> Any:
    # Renamed: SHOW and functions have columns of any name.
    return namedtuple("Row", columns, rename=True)
