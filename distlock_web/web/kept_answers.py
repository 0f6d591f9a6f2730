"""``once`` in a view: what is kept of the answer, and how that answer is made again.

The rules that no framework owns. A framework brings the values of its response. Who asks is in ``asked.py``.
"""

from __future__ import annotations

import html
import logging
import re
import secrets
import sys
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, get_origin

from ..core.formats import NEWEST
from ..locks.plain_values import MAX_BYTES, NotPlain, pack
from ..locks.wrapping import resolved_signature

logger = logging.getLogger("distlock_web")

#: The header that marks an answer as an earlier one, made again.
REPLAYED = "Idempotency-Replayed"
#: The field of a form that makes each rendered form a request of its own.
FIELD = "once"

#: Bytes of an answer's body that are kept.
MAX_KEPT = MAX_BYTES

#: Headers of an answer that are kept. Never a cookie: it may be what logs its owner in.
_KEPT = frozenset({
    "access-control-allow-credentials", "access-control-allow-headers", "access-control-allow-methods",
    "access-control-allow-origin", "access-control-expose-headers", "access-control-max-age", "content-security-policy",
    "content-security-policy-report-only", "cross-origin-embedder-policy", "cross-origin-opener-policy",
    "cross-origin-resource-policy", "permissions-policy", "referrer-policy", "x-content-type-options",
    "x-frame-options",
    "accept-ranges", "allow", "cache-control", "content-disposition", "content-encoding", "content-language",
    "content-location", "content-range", "content-type", "etag", "expires", "hx-location", "hx-push-url",
    "hx-redirect", "hx-refresh", "hx-replace-url", "hx-reselect", "hx-reswap", "hx-retarget", "hx-trigger",
    "hx-trigger-after-settle", "hx-trigger-after-swap", "last-modified", "link", "location", "retry-after", "vary",
    "www-authenticate",
    # In place of a body that the web server has.
    "x-accel-buffering", "x-accel-charset", "x-accel-expires", "x-accel-limit-rate", "x-accel-redirect", "x-sendfile",
})  # fmt: skip
#: Those that speak of the body, and not of another one in its place.
_OF_BODY = frozenset({
    "accept-ranges", "cache-control", "content-disposition", "content-encoding", "content-language", "content-location",
    "content-range", "content-type", "etag", "expires", "last-modified", "x-accel-buffering", "x-accel-charset",
    "x-accel-expires", "x-accel-limit-rate", "x-accel-redirect", "x-sendfile",
})  # fmt: skip
#: The mark of a page whose Content-Security-Policy names what may run there, for this response alone.
_NONCE = re.compile(rb"\snonce\s*=")
#: Of these the line that stands in place of the body is none: a part of it, and none because the client has it.
_ABOUT_ANOTHER_BODY = frozenset({206, 304})
NOT_KEPT = "This has been done. Its answer was not kept.\n"


# What is kept of an answer --------------------------------------------------------------------------------------------


def keep(
    function: str, status: int, headers: Iterable[tuple[str, str]], body: bytes | None, *, policy_follows: bool = False
) -> dict[str, Any]:
    """What is kept of a response, for JSON. ``body``: None of one that cannot be read here.

    ``policy_follows``: the nonce of its scripts will be the second response's.
    """
    kept: dict[str, Any] = {"status": status, "headers": kept_of(headers)}
    if body is None:
        return _without(kept, function, "it is streamed")
    if len(body) > MAX_KEPT:
        return _without(kept, function, f"its body has {len(body):,} bytes, more than {MAX_KEPT:,}")
    if status == 304:
        return _without(kept, function, "it is for a client that has the page")
    said = {name.lower(): value for name, value in kept["headers"]}
    policy_is_known = policy_follows or "'nonce-" in said.get("content-security-policy", "")
    if "html" in said.get("content-type", "") and has_nonce(body) and not policy_is_known:
        return _without(kept, function, "it has a nonce, and the policy that names it is not the view's")
    return {**kept, **of_bytes(body)}


def of_bytes(body: bytes) -> dict[str, str]:
    """A body, for JSON."""
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"base64": b64encode(body).decode()}


