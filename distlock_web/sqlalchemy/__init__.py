"""SQLAlchemy: ``until="commit"`` over a session, and rows that a late holder cannot overwrite."""

from ..locks.hooks import transaction_managers
from .fencing import Fenced, fenced_flush, fenced_get, fenced_update
from .transactions import SessionTransactions

transaction_managers.append(SessionTransactions())

__all__ = ["Fenced", "fenced_flush", "fenced_get", "fenced_update"]
