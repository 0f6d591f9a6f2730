"""Starlette and FastAPI: ``DistLock(app)`` gives every request an id, the app its stores, and a busy lock its 409."""

from ..locks import hooks
from .extension import DistLock
from .integration import StarletteIntegration

hooks.install(StarletteIntegration())  # now: endpoints are decorated before there is an app

__all__ = ["DistLock"]
