"""``once`` in a view: what is kept of the answer, and how that answer is made again.

The rules that no framework owns. A framework brings the values of its response. Who asks is in ``asked.py``.
"""

from __future__ import annotations

import html
import logging
import secrets
import sys
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, get_origin

logger = logging.getLogger("distlock_web")

#: The header that marks an answer as an earlier one, made again.
REPLAYED = "Idempotency-Replayed"
#: The field of a form that makes each rendered form a request of its own.
FIELD = "once"

#: Bytes of an answer's body that are kept.
MAX_KEPT = 64 * 1024

#: Headers of an answer that are kept. Never a cookie: it may be what logs its owner in.
_KEPT = frozenset({
    "access-control-allow-credentials", "access-control-allow-headers", "access-control-allow-methods",
    "access-control-allow-origin", "access-control-expose-headers", "access-control-max-age", "content-security-policy",
    "content-security-policy-report-only", "cross-origin-embedder-policy", "cross-origin-opener-policy",
    "cross-origin-resource-policy", "permissions-policy", "referrer-policy", "x-content-type-options",
    "x-frame-options",
    "allow", "cache-control", "content-disposition", "content-encoding", "content-language", "content-location",
    "content-type", "etag", "expires", "hx-location", "hx-push-url", "hx-redirect", "hx-refresh", "hx-replace-url",
    "hx-reselect", "hx-reswap", "hx-retarget", "hx-trigger", "hx-trigger-after-settle", "hx-trigger-after-swap",
    "last-modified", "link", "location", "retry-after", "vary",
})  # fmt: skip
#: Those that speak of the body, and not of another one in its place.
_OF_BODY = frozenset({
    "content-disposition", "content-encoding", "content-language", "content-type", "etag", "last-modified",
})  # fmt: skip
_NOT_KEPT = "This has been done. Its answer was not kept.\n"


# What is kept of an answer --------------------------------------------------------------------------------------------


def keep(function: str, status: int, headers: Iterable[tuple[str, str]], body: bytes | None) -> dict[str, Any]:
    """What is kept of an answer, for JSON. ``body``: None of one that cannot be read here."""
    allowed = [[name, value] for name, value in headers if name.lower() in _KEPT]
    kept: dict[str, Any] = {"status": status, "headers": allowed}
    if body is None or len(body) > MAX_KEPT:
        long = "" if body is None else f"its body has {len(body):,} bytes, more than {MAX_KEPT:,}"
        why = long or "it is streamed, or rendered by an API later"
        fields = {"lock_event": "done", "lock_function": function}
        logger.warning("%s: recorded as done, but without its answer: %s.", function, why, extra=fields)
        return kept
    try:
        kept["body"] = body.decode()
    except UnicodeDecodeError:
        kept["base64"] = b64encode(body).decode()
    return kept


if sys.version_info >= (3, 14):
    from annotationlib import Format, get_annotations

    def _annotations(function: Any) -> dict[str, Any]:
        """They may name what the type checker alone imports."""
        return get_annotations(function, format=Format.FORWARDREF)

else:

    def _annotations(function: Any) -> dict[str, Any]:
        return getattr(function, "__annotations__", {})


def returned_class(function: Any) -> type:
    """What the function says that it returns, without what stands in brackets; ``object`` if it does not say."""
    said = _annotations(function).get("return")
    if isinstance(said, str):
        said = getattr(function, "__globals__", {}).get(said.partition("[")[0])
    said = get_origin(said) or said
    return said if isinstance(said, type) else object


class Replay(NamedTuple):
    """An answer that is made again."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes


def replay(kept: Mapping[str, Any]) -> Replay:
    """The answer again, with its own status, marked by :data:`REPLAYED`. If its body was not kept, a line says so."""
    status, headers = kept["status"], [(name, value) for name, value in kept["headers"]]
    if "base64" in kept:
        body = b64decode(kept["base64"])
    elif "body" in kept:
        body = kept["body"].encode()
    else:
        headers = [(name, value) for name, value in headers if name.lower() not in _OF_BODY]
        headers.append(("Content-Type", "text/plain; charset=utf-8"))
        body = _NOT_KEPT.encode() if status not in (204, 304) else b""
    return Replay(status, [*headers, (REPLAYED, "true")], body)


# Forms ----------------------------------------------------------------------------------------------------------------


def hidden_field() -> str:
    """A hidden field with a value that no other rendered form has: HTML, which a template must not escape."""
    return f'<input type="hidden" name="{html.escape(FIELD)}" value="{secrets.token_urlsafe(16)}">'
