"""Blinker signals of what happens to locks, as Flask's own: ``lock_lost.connect(receiver)``.

A receiver gets the sender and ``event``. The sender is the running app, or None where none runs: in a thread of your
own, and wherever a loss is noticed beside the request. Connect without a sender to be told of all. A receiver runs
where it happened, and the lock waits for it: it must be quick. What it raises is logged and goes no further.

Nothing is made, and no time spent, while no receiver is connected to any of them.
"""

from __future__ import annotations

import logging
from typing import Any

from blinker import NamedSignal
from flask import current_app

from ..locks import events
from ..locks.events import Event

logger = logging.getLogger("distlock_web")


class _LockSignal(NamedSignal):
    """A signal that begins to listen when a receiver connects to it."""

    def connect(self, *args: Any, **kwargs: Any) -> Any:
        receiver = super().connect(*args, **kwargs)
        events.subscribe(_forward, inline=True)
        return receiver


lock_acquired = _LockSignal("lock-acquired")
lock_busy = _LockSignal("lock-busy")  #: refused: ``event.holder`` has it
lock_waited = _LockSignal("lock-waited")  #: it was not free: then it was acquired, or busy
lock_renewed = _LockSignal("lock-renewed")
lock_released = _LockSignal("lock-released")
lock_lost = _LockSignal("lock-lost")  #: ``event.reason``
lock_error = _LockSignal("lock-error")  #: the store failed; ``event.reason``: in what
lock_let_through = _LockSignal("lock-let-through")  #: a function runs without its lock
lock_revoked = _LockSignal("lock-revoked")  #: released by force, in this process; ``event.reason``: by whom
lock_unsent = _LockSignal("lock-unsent")  #: ``unique`` has not sent a task, for it is queued, or running

#: By the kind of their events.
_signals = {name[5:]: each for name, each in globals().items() if isinstance(each, _LockSignal)}


def _forward(event: Event) -> None:
    app = current_app._get_current_object() if current_app else None  # type: ignore[attr-defined]
    for receiver in _signals[event.kind].receivers_for(app):
        try:
            receiver(app, event=event)
        except Exception:  # one receiver's failure keeps no other from being told
            logger.exception("The receiver %r of a lock's signal failed", receiver)
