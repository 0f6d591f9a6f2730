"""Flask: ``DistLock(app)`` gives every request an id, every app its stores, and a busy lock its 409."""

from importlib.util import find_spec

from ..locks import hooks
from .extension import DistLock
from .streaming import adapt_stream

hooks.stream_adapters.append(adapt_stream)
if find_spec("sqlalchemy") is not None:
    from . import transactions

    hooks.transaction_managers.insert(0, transactions.AppSessionTransactions())
    hooks.open_transactions.append(transactions.open_transaction)
    transactions.remember_writes()

__all__ = ["DistLock"]
