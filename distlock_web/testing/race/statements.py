"""What a statement says: whether others can notice it, which table it is about, and how it is shown."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from sysconfig import get_paths
from types import FrameType
from typing import Any

#: What may stand before the verb: of a UNION, too, "(SELECT …) UNION (SELECT …)".
_BEFORE = re.compile(r"^[\s(]*(?:/\*.*?\*/[\s(]*|--[^\n]*\n[\s(]*)*", re.S)
_NAME = r"""((?:[\w$]+|"[^"]+"|`[^`]+`|\[[^\]]+\])(?:\.(?:[\w$]+|"[^"]+"|`[^`]+`|\[[^\]]+\]))?)"""
_INTO = r"(?:INSERT|REPLACE|MERGE)(?:\s+OR\s+\w+|\s+IGNORE|\s+LOW_PRIORITY)*(?:\s+INTO)?"
_UPDATE = r"(?<!FOR )(?<!KEY )UPDATE(?:\s+ONLY)?"  # not of FOR NO KEY UPDATE SKIP LOCKED, or ON DUPLICATE KEY UPDATE
_DELETE = rf"DELETE\s+(?:{_NAME.replace('(', '(?:', 1)}\s+)?FROM(?:\s+ONLY)?"  # DELETE a FROM a JOIN b, of MySQL
_TRUNCATE = r"TRUNCATE(?:\s+TABLE)?(?:\s+ONLY)?"
_WRITES = re.compile(rf"\b(?:{_INTO}|{_UPDATE}|{_DELETE}|{_TRUNCATE})\s+{_NAME}", re.I)
_WITH = r"WITH\b.*\b(?:INSERT\s+INTO|UPDATE\s+\S+\s+SET|DELETE\s+FROM)"
_WRITE = re.compile(rf"INSERT|UPDATE|DELETE|REPLACE|MERGE|TRUNCATE|{_WITH}", re.I | re.S)
_READS = re.compile(r"\bFROM\s+" + _NAME, re.I)
_CALLS = re.compile(r"([\w.]+)\s*\(")
#: Functions that others do not notice: of a session, with which drivers begin one, and of time.
_OF_THE_SESSION = re.compile(
    r"(?:pg_catalog\.)?(?:version|set_config|current_\w+|database|schema|user|connection_id|last_insert_id|pg_backend_pid"
    r"|now|convert_tz|cast|coalesce|in|exists|select)",
    re.I,
)
_SET = re.compile(r"\bSET\s+(.*?)(?:\bWHERE\b|\bRETURNING\b|$)", re.I | re.S)
_ENDS = re.compile(r"(?:COMMIT|END|ROLLBACK(?!\s+TO)|ROLLBACK\s+TO\b)", re.I)

#: Of these files no line is the user's.
_FRAMES = (
    "django", "rest_framework", "ninja", "sqlalchemy", "flask_sqlalchemy", "flask", "flask_restful", "flask_restx",
    "werkzeug", "asgiref", "celery", "kombu", "psycopg", "psycopg2", "pymysql", "MySQLdb", "sentry_sdk", "ddtrace",
    "opentelemetry", "debug_toolbar", "silk", "newrelic", "elasticapm", "django_prometheus", "wrapt",
)  # fmt: skip
_OURS = str(Path(__file__).parents[2])
_CALLER = str(Path(__file__).with_name("run.py"))
_STANDARD = tuple({get_paths()[name] for name in ("stdlib", "platstdlib")})


def is_noticed(sql: str) -> bool:
    """Whether another transaction can notice the statement, or it can wait for one."""
    text = _BEFORE.sub("", sql, count=1)
    verb = re.match(r"\w*", text)[0].upper()  # type: ignore[index]
    if verb == "SELECT":
        calls = _CALLS.findall(text)
        return bool(_READS.search(text)) or not all(_OF_THE_SESSION.fullmatch(name) for name in calls)
    if verb == "BEGIN":
        return bool(re.match(r"BEGIN\s+(IMMEDIATE|EXCLUSIVE)", text, re.I))
    return verb in {"INSERT", "UPDATE", "DELETE", "REPLACE", "MERGE", "WITH", "LOCK", "TRUNCATE", "CALL"} or is_end(sql)


def is_end(sql: str) -> bool:
    """Whether it gives locks back."""
    return bool(_ENDS.match(_BEFORE.sub("", sql, count=1)))


def is_locking(sql: str) -> bool:
    """Whether it locks the rows that it reads."""
    return bool(re.search(r"\bFOR\s+(?:NO\s+KEY\s+)?(?:UPDATE|SHARE)\b|\bLOCK\s+IN\s+SHARE\b", sql, re.I))


def is_read(sql: str) -> bool:
    return bool(re.match(r"SELECT|WITH", _BEFORE.sub("", sql, count=1), re.I)) and written(sql) is None


def written(sql: str) -> str | None:
    """The table that it writes."""
    text = " ".join(_BEFORE.sub("", sql, count=1).split())
    found = _WRITES.search(text) if _WRITE.match(text) else None
    return _bare(found[1]) if found else None


def table_of(sql: str) -> str:
    found = _READS.search(sql)
    return written(sql) or (_bare(found[1]) if found else "")


def columns_set(sql: str) -> frozenset[str]:
    """The columns that an UPDATE writes."""
    found = _SET.search(sql)
    return frozenset(_bare(name) for name in re.findall(_NAME + r"\s*=", found[1])) if found else frozenset()


def _bare(name: str) -> str:
    return re.sub(r'["`\[\]]', "", name)


