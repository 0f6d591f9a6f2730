"""How scripts reach one server: one write, and the answers to it, the same for threads and for event loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, Protocol, TypeAlias

from ....core.errors import DistLockError
from ..scripts import Call, PackedKeys, Script, command
from .address import RedisAddress
from .errors import FAILURES, ErrorReply, as_error, translated
from .replicas import GivesLock, TooFewReplicas, check_confirmed, wait_command

Reply: TypeAlias = Any  # int, bytes or a list of these: what our scripts answer

#: In a cluster, in front of a question for a slot that is on its way to the node that is asked.
_ASKING = command("ASKING")


class Line(Protocol):
    """An open connection, for one exchange. What it raises is one of ``FAILURES``."""

    def send(self, packed: bytes, answers: int = 1, wait: bytes | None = None) -> None:
        """Write this, which has so many answers, and behind it the WAIT that asks whether the replicas have it."""

    async def receive(self) -> Reply:
        """The next answer, ``ErrorReply`` as a value if it is an error."""

    async def confirmed(self) -> Reply:
        """The answer to the WAIT."""

    def end(self, *, usable: bool) -> None:
        """All answers were read. It is closed if it cannot be used again."""

    def fail(self, error: BaseException) -> None:
        """The answers will not be read."""


class Lines(Protocol):
    async def open(self, timeout: float | None) -> Line:
        """A line for one exchange, in which an answer may take so many seconds. Raises ``DistLockError``."""


class Exchange:
    def __init__(
        self,
        lines: Lines,
        address: RedisAddress,
        look: Callable[[], None],
        moved: Callable[[], None],
        asking: bool = False,
    ) -> None:
        self._lines = lines
        self._address = address
        self._look = look  #: called where too few replicas answer: they may follow another master by now
        self._moved = moved  #: called where it is not, or not yet, the server that takes writes
        self._asking = asking

    def asking(self) -> Exchange:
        """The same for a slot that is on its way to this node: each question says that it knows so."""
        return Exchange(self._lines, self._address, self._look, self._moved, asking=True)

    async def run(
        self,
        script: Script,
        keys: PackedKeys,
        args: tuple[str | int, ...] = (),
        timeout: float | None = None,
        confirm: GivesLock | None = None,
        opened: Callable[[], None] | None = None,
    ) -> Reply:
        """Send a script, once, and return its answer. After ``BackendUnavailable`` nobody knows whether it ran.

        ``confirm``: if it says so of the answer, ``min_replicas`` must have what was written, else ``TooFewReplicas``.
        ``opened`` is called when there is a connection, before anything is sent: nothing is, if it raises.
        """
        (answer,) = await self.run_many(script, ((keys, args),), timeout, confirm, opened)
        if isinstance(answer, DistLockError):
            raise answer
        return answer

    async def run_many(
        self,
        script: Script,
        calls: Sequence[Call],
        timeout: float | None = None,
        confirm: GivesLock | None = None,
        opened: Callable[[], None] | None = None,
    ) -> list[Reply | DistLockError]:
        """The same with each of these keys and arguments, in one write. An answer that is an error is given as one."""
        wait = None if confirm is None else wait_command(self._address, timeout)
        line = await self._lines.open(timeout)
        try:
            if opened is not None:
                opened()
            replies: list[Reply] = [None] * len(calls)
            asked: Sequence[int] = range(len(calls))
            by_source = -1  # the place of the one that tells the server what the script is
            confirmed = None
            while asked:
                packed, unknown = [], []
                for i in asked:
                    if self._asking:
                        packed.append(_ASKING)
                    packed.append(script.call(*calls[i], by_source=i == by_source))
                line.send(packed[0] if len(packed) == 1 else b"".join(packed), len(packed), wait)
                for i in asked:
                    if self._asking:
                        await line.receive()
                    replies[i] = await line.receive()
                    if type(replies[i]) is ErrorReply and replies[i].no_script:  # a restart, a failover, SCRIPT FLUSH
                        unknown.append(i)
                if wait is not None:
                    confirmed = await line.confirmed()
                if not unknown or by_source >= 0:
                    break
                asked, by_source = unknown, unknown[0]
        except BaseException as error:
            # Also a KeyboardInterrupt or a worker's time limit: the answer would reach the next one who asks here.
            line.fail(error)
            if isinstance(error, FAILURES):
                raise translated(error, self._address) from error
            raise
        errors = []
        for reply in replies:  # no comprehension: before Python 3.12 that is a call
            if isinstance(reply, ErrorReply):
                errors.append(reply)
        given = confirm is not None and any(map(confirm, replies))
        if given and isinstance(confirmed, ErrorReply):
            errors.append(confirmed)
        refusal = next(filter(_not_primary, errors), None)
        line.end(usable=refusal is None)
        if refusal is not None:
            self._moved()
            raise as_error(refusal, self._address)
        if given:
            try:
                check_confirmed(confirmed, self._address)
            except TooFewReplicas:
                self._look()
                raise
        if errors:
            return [as_error(reply, self._address) if isinstance(reply, ErrorReply) else reply for reply in replies]
        return replies


_not_primary = attrgetter("not_primary")
