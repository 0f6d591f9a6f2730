"""More than one script and its answer: several calls in one write, with a WAIT behind them, or ASKING in front.

And a word to the caller before anything is sent (``opened``). Redlock wants it: only what was sent is to be undone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ....core.errors import DistLockError
from ..scripts.calls import Call, PackedKeys, Script, command
from .address import RedisAddress
from .errors import ErrorReply, TooFewReplicas, as_error
from .exchange import Exchange, Lines, Reply
from .replicas import check_confirmed, wait_command

#: In a cluster, in front of a question for a slot that is on its way to the node that is asked.
_ASKING = command("ASKING")


class Pipeline(Exchange):
    def __init__(
        self,
        lines: Lines,
        address: RedisAddress,
        look: Callable[[], None],
        moved: Callable[[], None],
        *,
        asking: bool = False,
    ) -> None:
        super().__init__(lines, address, look, moved)
        self._asking = asking

    @classmethod
    def over(cls, exchange: Exchange, *, asking: bool = False) -> Pipeline:
        """On the same lines. ``asking``: for a slot that is on its way to this node, as each question says."""
        return cls(exchange.lines, exchange.address, exchange.look, exchange.moved, asking=asking)

    async def run(
        self,
        script: Script,
        keys: PackedKeys,
        args: tuple[str | int, ...] = (),
        timeout: float | None = None,
        opened: Callable[[], None] | None = None,
    ) -> Reply:
        """``opened`` is called when there is a connection, before anything is sent: nothing is, if it raises."""
        (answer,) = await self.run_many(script, ((keys, args),), timeout, opened)
        if isinstance(answer, DistLockError):
            raise answer
        return answer

    async def run_many(
        self,
        script: Script,
        calls: Sequence[Call],
        timeout: float | None = None,
        opened: Callable[[], None] | None = None,
    ) -> list[Reply | DistLockError]:
        """The same with each of these keys and arguments, in one write. An answer that is an error is given as one.

        Where an answer gives a lock, ``min_replicas`` must have what was written, else ``TooFewReplicas``.
        """
        gives = script.gives if self.address.min_replicas else None
        wait = None if gives is None else wait_command(self.address, timeout)
        line = await self.lines.open(timeout)
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
                line.send(b"".join(packed), len(packed), wait)
                for i in asked:
                    if self._asking:
                        await line.receive()
                    replies[i] = await line.receive()
                    if type(replies[i]) is ErrorReply and replies[i].no_script:
                        unknown.append(i)
                if wait is not None:
                    confirmed = await line.confirmed()
                if not unknown or by_source >= 0:
                    break
                asked, by_source = unknown, unknown[0]
        except BaseException as error:
            self._fail(line, error)
            raise
        errors = [reply for reply in replies if type(reply) is ErrorReply]
        given = gives is not None and any(map(gives, replies))
        if given and type(confirmed) is ErrorReply:
            errors.append(confirmed)
        self._end(line, errors)
        if given:
            try:
                check_confirmed(confirmed, self.address)
            except TooFewReplicas:
                self.look()
                raise
        return [as_error(reply, self.address) if type(reply) is ErrorReply else reply for reply in replies]
