"""``distlock run``: a command that runs while a lock is held, and not longer."""

from __future__ import annotations

import os
import threading
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager

from ..core.errors import BackendUnavailable, DistLockError, LeaseLost, LockBusy
from ..core.registry import Registry, registry
from ..core.runtime import now
from ..locks.lease import Lease
from ..locks.lock import Lock, lock
from ..web.held_locks import find_lock
from ..web.printable import printable
from ..web.request_ids import RequestScope
from .exit_codes import LOST, SIGNALLED, UNAVAILABLE, USAGE, CommandFailed
from .job import Interrupted, Job, Signals
from .output import Output
from .parser import Context

#: Seconds of waiting after which somebody at a terminal is told for whom.
TELL_AFTER = 1.0


def run(options: Namespace, context: Context) -> int:
    if not options.argv:
        raise CommandFailed("run: which command? `distlock run --key KEY -- COMMAND`", USAGE)
    if not hasattr(os, "posix_spawnp"):
        raise CommandFailed("run: this system has no process groups; run works on Linux, macOS and the BSDs.", USAGE)
    scope = RequestScope(None, f"run {os.path.basename(options.argv[0])}")  # without arguments: they may be secret
    outer = scope.enter()
    try:
        with Signals() as signals:
            return Run(options, context.errors, signals, registry()).run()
    except Interrupted as interrupted:
        return SIGNALLED + interrupted.signum
    except LockBusy as error:
        if options.busy_exit_code == 0:  # it is all right that another one runs
            return 0
        raise CommandFailed(str(error), options.busy_exit_code) from error
    except BackendUnavailable as error:
        raise CommandFailed(str(error), UNAVAILABLE) from error
    finally:
        scope.leave(outer)


class Run:
    def __init__(self, options: Namespace, errors: Output, signals: Signals, stores: Registry) -> None:
        self._options = options
        self._errors = errors
        self._signals = signals
        self._stores = stores  # asked from another thread, which is in no application
        self._job: Job | None = None
        self._lost = False

    def run(self) -> int:
        lease: Lease | None = None
        code = 0
        patience = threading.Timer(TELL_AFTER, self._tell_who_has_it)
        patience.daemon = True
        if self._errors.terminal:
            patience.start()
        try:
            with self._lock() as lease:
                patience.cancel()
                code = self._under_lock(lease)
            self._lost = self._lost or lease.state == "lost"
        except LeaseLost as error:
            self._say(f"{error}")
            self._lost = True
        except BackendUnavailable as error:
            if lease is None:
                raise
            self._say(f"the command has ended, and the lock was not released; it ends by itself. {error}")
        finally:
            patience.cancel()
        return LOST if self._lost and self._options.on_lost == "kill" else code

    def _lock(self) -> Lock:
        options = self._options
        return lock(
            options.key, expire=options.expire, wait=options.wait, renew=True, prefix=options.prefix,
            store=options.store or "default", on_lost=self._when_lost,
        )  # fmt: skip

    def _tell_who_has_it(self) -> None:
        """Say for whom we wait."""
        try:
            holder = f", {find_lock(self._stores, self._options.key, self._options.store).describe()}"
        except DistLockError:  # it has just been released, or the store cannot tell
            holder = ""
        self._say(f"waiting for the lock {self._options.key}{holder}")

    def _under_lock(self, lease: Lease) -> int:
        options = self._options
        self._signals.starting()
        self._job = job = Job(options.kill_after)
        try:
            with _reported(lease, job, options.on_lost == "kill"):
                job.start(options.argv, _environment(options.key, lease))
                self._signals.started(job.group)
                return job.wait()
        finally:
            job.close()
            self._signals.ended()
            self._lost = self._lost or job.was_ended

    def _when_lost(self, lease: Lease) -> None:
        self._lost = True
        ending = self._options.on_lost == "kill"
        self._say(f"lost the lock {lease.name} ({lease.reason}); the command {'is ended' if ending else 'goes on'}.")
        if ending and self._job is not None:
            self._job.end()

    def _say(self, text: str) -> None:
        self._errors.stream.write(f"distlock: {printable(text)}\n")
        self._errors.stream.flush()


@contextmanager
def _reported(lease: Lease, job: Job, ends: bool) -> Iterator[None]:
    """Tell the guard until when the lock is held, again and again: it ends a command whose time has come.

    We may be stopped, or have no turn for long, and then nobody else would. ``ends``: whether it is to be ended.
    """
    if not ends:
        yield
        return
    over = threading.Event()
    thread = threading.Thread(target=_report, args=(lease, job, over), name="distlock-run", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _report(lease: Lease, job: Job, over: threading.Event) -> None:
    pause = min(1.0, lease.remaining / 10)
    while True:
        asked = now()  # before: the moment must not be later than the lock's end
        job.held_until(0.0 if lease.lost else asked + lease.remaining)
        if over.wait(pause):
            return


def _environment(key: str, lease: Lease) -> dict[str, str]:
    """Our own, with the lock's key, name and fence in it. An outer ``distlock run``'s fence is taken out."""
    environment = {name: value for name, value in os.environ.items() if name != "DISTLOCK_FENCE"}
    environment.update(DISTLOCK_KEY=key, DISTLOCK_NAME=lease.name)
    if lease.fence is not None:
        environment["DISTLOCK_FENCE"] = str(lease.fence)
    return environment