def keep_value(
    function: str, value: object, status: int = 200, headers: Iterable[tuple[str, str]] = ()
) -> dict[str, Any]:
    """What is kept of a value, of which a framework makes the response: the value itself, as "value".

    What is above the view, a schema or a renderer, has to have the second time what it had the first. The status and
    the headers are for a value that is not kept.
    """
    kept: dict[str, Any] = {"status": status, "headers": kept_of(headers)}
    if isinstance(value, str) and has_nonce(value.encode("utf-8", "replace")):
        return _without(kept, function, "it has a nonce, and the policy that names it is not the view's")
    try:
        kept["value"] = pack(value)
    except NotPlain as why:
        return _without(kept, function, f"it {why}")
    return kept


def is_kept(kept: Mapping[str, Any]) -> bool:
    """Whether it can be given again."""
    return not kept.keys().isdisjoint(("body", "base64", "value"))


def writes_before(locked: Any) -> bool:
    """Whether its store writes the format before, in which a value is kept as the response that is made of it."""
    form: int = locked.options.config().format
    return form < NEWEST


def warn_of_lost(result: Any, locked: Any) -> None:
    """Of a function in a request nothing is kept without ``result=True``, and it may be a view that is hidden."""
    if result is not None and not locked.once.keeps_result:
        fields = {"lock_event": "done", "lock_function": locked.name}
        logger.warning(
            "%s was called in a request and is not its view. It returned a %s, and a repeated call will get None. "
            "Where it is the view, the decorators above it need functools.wraps; elsewhere set result=True.",
            locked.name, type(result).__name__, extra=fields,
        )  # fmt: skip


def kept_of(headers: Iterable[tuple[str, str]]) -> list[list[str]]:
    """The headers that are kept, of these."""
    return [[name, value] for name, value in headers if name.lower() in _KEPT]


def has_nonce(page: bytes) -> bool:
    """Whether a page's scripts are dead where its body is sent with another policy."""
    return _NONCE.search(page) is not None


def not_kept(function: str, why: str) -> dict[str, Any]:
    """What is kept of a value that cannot be given again."""
    return _without({"status": 200, "headers": []}, function, why)


def _without(kept: dict[str, Any], function: str, why: str) -> dict[str, Any]:
    fields = {"lock_event": "done", "lock_function": function}
    logger.warning("%s: recorded as done, but without its answer: %s.", function, why, extra=fields)
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


def is_given(locked: Any, response: type) -> bool:
    """Whether the function is given a response of this class, to set headers and cookies on: they are not seen here."""
    signature = resolved_signature(locked.function, locked.keys.signature)
    said = (each.annotation for each in signature.parameters.values())
    return any(isinstance(each, type) and issubclass(each, response) for each in said)


class Replay(NamedTuple):
    """An answer that is made again."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes

    @property
    def says_type(self) -> bool:
        """Whether it has a content type. If not, the second answer has none either, not the framework's own."""
        return any(name.lower() == "content-type" for name, _ in self.headers)


def replay(kept: Mapping[str, Any]) -> Replay:
    """The response again, with its own status, marked by :data:`REPLAYED`. If it was not kept, a line says so."""
    status, headers = kept["status"], [(name, value) for name, value in kept["headers"]]
    if "base64" in kept:
        body = b64decode(kept["base64"])
    elif "body" in kept:
        body = kept["body"].encode()
    else:
        status = 200 if status in _ABOUT_ANOTHER_BODY else status
        headers = [(name, value) for name, value in headers if name.lower() not in _OF_BODY]
        headers += [("Content-Type", "text/plain; charset=utf-8"), ("Cache-Control", "no-store")]
        body = NOT_KEPT.encode() if status != 204 else b""
    return Replay(status, [*headers, (REPLAYED, "true")], body)


# Forms ----------------------------------------------------------------------------------------------------------------


def hidden_field(name: str = FIELD) -> str:
    """A hidden field with a value that no other rendered form has: HTML, which a template must not escape."""
    return f'<input type="hidden" name="{html.escape(name)}" value="{secrets.token_urlsafe(16)}">'
