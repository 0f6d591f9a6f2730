"""For ``settings.LOGGING``: ``"filters": {"request_id": {"()": "distlock_web.django.logging.RequestIDFilter"}}``."""

from ..core.request_id import RequestIDFilter

__all__ = ["RequestIDFilter"]
