"""What Flask offers to locks: the stores of the running app, and its streamed responses."""

from __future__ import annotations

from typing import Any

from werkzeug.wrappers import Response

from ..core.registry import Registry
from ..locks.hooks import Integration
from ..locks.lease import Lease
from .state import running_registry
from .streaming import send_under_lock


class FlaskIntegration(Integration):
    """One for all apps of the process: it looks at the app that is running."""

    def running_registry(self) -> Registry | None:
        return running_registry()

    def stream(self, result: Any, function: object, lease: Lease) -> Response | None:
        return send_under_lock(result, function, lease)
