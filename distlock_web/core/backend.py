"""The seam: what a store must offer so that the engine can run on it.

A *backend* is what a setting's ``BACKEND`` names: one object per alias and process. It gives out *ports*, the same
verbs for threads and for asyncio. All verbs are coroutines: a blocking port's never suspend (``runtime.drive`` runs
them), an asyncio port's do. Every verb may be sent twice and answers the same (law 3); none retries by itself. A store
that does not answer raises ``BackendUnavailable`` within a bounded time.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Generic, Literal, NamedTuple, Protocol, TypeAlias, TypeVar, TypeVarTuple

from .config import StoreConfig
from .database_address import DatabaseAddress
from .errors import BackendUnavailable, DistLockError, NotSent
from .findings import Finding
from .runtime import Runtime, Token
from .setting import Settings

Args = TypeVarTuple("Args")
T = TypeVar("T")
Moment = TypeVar("Moment", int, float)

#: Why a lease is gone, as a store can tell it. None: it is still ours.
Loss: TypeAlias = Literal["expired", "taken", "revoked"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a store can and cannot do; asked when a lock is taken, before anything is sent.

    The table in docs/which-store.md is made from this: a new field is a new column.
    """

    queue: bool = False  #: serves those who wait in the order in which they came
    transfer: bool = False  #: can exchange the owner: ``detach`` and ``attach``
    records: bool = False  #: keeps with what is done what was answered: ``once``
    bounded_queue: bool = False  #: can refuse who comes when so many wait: ``max_waiters``
    sharing: bool = False  #: one lock may have several holders: ``limit``, ``shared``
    min_expire: float  #: the shortest lease it can express, in seconds
    max_expire: float = float("inf")  #: the longest; also for what ``hold_at_least`` makes of it


#: Of its time and, in seconds, beside that: how much sooner than the store we believe a lease to end. Clocks run
#: unevenly (1 %, as Redlock assumes).
DRIFT_RATIO, DRIFT_SECONDS = 0.01, 0.002


def drift(expire: float) -> float:
    """How much sooner than the store we believe a lease of so many seconds to end."""
    return expire * DRIFT_RATIO + DRIFT_SECONDS


#: The number of a claim that lets any number of others in that do the same: a reader's. No lock has so many holders.
SHARED = 1_000_000


def at_once(one: int, other: int) -> int:
    """How many may hold a lock where some of them let so many and some so many: the smaller number of these two.

    Readers let in any number, but readers alone: they and those with a number of their own exclude each other.
    """
    return min(one, other) if (one == SHARED) == (other == SHARED) else 1


class Ends(NamedTuple, Generic[Moment]):
    """When the leases on a lock end, the first in front, and how many of them it admits."""

    moments: Sequence[Moment]
    limit: int

    def free_at(self, token: Token) -> Moment:
        """When so many have ended that this token may have it; all of them, where others wait in front of it."""
        needed = len(self.moments) - at_once(self.limit, token.limit) + 1
        return self.moments[needed - 1 if needed > 0 else -1] if self.moments else 0


class Claim(NamedTuple):
    """One acquisition of one name: what is asked of the store, and the proof afterwards.

    A lock may be held by as many as each of its holders lets (the limit of its token, :func:`at_once`).
    """

    name: str
    token: Token
    expire: float
    holder: str = ""  #: who holds it, for people: what ``HolderInfo.current`` made
    #: It joins the queue only where fewer wait; None: however many. A claim that stands in the queue keeps its place.
    max_waiters: int | None = None
    #: Of ``once``: a record may be there that the lock itself does not tell of, for it was written within a transaction
    #: of its caller's, whose release never came.
    once: bool = False


class Granted(NamedTuple):
    """The lock is ours. ``since``: a moment on our clock that is not later than the beginning of the store's lease."""

    fence: int | None
    since: float


class Busy(NamedTuple):
    """It is another's. Asking again before ``recheck_after`` seconds cannot help, unless the store wakes us."""

    recheck_after: float  #: always positive
    remaining: float  #: what is left of the holder's lease
    memo: Any = None  #: for the store alone, such as the place in its queue: who asks again gives it back
    holder: str = ""  #: who has it, for people: what its ``Claim`` said
    held_for: float | None = None  #: seconds since it was taken, by the store's clock; None: the store does not tell
    #: It is done, and stays so for ``remaining``: what its release has left here. Who is told so is not in the queue.
    record: str | None = None
    full: bool = False  #: ``max_waiters`` wait already: it has not joined the queue

    @property
    def final(self) -> bool:
        """The caller has no place in the queue, and does not wait for one."""
        return self.full or self.record is not None


