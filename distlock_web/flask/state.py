"""What belongs to one app, and which app's is meant by the running code."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from flask import current_app

from ..core.errors import ConfigurationError
from ..core.registry import Registry

KEY = "distlock"


@dataclass(frozen=True, slots=True)
class AppState:
    """``app.extensions["distlock"]``."""

    registry: Registry | None  #: None: the process's stores
    header: str
    proxy: str | None = None  #: the key of the proxy's header in an environment
    user: Callable[[Any], object] | None = None  #: ``DISTLOCK_USER``


# The body of a streamed response runs after its app context has ended, and still belongs to the app.
serving: ContextVar[AppState | None] = ContextVar("distlock_flask_serving", default=None)


def app_registry() -> Registry | None:
    """The stores of the running app; None outside of any, or if it has none of its own."""
    if not current_app:
        state = serving.get()
        return state.registry if state else None
    state = current_app.extensions.get(KEY)
    if state is None or state.registry is not None:
        return state and state.registry
    if "DISTLOCK" in current_app.config:
        raise ConfigurationError(
            f"app.config['DISTLOCK'] of {current_app.name!r} was set after DistLock's init_app, so it has no effect: "
            f"set it before."
        )
    return None
