"""Django signals of what happens to locks: ``lock_lost.connect(receiver)``, ``@receiver(lock_busy)``.

A receiver gets ``sender`` (the class ``Event``) and ``event``. It runs where it happened, in that thread and, in async
code, in that event loop, and the lock waits for it: it must be a plain function, and quick. What it raises is logged by
Django and goes no further. Of a loss that the watchdog notices it is told in a thread beside it.

Nothing is made, and no time spent, while no receiver is connected to any of them.
"""

from __future__ import annotations

from typing import Any

from django.dispatch import Signal

from ..locks import events
from ..locks.events import Event


class _LockSignal(Signal):
    """A signal that begins to listen when a receiver connects to it."""

    def connect(self, *args: Any, **kwargs: Any) -> None:
        super().connect(*args, **kwargs)
        events.subscribe(_forward, inline=True)


lock_acquired = _LockSignal()
lock_busy = _LockSignal()  #: refused: ``event.holder`` has it
lock_waited = _LockSignal()  #: it was not free: then it was acquired, or busy
lock_renewed = _LockSignal()
lock_released = _LockSignal()
lock_lost = _LockSignal()  #: ``event.reason``
lock_error = _LockSignal()  #: the store failed; ``event.reason``: in what
lock_let_through = _LockSignal()  #: a function runs without its lock
lock_revoked = _LockSignal()  #: released by force, in this process; ``event.reason``: by whom
lock_unsent = _LockSignal()  #: ``unique`` has not sent a task, for it is queued, or running

#: By the kind of their events.
_signals = {name[5:]: each for name, each in globals().items() if isinstance(each, _LockSignal)}


def _forward(event: Event) -> None:
    _signals[event.kind].send_robust(sender=Event, event=event)
