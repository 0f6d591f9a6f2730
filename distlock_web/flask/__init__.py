"""Flask: ``DistLock(app)`` gives every request an id, every app its stores, and a busy lock its 409."""

from .extension import DistLock

__all__ = ["DistLock"]
