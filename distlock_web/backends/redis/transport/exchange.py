"""How a script reaches one server, the same for threads and for event loops: one write, and the answer to it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from operator import attrgetter
from typing import Any, Protocol, TypeAlias

from ..scripts.calls import PackedKeys, Script
from .address import RedisAddress
from .errors import FAILURES, ErrorReply, as_error, translated

Reply: TypeAlias = Any  # int, bytes or a list of these: what our scripts answer


class Line(Protocol):
    """An open connection, for one exchange. What it raises is one of ``FAILURES``."""

    def ask(self, packed: bytes) -> Awaitable[Reply]:
        """Write this, and read its one answer: ``ErrorReply`` as a value if it is an error."""

    def send(self, packed: bytes, answers: int = 1, wait: bytes | None = None) -> None:
        """Write this, which has so many answers, and behind it the WAIT that asks whether the replicas have it."""

    async def receive(self) -> Reply:
        """The next answer to what was sent."""

    async def confirmed(self) -> Reply:
        """The answer to the WAIT."""

    def end(self, *, usable: bool) -> None:
        """All answers were read. It is closed if it cannot be used again."""

    def fail(self, error: BaseException) -> None:
        """The answers will not be read."""


class Lines(Protocol):
    def open(self, timeout: float | None) -> Awaitable[Line]:
        """A line for one exchange, in which an answer may take so many seconds. Raises ``DistLockError``."""


class Exchange:
    def __init__(
        self, lines: Lines, address: RedisAddress, look: Callable[[], None], moved: Callable[[], None]
    ) -> None:
        self.lines = lines
        self.address = address
        self.look = look  #: called where too few replicas answer: they may follow another master by now
        self.moved = moved  #: called where it is not, or not yet, the server that takes writes

    async def run(
        self, script: Script, keys: PackedKeys, args: tuple[str | int, ...] = (), timeout: float | None = None
    ) -> Reply:
        """Send a script, once, and return its answer. After ``BackendUnavailable`` it is not known whether it ran."""
        line = await self.lines.open(timeout)
        try:
            reply = await line.ask(script.call(keys, args))
            if type(reply) is ErrorReply and reply.no_script:  # a restart, a failover, SCRIPT FLUSH
                reply = await line.ask(script.call(keys, args, by_source=True))
        except BaseException as error:
            self._fail(line, error)
            raise
        if type(reply) is ErrorReply:
            self._end(line, [reply])
            raise as_error(reply, self.address)
        line.end(usable=True)
        return reply

    def _fail(self, line: Line, error: BaseException) -> None:
        """Also a KeyboardInterrupt or a worker's time limit: the answer would reach the next one who asks here."""
        line.fail(error)
        if isinstance(error, FAILURES):
            raise translated(error, self.address) from error

    def _end(self, line: Line, errors: Sequence[ErrorReply]) -> None:
        """The server has answered so. Raises what says that it is not the one that takes writes."""
        refusal = next(filter(_not_primary, errors), None)
        line.end(usable=refusal is None)
        if refusal is not None:
            self.moved()
            raise as_error(refusal, self.address)


_not_primary = attrgetter("not_primary")