def short(sql: str, parameters: object, width: int = 64) -> str:
    """The statement in one line: without quotes and lists of columns, with its values."""
    text = " ".join(_BEFORE.sub("", sql, count=1).split())
    text = _with_values(text, parameters)
    text = re.sub(r'["`]', "", text)
    text = re.sub(r"^\(?SELECT (DISTINCT )?.*? FROM ", "SELECT … FROM ", text, flags=re.I)
    table = table_of(sql).rpartition(".")[2]
    if table:
        text = text.replace(f"{table}.", "")
    text = re.sub(r"( LIMIT 21| RETURNING .*)$", "", text)  # of Django's get() and create()
    text = re.sub(r"(WHERE) \(([^()]*)\)$", r"\1 \2", text)
    return cut(text, width)


def cut(text: str, width: int) -> str:
    """Which row it is about is worth more than all that is written there."""
    if len(text) <= width:
        return text
    head, where, tail = text.rpartition(" WHERE ")
    if where and len(tail) < width // 2:
        return head[: width - len(tail) - 8] + "…" + where + tail
    return text[: width - 1] + "…"


def _with_values(text: str, parameters: object) -> str:
    if isinstance(parameters, Mapping):
        return re.sub(
            r"%\((\w+)\)s(?:::\w+)?|(?<!:):(\w+)",
            lambda found: _shown(parameters.get(found[1] or found[2], found[0])),
            text,
        )
    values = list(parameters) if isinstance(parameters, Sequence) and not isinstance(parameters, str) else []
    return re.sub(r"%s(?:::\w+)?|\?", lambda found: _shown(values.pop(0)) if values else found[0], text)


def _shown(value: object) -> str:
    text = str(value) if isinstance(value, int | float) or value is None else repr(value)
    return "NULL" if value is None else text if len(text) <= 24 else text[:23] + "…"


def users_line() -> str:
    """Of the code that is running: the first frame of the project's.

    That is one outside of site-packages. If there is none but the call that is raced, the project may be installed: the
    first frame then that is of no framework.
    """
    frame, installed = sys._getframe(1), ""
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith("<") and not _is_foreign(name):
            line = f"{Path(name).name}:{frame.f_lineno}"
            if "-packages/" not in name.replace("\\", "/"):
                return line if not installed or not _is_raced(frame) else installed
            installed = installed or line
        frame = frame.f_back  # type: ignore[assignment]
    return installed


def _is_raced(frame: FrameType) -> bool:
    """Whether it is the call itself that the test has given."""
    called_by = frame.f_back.f_code if frame.f_back is not None else None
    return called_by is not None and called_by.co_filename == _CALLER and called_by.co_name == "_call"


def _is_foreign(name: str) -> bool:
    _, packages, rest = name.replace("\\", "/").rpartition("-packages/")
    if packages:
        return rest.partition("/")[0].removesuffix(".py") in _FRAMES or name.startswith(_OURS)
    return name.startswith((_OURS, *_STANDARD))


def row_values(columns: Sequence[str], row: Sequence[Any], wanted: set[str]) -> list[tuple[str, object]]:
    """What is worth showing of a row that was read: what a caller writes, or all where it is little."""
    pairs = list(zip(columns, row, strict=False))
    return [pair for pair in pairs if pair[0] in wanted] or (pairs if len(pairs) <= 3 else [])
