"""SQLAlchemy: ``until="commit"`` over a session, and rows that a late holder cannot overwrite."""

from ..core.lifetime import transaction_owners
from .fencing import Fenced, guarded_flush, guarded_get, guarded_update
from .transactions import SessionTransactions

transaction_owners.append(SessionTransactions())

__all__ = ["Fenced", "guarded_flush", "guarded_get", "guarded_update"]