@dataclass(frozen=True, slots=True)
class LockInfo:
    """One line of the admin page."""

    name: str
    fence: int | None
    holder: str
    since: float  #: seconds since the epoch, by the store's clock
    remaining: float
    waiters: int
    #: ``held``; ``cooldown`` for a while after its end (``hold_at_least``); ``transit``, detached and not yet attached;
    #: ``done``, as ``cooldown``, with a record.
    state: str
    waiting_since: float | None = None  #: since when the first in the queue waits, like ``since``; None: not known
    holders: int = 1  #: how many hold it; each has a line, of which only the first tells of those who wait
    limit: int = 1  #: how many may: the smallest number of theirs; ``SHARED``: as many as come


@dataclass(frozen=True, slots=True)
class WaiterInfo:
    """One place in the queue of a lock."""

    holder: str  #: who waits, for people: what its ``Claim`` said
    since: float  #: seconds since the epoch, by the store's clock


class Port(Protocol):
    """The verbs, for threads or for asyncio. A store's port inherits it."""

    runtime: Runtime

    @abstractmethod
    async def acquire(self, claim: Claim, wait: float | None) -> Granted | Busy:
        """Take the lock if it is free and its queue empty. Otherwise, where ``wait`` is not 0, join the queue.

        Where ``claim.max_waiters`` wait already, ``Busy`` is ``full``. It is judged in the step that joins the queue:
        of two that ask at once for the last place, one gets it.
        """

    @abstractmethod
    async def wait(self, claim: Claim, busy: Busy, seconds: float | None) -> Granted | Busy:
        """Sleep until woken or ``busy.recheck_after`` is over, and ask again; or ``busy``, if ``seconds`` end first."""

    @abstractmethod
    async def cancel(self, claim: Claim) -> None:
        """Leave the queue, or release what was granted meanwhile: afterwards nothing of this claim is left."""

    @abstractmethod
    async def extend(
        self, claims: Sequence[Claim], timeout: float | None = None
    ) -> Sequence[Loss | DistLockError | None]:
        """Give each lease that is still ours at least its ``expire`` again. ``timeout`` bounds the request.

        Where a store is several servers, one that does not answer, or refuses, fails its own claims only: the error is
        their answer.
        """

    @abstractmethod
    async def release(self, claim: Claim, cooldown: float = 0.0, record: str | None = None) -> Loss | None:
        """Give the lock back and to the next in the queue; with ``cooldown``, leave it taken for so many seconds.

        With a ``record`` beside that it is done: in the same step the record is stored, for as long, and everybody in
        the queue is woken, to be told so and to leave. It is of one that has the lock alone, never of a share.
        """

    @abstractmethod
    async def inspect(self, names: Sequence[str] | None = None) -> list[LockInfo]:
        """What is held now, of all. Of these names, also what is done."""

    @abstractmethod
    async def revoke(self, name: str, fence: int) -> bool:
        """Take the lock from the holder with this fence; its holder learns at its next round trip.

        False: it is not held under this fence, or it is done already.
        """

    # What a port may offer beside: what it inherits says that it does not. -------------------------------------------

    async def detach(self, claim: Claim, transit: str, seconds: float) -> Loss | None:
        """Exchange the owner for a transit token that lives ``seconds``. Asked only of a store with ``transfer``."""
        raise AssertionError("nobody asks this of a store that cannot transfer")

    async def attach(self, claim: Claim, transit: str) -> Granted | None:
        """Exchange a transit token for ``claim.token``; None: unknown, used or too late."""
        return None

    async def names(self, limit: int | None = None) -> tuple[int, list[str]] | None:
        """How many locks are held; and the names of those that end first, ``limit`` at most. No name comes twice.

        Of a store that may hold more locks than one wants to read at once. None: ``inspect`` reads them all.
        """
        return None

    async def waiters(self, name: str, limit: int) -> list[WaiterInfo] | None:
        """Who waits for this lock, the first in the queue in front, ``limit`` at most. None: it cannot tell."""
        return None

    async def done(self, limit: int) -> list[LockInfo]:
        """What is done, the newest in front, ``limit`` at most: of a store with ``records``."""
        return []

    async def forget(self, name: str, fence: int) -> bool:
        """What is done under this fence was never done: the next call runs. False: it is not.

        No ``revoke``: one that comes late, when the holder has ended well, must not have its work done again.
        """
        return False


