"""Tasks of Celery beside Flask: its stores are those of an app, whose context the task's own ``__call__`` pushes."""

from __future__ import annotations

from typing import Any

import celery
import pytest
from flask import Flask

from distlock_web import distributed_lockable, held_locks
from distlock_web.celery import unique
from distlock_web.flask import DistLock
from tests.support.celery_mailbox import Mailbox


@pytest.fixture
def app() -> Flask:
    app = Flask(__name__)
    app.config["DISTLOCK"] = {"default": {"BACKEND": "memory"}}
    DistLock(app)
    return app


def in_context_of(app: Flask) -> type:
    """As Flask's documentation has it."""

    class FlaskTask(celery.Task):
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            with app.app_context():
                return self.run(*args, **kwargs)

    return FlaskTask


def test_the_lock_that_came_with_the_message_is_taken_on_and_goes_along(app: Flask) -> None:
    mailbox = Mailbox()

    @mailbox.task(base=in_context_of(app), bind=True)
    @distributed_lockable("report:{month}", expire=10)
    def report(self: Any, month: str) -> str:
        assert [row.lock.state for row in held_locks()] == ["held"]
        if self.request.retries == 0:
            raise self.retry(countdown=500)
        return month

    with app.app_context():
        assert unique(report).delay("May").id
    for outcome in ("RETRY", "SUCCESS"):
        with app.app_context():
            assert unique(report).delay("May") is None
        assert mailbox.next().run()[0] == outcome
    with app.app_context():
        assert held_locks() == []
