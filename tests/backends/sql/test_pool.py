"""Connections that are given back while the store is closed: none stays open."""

from __future__ import annotations

from typing import Any

import pytest

from distlock_web import configure


def test_a_connection_that_is_given_back_while_the_pool_is_emptied_is_closed(
    sqlite_settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It came after the others were closed, and before the pool was known to be the former one."""
    backend: Any = configure({"default": sqlite_settings}).store("default").backend
    database = backend._requests
    pool, connection = database.engine.pool, database._connect()
    dispose = pool.dispose

    def give_back_after() -> None:
        dispose()
        if not connection.closed:
            database._give_back(connection, pool)

    monkeypatch.setattr(pool, "dispose", give_back_after)
    database.close()
    assert connection.closed
    assert pool.checkedin() == 0
    backend.close()
