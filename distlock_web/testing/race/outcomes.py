"""What an order has led to, in values that can be compared: answers, and what was observed."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

_TOKEN = re.compile(r'(name="csrfmiddlewaretoken" value=")[^"]*')


@dataclass(frozen=True, slots=True)
class Result:
    """Of one order: each caller's answer, and what was observed after it."""

    answers: tuple[Any, ...]
    observed: Any


@dataclass(frozen=True, slots=True)
class Response:
    status: int
    body: Any
    location: str = ""

    def __str__(self) -> str:
        return str(self.status)


@dataclass(frozen=True, slots=True)
class Raised:
    kind: str

    def __str__(self) -> str:
        return self.kind


class Frozen:
    """Makes values of answers, without what is to be ignored: names of fields, and patterns in texts."""

    def __init__(self, ignore: str | re.Pattern[str] | Sequence[str | re.Pattern[str]]) -> None:
        each = [ignore] if isinstance(ignore, str | re.Pattern) else list(ignore)
        self._fields = {one for one in each if isinstance(one, str)}
        self._patterns = [one for one in each if not isinstance(one, str)]

    def answer(self, value: object) -> object:
        """Of a caller, in its thread: a streaming response is read to its end."""
        status = getattr(value, "status_code", None)
        if not isinstance(status, int):
            return self(value)
        response: Any = value
        if hasattr(response, "streaming_content"):
            body = b"".join(response.streaming_content)
        elif hasattr(response, "get_data"):
            body = response.get_data()
        else:
            body = getattr(response, "content", b"")
        text = body.decode("utf-8", "replace") if isinstance(body, bytes) else str(body)
        try:
            content: object = json.loads(text)
        except ValueError:
            content = _TOKEN.sub(r"\1", text)
        headers = getattr(response, "headers", {})
        return Response(status, self(content), str(self(headers.get("Location", ""))))

    def __call__(self, value: Any) -> Any:
        if value is None:
            return None
        if isinstance(value, str):
            for pattern in self._patterns:
                value = pattern.sub("", value)
            return value
        if isinstance(value, Mapping):
            return {key: self(each) for key, each in value.items() if key not in self._fields}
        if isinstance(value, set | frozenset):
            return sorted(map(self, value), key=repr)
        if isinstance(value, tuple) and hasattr(value, "_asdict"):
            return self(value._asdict())
        if isinstance(value, list | tuple):
            return [self(each) for each in value]
        if hasattr(value, "_meta") and hasattr(value, "pk"):  # of Django
            return self({field.attname: value.__dict__.get(field.attname) for field in value._meta.concrete_fields})
        if hasattr(value, "__table__"):  # of SQLAlchemy
            return self({column.key: getattr(value, column.key) for column in value.__table__.columns})
        if hasattr(value, "__iter__") and hasattr(value, "model"):  # a QuerySet
            return [self(each) for each in value]
        if type(value).__eq__ is object.__eq__:  # type: ignore[comparison-overlap]
            return f"<{type(value).__qualname__}>"  # equal to none but itself
        try:
            return deepcopy(value)  # what the next order changes would change this one's
        except Exception:
            return value


def shown(result: Result, name: str, *, whole: bool) -> str:
    answers = ", ".join(_shown(answer, whole) for answer in result.answers)
    return f"({answers})" + (f", {_observed(result.observed, name)}" if result.observed is not None else "")


def _shown(answer: object, whole: bool) -> str:
    if isinstance(answer, Response):
        page = isinstance(answer.body, str) and answer.body.lstrip()[:9].lower() in ("<!doctype", "<html>")
        rest = f" {answer.body!r}"[:80] if whole and not page and answer.body not in ("", None) else ""
        return f"{answer.status}{rest}" + (f" → {answer.location}" if whole and answer.location else "")
    return str(answer) if isinstance(answer, Raised) else repr(answer)


def _observed(value: object, name: str) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}={each!r}" for key, each in value.items())
    return f"{name or 'observed'}={value!r}"
