"""The way of event loops to the server: one connection for each loop, or the threads' pool for one that soon ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from typing import Never

from ....core.errors import BackendUnavailable, DistLockError
from ....core.outage import Outage
from ....core.runtime import TASKS
from ..scripts import Call, KeyCommand, PackedKeys, Script
from .address import Address
from .errors import FAILURES, TIMEOUTS, ErrorReply, as_error, translated
from .pool import ConnectionPool, Reply
from .replicas import GivesLock, Replicas
from .resp import ASKING
from .stream import Stream

#: Questions of a loop that was made for one call which go over the threads' pool. There each blocks it for a round
#: trip; to open a connection costs several. A loop that asks more may be a program with many tasks.
BORROWED = 16


class LoopConnection:
    """The stream of one event loop: opened when it is needed, again when it broke, closed with the loop."""

    def __init__(
        self, address: Address, outage: Outage, moved: Callable[[], None], pool: ConnectionPool | None = None
    ) -> None:
        self._address = address
        self._outage = outage
        self._moved = moved
        self._replicas = Replicas(address, outage.look)
        self._pool = pool  #: the threads', where the loop was made for one call
        self._borrowed = 0
        self._stream: Stream | None = None
        self._opening: asyncio.Task[Stream] | None = None
        self._loop_finalizer: AsyncGenerator[None, None] | None = None

    async def run(
        self,
        script: Script | KeyCommand,
        keys: PackedKeys,
        args: tuple[str | int, ...] = (),
        timeout: float | None = None,
        confirm: GivesLock | None = None,
    ) -> Reply:
        """Send a script, once, and return its answer. After ``BackendUnavailable`` nobody knows whether it ran.

        ``confirm``: if it says so of the answer, ``min_replicas`` must have what was written, else ``TooFewReplicas``.
        """
        if (pool := self._borrow_pool()) is not None:
            return await pool.run(script, keys, args, timeout, confirm)
        self._outage.refuse_if_silent()
        confirmed: Reply = None
        try:
            stream = self._stream
            if stream is None or stream.closed:
                stream = await self._open()
            for by_source in (False, True):
                if keys.asking:
                    stream.ask(ASKING).cancel()  # nobody waits for its answer
                answer = stream.ask(script.call(keys, args, by_source=by_source))
                confirmation = stream.confirm(self._replicas.question) if confirm is not None else None
                reply = await answer
                if not (isinstance(reply, ErrorReply) and reply.no_script):
                    break
            if confirm is not None and confirmation is not None and confirm(reply):
                confirmed = await asyncio.shield(confirmation)  # who is cancelled leaves it to the others
        except FAILURES as error:
            raise translated(error, self._address) from error
        refusal = reply if isinstance(reply, ErrorReply) else confirmed
        if isinstance(refusal, ErrorReply):
            self._refused(stream, refusal)
        if confirmed is not None:
            self._replicas.check(confirmed)
        return reply

    @property
    def stream(self) -> Stream | None:
        """What can be asked at once; None: it has to be opened, or the server is silent. Its answers may be errors."""
        stream = self._stream
        return None if stream is None or stream.closed or self._outage.silent else stream

    async def run_many(
        self,
        script: Script | KeyCommand,
        calls: Sequence[Call],
        timeout: float | None = None,
        confirm: GivesLock | None = None,
    ) -> list[Reply | DistLockError]:
        """The same with each of these keys and arguments, in one write. An answer that is an error is given as one."""
        if (pool := self._borrow_pool()) is not None:
            return await pool.run_many(script, calls, timeout, confirm)
        self._outage.refuse_if_silent()
        replies: dict[int, Reply] = {}
        confirmation, unanswered = None, list(range(len(calls)))
        try:
            stream = self._stream
            if stream is None or stream.closed:
                stream = await self._open()
            for again in (False, True):
                asked = [stream.ask(script.call(*calls[i], by_source=again and i == unanswered[0])) for i in unanswered]
                confirmation = stream.confirm(self._replicas.question) if confirm is not None else None
                replies.update(zip(unanswered, await asyncio.gather(*asked), strict=True))
                unanswered = [i for i in unanswered if isinstance(replies[i], ErrorReply) and replies[i].no_script]
                if not unanswered:
                    break
            answers = [replies[i] for i in range(len(calls))]
            confirmed: Reply = None
            if confirm is not None and confirmation is not None and any(map(confirm, answers)):
                confirmed = await asyncio.shield(confirmation)
        except FAILURES as error:
            raise translated(error, self._address) from error
        for answer in (*answers, confirmed):
            if isinstance(answer, ErrorReply) and (answer.not_primary or answer is confirmed):
                self._refused(stream, answer)
        if confirmed is not None:
            self._replicas.check(confirmed)
        return [as_error(answer, self._address) if isinstance(answer, ErrorReply) else answer for answer in answers]

    def _borrow_pool(self) -> ConnectionPool | None:
        """The threads' pool, for the next question; None: it goes over the stream."""
        if self._pool is not None:
            self._borrowed += 1
            if self._borrowed > BORROWED:
                self._pool = None
        return self._pool

    def _refused(self, stream: Stream, answer: ErrorReply) -> Never:
        if answer.not_primary:
            stream.close()
            self._moved()
        raise translated(answer, self._address) from answer

    async def _open(self) -> Stream:
        """Open one stream, however many tasks ask for it; one that is cancelled does not stop the others."""
        if self._opening is None:
            self._opening = asyncio.ensure_future(self._connect())
            self._opening.add_done_callback(self._opened)
        try:
            return await asyncio.shield(self._opening)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._opening is not None and self._opening.cancelled() and not (task and task.cancelling()):
                raise BackendUnavailable(f"{self._address.name}: the event loop ends.") from None
            raise

    async def _connect(self) -> Stream:
        timeout, asked = self._address.kwargs["socket_timeout"], list[float]()
        timer = asyncio.get_running_loop().call_later(timeout / 2, lambda: asked.append(self._outage.ask()))
        try:
            connection = await self._address.aconnect()
        except TIMEOUTS as error:
            moment = asked[0] if asked else self._outage.ask()
            if not await self._outage.answers(moment, timeout / 2, TASKS):
                self._outage.begin(error)  # else it was our event loop that was late
            raise
        finally:
            timer.cancel()
        self._stream = Stream(connection, timeout, self._outage)
        if self._loop_finalizer is None:
            self._loop_finalizer = self._close_with_loop()
            await anext(self._loop_finalizer)
        return self._stream

    def _opened(self, task: asyncio.Task[Stream]) -> None:
        self._opening = None
        if not task.cancelled():
            task.exception()  # seen: each task that asked gets it from its own await

    async def _close_with_loop(self) -> AsyncGenerator[None, None]:
        # A loop that ends closes its asynchronous generators; that is the only word it gives. Under WSGI every async
        # view has a loop of its own, and a connection that outlived it would be lost, with a ResourceWarning.
        try:
            yield
        finally:
            self.close()
            await asyncio.sleep(0)  # the transport closes its socket on the loop's next turn

    def close(self) -> None:
        """Let go of the stream, in its loop. A later use opens another."""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()

    def close_soon(self, loop: asyncio.AbstractEventLoop) -> None:
        """The same from any thread. Whoever asks from now on opens another."""
        stream, self._stream = self._stream, None
        if stream is not None:
            with suppress(RuntimeError):  # the loop has ended, and the connection with it
                loop.call_soon_threadsafe(stream.close)
