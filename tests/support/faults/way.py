"""One fault at every step (``make faults``): the way to a store, which is all that a store has to offer to be tried.

A *scenario* (``scenarios.py``) has a part for each of its *parties* (``party.py``), by the public API. A *director*
(``director.py``) is a process that runs one *combination* after the other: it clears the store, gives each party a way
there, has them play, and looks in the end what is left, and what the *judges* (``judges.py``) say of what the parties
saw and the store showed. First a clean run: its messages, by kind and number, are the *steps*. Then once more for each
step and each *fault* (``steps.py``). ``table.py`` has many directors side by side.

For a further store write a subclass of ``Way`` in a module of its own here, and name it in ``ways.py``:

- with a server: ``near`` and ``connect`` give entries of ``DISTLOCK``, past all faults, and through a
  ``self.wire(party, strike, port, Dialect)``, a TCP proxy (``wire.py``). A ``Dialect`` tells where a message ends.
  ``serve`` starts what all directors share, ``__enter__`` what each has for itself (a database, a path below a root).
  Faults, their order, their times and their counts are the wire's.
- in the process: ``in_threads``. ``connect`` gives the entry of a ``Store`` of each party, and ``install`` puts a seam
  between that and its driver. It calls ``strike.meets(party, kind)`` before each call of the driver, does what that
  answers, and ``strike.end()`` when a LATE, LATER or STOPPED is over (STOPPED: the seam sleeps for 1.5 leases).
- ``clear`` empties the store; ``left`` tells what in it will never end by itself.

``python -m tests.support.faults --only NAME --jobs 2`` tries one store, ``--choice 0`` only its clean runs, and a whole
name (``redis/threads/handed/a:acquire#1/late``) one combination.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, ClassVar, Self

from distlock_web.core.registry import Store

from .steps import Fault, Strike
from .wire import Network, Wire


class Way:
    """One for each director process: it is opened once, and cleared before each combination.

    Two kinds. Where there is a server, parties are processes and have a ``Wire`` each (``connect``). Where the store is
    in the process (``in_threads``), parties are threads of the director, each with a ``Store`` of its own, between
    which and its driver ``install`` puts what calls ``strike.meets`` and does what that answers.
    """

    name: ClassVar[str]
    backend: ClassVar[str]  #: as ``BACKEND`` names it
    example: ClassVar[Mapping[str, Any]] = {}  #: the rest of such an entry: nothing is asked there
    lease: ClassVar[float] = 0.6  #: seconds of a usual lease
    timeout: ClassVar[float] = 0.2  #: seconds that an answer is waited for
    in_threads: ClassVar[bool] = False
    #: Connections that a process keeps open for a while, and has after a fault only: what was postponed is done on one,
    #: who had to wait listens on another.
    spare: ClassVar[int] = 2
    #: Scenarios that this store is not tried with, and why; beside those that need what it cannot do.
    without: ClassVar[Mapping[str, str]] = {}
    #: Faults that cannot happen on the way to this store, and why.
    not_tried_faults: ClassVar[Mapping[Fault, str]] = {}

    def __init__(self, network: Network, shared: Mapping[str, Any]) -> None:
        self.network = network
        self.shared = shared  #: what ``serve`` has given
        self.wires: list[Wire] = []
        #: Where names of hosts lead, by party and of the ``director``: where all have to name the servers alike.
        self.routes: dict[str, dict[str, int]] = {}

    @classmethod
    @contextmanager
    def serve(cls) -> Iterator[Mapping[str, Any]]:
        """Servers that all directors share; what they have to know of them, as JSON. Small ones are each one's own."""
        yield {}

    def __enter__(self) -> Self:
        """Start servers of one's own."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.disconnect()

    def near(self) -> dict[str, Any]:
        """The entry of ``DISTLOCK`` past all faults."""
        raise NotImplementedError

    def seen_by_parties(self) -> dict[str, Any]:
        """The same for a party, which only looks who holds and who waits."""
        return self.near()

    def key(self, key: str) -> str:
        """A key that begins so: where it matters which server is asked first, always the same one."""
        return key

    @classmethod
    def of_a_kind(cls, kind: str) -> int:
        """So many messages of this kind are tried of each party in a scenario: a renewal is like the one before."""
        return 3

    def connect(self, party: str, strike: Strike) -> dict[str, Any]:
        """The entry of ``DISTLOCK`` of this party; ``self.wire`` makes what is in it."""
        raise NotImplementedError

    def install(self, party: str, store: Store, strike: Strike) -> None:
        """Of a store ``in_threads``."""

    def database(self) -> str:
        """Where ``until="commit"`` writes: the URL of a database of SQLAlchemy's."""
        return "sqlite://"

    def clear(self) -> None:
        """Nothing is in the store."""
        raise NotImplementedError

    def left(self) -> list[str]:
        """What is in the store and does not end by itself, in words, when all is over."""
        raise NotImplementedError

    def wire(self, party: str, strike: Strike, port: int, dialect: Any, **options: Any) -> Wire:
        late, later, away, slow = 1.5 * self.timeout, 1.2 * self.lease, 2.5 * self.lease, 0.6 * self.timeout
        wire = Wire(self.network, party, strike, port, dialect, late=late, later=later, away=away, slow=slow, **options)
        self.wires.append(wire)
        return wire

    def disconnect(self) -> None:
        while self.wires:
            self.wires.pop().close()
