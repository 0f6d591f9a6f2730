"""SQLAlchemy: ``until="commit"`` over a session, and rows that a late holder cannot overwrite."""

from ..locks import hooks
from .fencing import Fenced, fenced_flush, fenced_get, fenced_update
from .transactions import SQLAlchemyIntegration

hooks.install(SQLAlchemyIntegration())

__all__ = ["Fenced", "fenced_flush", "fenced_get", "fenced_update"]
