"""A worker of Celery that the test is: it decides when a message is delivered, how often, or never."""

from __future__ import annotations

from contextvars import Context as NewContext
from typing import Any

from celery import Celery
from celery.app.task import Context
from celery.app.trace import trace_task
from celery.signals import task_revoked
from kombu.transport.memory import Channel


class Message:
    def __init__(self, app: Celery, raw: Any) -> None:
        self.headers: dict[str, Any] = raw.headers
        self.args, self.kwargs, embedded = raw.decode()
        self._app = app
        self._task = app.tasks[self.headers["task"]]
        self._request = {**self.headers, **embedded, "delivery_info": {"exchange": "", "routing_key": "celery"}}

    def run(self) -> tuple[str, Any]:
        """Deliver it to a process that holds nothing: the state of the task, and what it returned or raised."""
        traced = NewContext().run(
            trace_task, self._task, self.headers["id"], self.args, self.kwargs, dict(self._request), app=self._app
        )
        return ("SUCCESS", traced.retval) if traced.info is None else (traced.info.state, traced.info.retval)

    def drop(self) -> None:
        """As a worker does with what was revoked, or has expired."""
        task_revoked.send(self._task, request=Context(self._request), terminated=False, signum=None, expired=False)


class Mailbox:
    """A broker in memory, of an app of its own."""

    def __init__(self) -> None:
        Channel.queues.clear()
        self.app = Celery("mailbox", broker="memory://", backend="cache+memory://", set_as_current=False)
        self.app.conf.update(task_publish_retry=False, broker_transport_options={"polling_interval": 0.001})

    def task(self, **options: Any) -> Any:
        return self.app.task(shared=False, **options)

    def next(self) -> Message:
        """The next message that was sent. ``Empty`` if there is none."""
        with self.app.connection_for_read() as connection, connection.SimpleQueue("celery") as queue:
            message = queue.get(block=False)
            message.ack()
            return Message(self.app, message)
