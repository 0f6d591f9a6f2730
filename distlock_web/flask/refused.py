"""The answer to a request that could not run under its lock: 409 or 503, unless the app says otherwise."""

from __future__ import annotations

from flask import current_app
from flask.typing import ResponseReturnValue

from ..core.errors import BackendUnavailable, DistLockError, LockBusy
from . import responses


def refused(error: LockBusy | BackendUnavailable) -> ResponseReturnValue:
    """The error handler that ``init_app`` registers. One of the app's own for the same class replaces it."""
    general = current_app.error_handler_spec[None][None].get(DistLockError)
    if general is not None:
        # Flask prefers the handler of the more special class, which here is ours: the app's own comes first.
        return current_app.ensure_sync(general)(error)  # type: ignore[no-any-return]
    return responses.refused(error)
