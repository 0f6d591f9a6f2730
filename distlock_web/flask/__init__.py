"""Flask: ``DistLock(app)`` gives every request an id, every app its stores, and a busy lock its 409."""

from importlib.util import find_spec

from ..core import lifetime
from .extension import DistLock
from .streaming import carry_response

lifetime.carriers.append(carry_response)
if find_spec("sqlalchemy") is not None:
    from . import transactions

    lifetime.transaction_owners.insert(0, transactions.AppSessionTransactions())
    lifetime.open_transactions.append(transactions.open_transaction)
    transactions.remember_writes()

__all__ = ["DistLock"]
