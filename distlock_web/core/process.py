"""This process, and the copies of it: a fork, by Python or in C."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable


class Process:
    """This process, as opposed to the one that it was copied from: what that one has is not its own.

    Python tells of a fork only where Python forks. uWSGI forks in C, after the app was loaded. So code that enters a
    store, or asks what a hold is worth, calls :func:`check_process` first.
    """

    generation = 0  #: how often it was copied: what is inherited is of another one
    pid = os.getpid()  #: of the process that has forgotten what was its parent's
    forgetting = 0  #: the pid of the one that is about to
    forked_at = 0  #: its generation when Python was about to fork


_on_copy: list[Callable[[], None]] = []
_copying: dict[int, threading.RLock] = {}


def after_fork(callback: Callable[[], None]) -> None:
    """Call this once in every copy of this process, before anything else of ours; in the order of registration."""
    _on_copy.append(callback)


def around_fork(before: Callable[[], None], after_in_parent: Callable[[], None]) -> None:
    """Call these in a process that forks by Python's means; never, where there is no fork."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=before, after_in_parent=after_in_parent)


def check_process() -> None:
    """Forget what is the parent's, if this is a copy of it that has not done so. Where it is none: one comparison."""
    if os.getpid() != Process.pid:
        _copied()


def _copied() -> None:
    pid = os.getpid()
    # A lock of this process alone: a thread of the parent may have been inside another, and is not here to leave it.
    with _copying.setdefault(pid, threading.RLock()):
        if pid in (Process.pid, Process.forgetting):
            return
        Process.forgetting = pid
        try:
            Process.generation += 1
            for callback in _on_copy:
                callback()
            Process.pid = pid  # at last: other threads wait until then
        finally:
            Process.forgetting = 0


def _note_fork() -> None:
    Process.forked_at = Process.generation


def _forked() -> None:
    """In the child of a fork that Python tells of, sooner than it would be noticed, and whatever its pid is.

    In a namespace of its own it may have that of its parent: 1, where the parent is the first in a container.
    """
    if Process.generation != Process.forked_at:  # a hook that comes before this one has used a lock: it was noticed
        return
    Process.pid = Process.forgetting = 0
    _copying.clear()
    _copied()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_note_fork, after_in_child=_forked)