async def retry_once(verb: Callable[[*Args], Awaitable[T]], *args: *Args) -> T:
    """Ask again, once, if the answer did not come: every verb may be sent twice (law 3)."""
    try:
        return await verb(*args)
    except NotSent:
        raise
    except BackendUnavailable:
        return await verb(*args)


class StatementResult(NamedTuple):
    """Of a statement that a caller's transaction has executed."""

    rows: list[Any]  #: with their columns as attributes
    rowcount: int

    def all(self) -> list[Any]:
        return self.rows

    def first(self) -> Any:
        return self.rows[0] if self.rows else None

    def scalar(self) -> Any:
        """The first column of the first row."""
        return self.rows[0][0] if self.rows else None


class CallersTransaction(Protocol):
    """The transaction of ``until="commit"``, on the caller's own connection, for a store that is in that database."""

    placeholder: Literal["%s", "?"]  #: how its statements mark a parameter

    @property
    def address(self) -> DatabaseAddress: ...

    def execute(self, statement: str, parameters: Sequence[str | int]) -> StatementResult: ...


class Backend(Protocol):
    """One store of one process: a store inherits it. ``sync_port`` and ``renewal_port`` may be called from any thread.

    A forked child makes another one. Its parent's is kept there, and nothing of it is called.
    """

    capabilities: Capabilities
    #: Which of ``LOCATION``, ``CACHE``, ``DATABASE`` and ``OPTIONS`` it understands; the others are refused when the
    #: store is made.
    settings: ClassVar[frozenset[str]] = frozenset()
    options: ClassVar[Settings] = MappingProxyType({})  #: what may stand in ``OPTIONS``: a table in the documentation

    @abstractmethod
    def __init__(self, config: StoreConfig) -> None:
        """Check the settings, and connect to nothing yet. ``ConfigurationError`` names what is wrong."""

    @abstractmethod
    def sync_port(self) -> Port: ...

    @abstractmethod
    def async_port(self) -> Port:
        """The port of the running event loop; a loop never uses another loop's."""

    @abstractmethod
    def renewal_port(self) -> Port:
        """A blocking port with connections of its own, so that busy requests cannot starve the renewals."""

    @abstractmethod
    def close(self) -> None:
        """Let go of connections and threads; a later use opens them again."""

    # What a store may offer beside: what it inherits says that it does not. ------------------------------------------

    def server_of(self, claim: Claim) -> Hashable:
        """Which of its servers has this lock now, as far as we know: none is asked. Each server's leases are renewed by
        a thread of their own. None: it is one server, or asks all of them together."""
        return None

    # For ``distlock doctor``, ``init``, ``run`` and ``redlock``. They block, and raise ``BackendUnavailable``.

    def diagnose(self) -> Sequence[Finding]:
        """What is wrong with the server's settings, as seen from here. Changes nothing there."""
        return ()

    def prepare(self) -> str:
        """Make what its server needs before the first lock; what was done, in words. May be called again.

        "": it needs nothing.
        """
        return ""

    makes_tables: bool = False  #: whether ``distlock run`` may make them by ``prepare``

    def adopt(self) -> str:
        """Make the servers of its settings those that vote, in place of those that they store; what was done, in words.

        "": it has none that vote. ``ConfigurationError`` where two lists would count.
        """
        return ""

    # For a store that is a database, and can write in a transaction of its caller's. That transaction may see the store
    # as it was at its beginning (REPEATABLE READ), so it must not change nor lock what others change: it only adds. Of
    # two records of one name the database refuses the later one, and with it the work.

    @property
    def one_writer(self) -> bool:
        """A writer in that database excludes all others until the end of the transaction: while the caller's has
        written, no lease can be extended there, nor taken by anybody."""
        return False

    def is_at(self, address: DatabaseAddress) -> bool:
        """Whether it is in this database. If not, the two that follow are not asked for."""
        return False

    def begin_within(self, transaction: CallersTransaction) -> None:
        """The first in that transaction, where there is ``one_writer``: be it, from now on."""
        raise AssertionError("nobody asks this of a store that is in no database of a caller's")

    def record_within(
        self, transaction: CallersTransaction, claim: Claim, fence: int | None, cooldown: float, record: str
    ) -> Loss | None:
        """Write the record there, for so many seconds: it counts when that commits, and never was if it does not.

        The release itself comes after the commit; if it never does, a claim that is ``once`` finds the record.
        A ``Loss`` where there is ``one_writer`` and the lease is gone; elsewhere it was extended before.
        """
        raise AssertionError("nobody asks this of a store that is in no database of a caller's")
