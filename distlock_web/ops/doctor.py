"""What is set up so that it will hurt, over all stores. ``docs/doctor.md`` explains every code.

The command line prints it, and Django's deploy check reports it. What only a server can tell comes from its backend
(``Backend.diagnose``), what only a framework can tell from that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from ..core.config import SETTINGS
from ..core.errors import ConfigurationError, DistLockError, LockBusy
from ..core.findings import SEVERITIES, Finding
from ..core.registry import Store
from ..locks.lock import lock
from ..locks.request_context import request_scope

#: The trial lock: no other code takes one of this name.
TRIAL_KEY = "distlock doctor"


def by_severity(findings: Iterable[Finding]) -> list[Finding]:
    """The worst first."""
    return sorted(findings, key=lambda finding: (-SEVERITIES.index(finding.severity), finding.where, finding.code))


def examine_store(store: Store) -> Iterator[Finding]:
    """Everything that is wrong with this store. Blocking: it is asked once."""
    for finding in (*_settings(store), *_server(store)):
        yield replace(finding, where=f"store {store.alias}")


def _settings(store: Store) -> Iterator[Finding]:
    usual = SETTINGS["PREFIX"].default
    if store.config.prefix == usual and store.config.backend != "memory" and not store.config.database:
        yield Finding(
            "DL008", "info", f"PREFIX is not set, so names begin with {usual!r}, as in every other project.",
            "Two projects on one server would share the locks of one name, and the answers of once.",
            f"{store.config.setting('PREFIX')}: a name of this project, such as 'shop:'.",
        )  # fmt: skip
    if store.config.backend == "memory":
        yield Finding(
            "DL003", "warning", "The locks are kept in memory.",
            "They exclude nobody in other processes: another worker can take the same lock.",
            f"{store.config.setting('LOCATION')}: a store that all processes share.",
        )  # fmt: skip


# The server ----------------------------------------------------------------------------------------------------------


def _server(store: Store) -> Sequence[Finding]:
    found: list[Finding] = []
    try:
        backend = store.backend
    except ConfigurationError as error:
        return [_wrong(error)]
    try:
        # A lock as any other needs the connection, the password and every right. In a request of its own, so that it
        # re-enters no lock of the caller's. (An empty context would do that, too, but lose Flask's app.)
        with request_scope(path=TRIAL_KEY):
            _take_trial_lock(store.alias)
    except DistLockError as error:
        found.append(_wrong(error) if isinstance(error, ConfigurationError) else _unavailable(error))
    try:
        found += backend.diagnose()
    except DistLockError as error:
        if not found:  # else it is the same, said once more
            found.append(_unavailable(error))
    return found


def _take_trial_lock(alias: str) -> None:
    try:
        lock(TRIAL_KEY, store=alias, wait=0).acquire().release()
    except LockBusy:  # another doctor: it can be taken
        pass


def _wrong(error: DistLockError) -> Finding:
    return Finding("DL002", "error", str(error), "No lock of this store can be taken.", "What the message names.")


def _unavailable(error: DistLockError) -> Finding:
    return Finding(
        "DL001", "error", f"No lock can be taken: {error}",
        "Requests that need a lock are answered with 503, or go on without it.",
        "The address and the network from here to there, or the server.",
    )  # fmt: skip
