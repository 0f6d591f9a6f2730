"""A streaming response goes on under the lock of its view, until its body is sent, fails, or is closed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.http import StreamingHttpResponse

from ..core.carry import Carried
from ..core.decorator import Guard


def carry_response(result: Any, guard: Guard, carry: Callable[[object], Carried]) -> StreamingHttpResponse | None:
    """The carrier (see ``core.lifetime``) of ``StreamingHttpResponse`` and ``FileResponse``."""
    if not isinstance(result, StreamingHttpResponse):
        return None
    carried = carry(result)
    # Django calls these when the response is closed: after the last byte, and when the client has gone.
    closers: list[Callable[[], None]] = result._resource_closers  # type: ignore[attr-defined]
    closers.append(carried.close)
    if getattr(result, "file_to_stream", None) is None:  # a plain file is left to the server's own way (sendfile)
        body: Any = result.streaming_content
        result.streaming_content = carried.aiterate(body) if result.is_async else carried.iterate(body)
    return result
