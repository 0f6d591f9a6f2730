"""Which row a mapped object stands for."""

from __future__ import annotations

from sqlalchemy import inspect
from sqlalchemy.orm import InstanceState

from ..core.keys import Row


def row_of(value: object) -> Row | None:
    """Its table and primary key; None if it is not mapped. Reads nothing, though it may be expired or detached."""
    state = inspect(value, raiseerr=False)
    if not isinstance(state, InstanceState):
        return None
    # The class is that in whose table the key is: of joined inheritance, the first.
    entity, key, *_ = state.identity_key or state.mapper.identity_key_from_instance(state.obj())
    table = inspect(entity).local_table
    return getattr(table, "fullname", f"{entity.__module__}.{entity.__qualname__}"), tuple(key)
