"""``distlock run``: a command that runs while a lock is held, and not longer."""

from __future__ import annotations

import os
import threading
from argparse import Namespace

from ..core.errors import BackendUnavailable, DistLockError, LeaseLost, LockBusy
from ..core.findings import TableMaking
from ..core.registry import Registry, registry
from ..locks.lease import Lease
from ..locks.lock import Lock, lock
from ..web.held_locks import find_lock
from ..web.printable import printable
from ..web.request_ids import RequestScope
from .exit_codes import LOST, SIGNALLED, UNAVAILABLE, USAGE, CommandFailed
from .job import Interrupted, Job
from .output import Output
from .parser import Context

#: Seconds of waiting after which somebody at a terminal is told for whom.
TELL_AFTER = 1.0


def run(options: Namespace, context: Context) -> int:
    if not options.argv:
        raise CommandFailed("run: which command? `distlock run --key KEY -- COMMAND`", USAGE)
    if not hasattr(os, "posix_spawn"):
        raise CommandFailed("run: this system has no process groups; run works on Linux, macOS and the BSDs.", USAGE)
    scope = RequestScope(None, f"run {os.path.basename(options.argv[0])}")  # without arguments: they may be secret
    outer = scope.enter()
    try:
        with Job(options.kill_after) as job:
            return Run(options, context.errors, job, registry()).run()
    except Interrupted as interrupted:
        return SIGNALLED + interrupted.signum
    except LockBusy as error:
        raise CommandFailed(f"{error} The command was not run.", options.busy_exit_code) from error
    except BackendUnavailable as error:
        raise CommandFailed(str(error), UNAVAILABLE) from error
    finally:
        scope.leave(outer)


class Run:
    def __init__(self, options: Namespace, errors: Output, job: Job, stores: Registry) -> None:
        self._options = options
        self._errors = errors
        self._job = job
        self._stores = stores  # asked from another thread, which is in no application
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
        options, alias = self._options, self._options.store or "default"
        backend = self._stores.store(alias).backend
        if (
            isinstance(backend, TableMaking) and backend.makes_tables
        ):  # Django's tables come by migrate, which may be the command
            backend.prepare()
        return lock(
            options.key, expire=options.expire, wait=options.wait, renew=True, prefix=options.prefix,
            store=alias, on_lost=self._when_lost,
        )  # fmt: skip

    def _tell_who_has_it(self) -> None:
        """Say for whom we wait."""
        try:
            holder = f", {find_lock(self._stores, self._options.key, self._options.store).describe()}"
        except DistLockError:  # it has just been released, or the store cannot tell
            holder = ""
        self._say(f"waiting for the lock {self._options.key}{holder}")

    def _under_lock(self, lease: Lease) -> int:
        try:
            self._job.start(self._options.argv, _environment(self._options.key, lease))
            return self._job.wait(lambda: self._options.on_lost == "warn" or lease.state != "lost")
        finally:
            self._job.close()

    def _when_lost(self, lease: Lease) -> None:
        self._lost = True
        ending = self._options.on_lost == "kill"
        if ending:
            self._job.end()
        self._say(f"lost the lock {lease.name} ({lease.reason}); the command {'is ended' if ending else 'goes on'}.")

    def _say(self, text: str) -> None:
        self._errors.stream.write(f"distlock: {printable(text)}\n")
        self._errors.stream.flush()


def _environment(key: str, lease: Lease) -> dict[str, str]:
    """Our own, with the lock's key, name and fence in it. An outer ``distlock run``'s fence is taken out."""
    environment = {name: value for name, value in os.environ.items() if name != "DISTLOCK_FENCE"}
    environment.update(DISTLOCK_KEY=key, DISTLOCK_NAME=lease.name)
    if lease.fence is not None:
        environment["DISTLOCK_FENCE"] = str(lease.fence)
    return environment
