"""Who is told of a block's loss: also who comes after it, and nobody who has gone."""

from __future__ import annotations

import pytest

from distlock_web import LeaseLost, lock
from distlock_web.locks.lease import scope_of

pytestmark = pytest.mark.usefixtures("memory_store")


def test_of_a_block_that_outlives_the_one_around_it_all_are_told_who_listen() -> None:
    told: list[str] = []
    with lock("a") as outer, pytest.raises(LeaseLost), lock("a") as nested:
        scope = scope_of(nested)
        for who in ("early", "gone"):
            scope.on_end(lambda who=who: told.append(who))  # type: ignore[misc]
        gone = scope._callbacks[-1]
        scope.forget_callback(gone)
        scope.forget_callback(gone)  # he may have been told just now
        assert told == []
        outer.release()
        scope.on_end(lambda: told.append("late"))
        assert set(told) == {"early", "late"}
