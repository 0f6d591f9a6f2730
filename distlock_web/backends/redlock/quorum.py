"""One question to several nodes at once, in the time of the slowest answer that is needed.

Each node's part is a coroutine of its own port. In an event loop the parts are tasks. A thread sends every question
before it reads an answer: it steps the coroutines until each has sent its own (``NodePool`` suspends there), and goes
on with those that have something to read. There is no thread for an acquisition, and none for a node.

What is not answered when enough is known goes on: tasks by themselves, a thread's part when the node is asked again, or
by the node's own thread where something depends on it. Until then the node keeps it under its token, and whatever is
asked for that token next begins after it: a release never overtakes its acquisition.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator, Sequence
from types import coroutine
from typing import Any, Generic, Protocol, TypeVar

from ...core.errors import BackendUnavailable, DistLockError
from ...core.runtime import TASKS, Runtime, now

T = TypeVar("T")


class Readable(Protocol):
    """A connection on which an answer is awaited."""

    def fileno(self) -> int: ...


@coroutine
def readable(connection: Readable) -> Generator[Readable, None, None]:
    """Suspend until there is something to read. ``TimeoutError`` where nothing came in time."""
    yield connection


class Asked(Protocol):
    """What a part needs of its node."""

    timeout: float  #: seconds that an answer may take
    unfinished: dict[str, Part[Any]]  #: parts whose answer nobody waits for, by token

    def failed(self, error: DistLockError) -> None:
        """A part has failed with this error."""

    def finish_later(self) -> None:
        """See to it that ``unfinished`` is gone on with, also if nobody asks this node again."""


class Part(Generic[T]):
    """One node's part: what it is asked, and what came of it."""

    __slots__ = (
        "_earlier",
        "_verb",
        "_work",
        "asked",
        "connection",
        "deadline",
        "done",
        "error",
        "node",
        "task",
        "token",
        "value",
    )

    def __init__(self, node: Asked, verb: Callable[[], Coroutine[Any, Any, T]], token: str = "") -> None:
        self.node: Any = node
        self.token = token or str(id(self))
        self.asked = False  #: it may have been sent
        self.done = False
        self.value: T | None = None
        self.error: DistLockError | None = None
        self.connection: Readable | None = None  #: where a thread's part waits for its answer
        self.deadline = 0.0  #: until when
        self.task: asyncio.Task[None] | None = None
        self._verb = verb
        self._earlier: Part[Any] | None = None
        self._work: Coroutine[Any, Any, T] | None = None

    @property
    def waits_for_another(self) -> bool:
        """Its own question is not sent yet."""
        return self._earlier is not None

    async def _run(self) -> T:
        if self._earlier is not None:
            await self._earlier.rest(in_task=self.task is not None)
            self._earlier = None
        return await self._verb()

    def _begin(self) -> Coroutine[Any, Any, T]:
        self._earlier = self.node.unfinished.pop(self.token, None)
        return self._run()

    def fail(self, error: DistLockError) -> None:
        self.done, self.error = True, error
        self.node.failed(error)

    # A thread's --------------------------------------------------------------------------------------------------

    def resume(self, error: BaseException | None = None) -> None:
        """Go on until the next answer has to be awaited, or to the end."""
        if self._work is None:
            self._work = self._begin()
        self.connection = None
        try:
            self.connection = self._work.send(None) if error is None else self._work.throw(error)
            self.asked = True
            self.deadline = now() + self.node.timeout
        except StopIteration as stop:
            self.done, self.value = True, stop.value
        except DistLockError as failure:
            self.fail(failure)

    def give_up(self) -> None:
        self.resume(TimeoutError(f"no answer within {self.node.timeout:g} s"))

    async def rest(self, *, in_task: bool) -> None:
        """Go on to the end, whatever that is; for another part, which is a task's or a thread's."""
        if self.task is None:
            # A task does not read what a thread has asked: that would block all others of its loop.
            await (asyncio.to_thread(self._finish) if in_task else _rest(self))
        elif in_task and not self.done and self.task.get_loop() is asyncio.get_running_loop():
            await asyncio.wait({self.task})

    def _finish(self) -> None:
        while self.connection is not None:
            descriptor = self.connection.fileno()
            ready = descriptor < 0 or wait_for_data([descriptor], max(0.0, self.deadline - now()))
            self.resume() if ready else self.give_up()

    def close(self) -> None:
        """Nobody goes on with it any more: its connection closes."""
        if self._work is not None:
            self._work.close()

    # A task's ----------------------------------------------------------------------------------------------------

    def start(self) -> asyncio.Task[None]:
        self.asked = True
        self.task = asyncio.ensure_future(self._in_task(self._begin()))
        self.node.unfinished[self.token] = self
        return self.task

    async def _in_task(self, work: Coroutine[Any, Any, T]) -> None:
        try:
            self.value = await work
            self.done = True
        except DistLockError as error:
            self.fail(error)
        finally:
            if self.node.unfinished.get(self.token) is self:
                del self.node.unfinished[self.token]


@coroutine
def _rest(part: Part[Any]) -> Generator[Readable, None, None]:
    while part.connection is not None:
        try:
            yield part.connection
        except TimeoutError as error:
            part.resume(error)
        else:
            part.resume()


async def ask(runtime: Runtime, parts: Sequence[Part[T]], enough: Callable[[], bool], within: float) -> None:
    """Ask all of them; return when ``enough`` is known, when all have ended, or after ``within`` seconds."""
    if runtime is TASKS:
        await _ask_in_tasks(parts, enough, within)
    else:
        _ask_in_thread(parts, enough, within)


def run_blocking(node: Asked, verb: Callable[[], Coroutine[Any, Any, T]], token: str = "") -> T:
    """One node's part alone, in this thread. Raises what it raises."""
    part = Part(node, verb, token)
    _ask_in_thread([part], lambda: False, float("inf"))
    if part.error is not None:
        raise part.error
    return part.value  # type: ignore[return-value]


def finish(nodes: Iterable[Asked], *, patient: bool) -> None:
    """Go on with what was answered meanwhile. ``patient``: wait for the others until their time is over."""
    waiting: dict[int, Part[Any]] = {}
    for node in nodes:
        if node.unfinished:
            waiting.update(_awaited(list(node.unfinished.values())))
    while waiting:
        left = min(part.deadline for part in waiting.values()) - now()
        ready = wait_for_data(waiting, max(0.0, left) if patient else 0.0)
        due = ready or [descriptor for descriptor, part in waiting.items() if part.deadline <= now()]
        if not due and not patient:
            return
        for descriptor in due:
            part = waiting.pop(descriptor)
            if _take(part):  # else somebody else has gone on with it
                part.resume() if ready else part.give_up()
                if part.connection is not None:
                    part.node.unfinished[part.token] = part
                    waiting.update(_awaited([part]))


def _awaited(parts: Iterable[Part[Any]]) -> Iterator[tuple[int, Part[Any]]]:
    for part in parts:
        connection = part.connection
        descriptor = -1 if connection is None else connection.fileno()
        if descriptor >= 0:
            yield descriptor, part


def _take(part: Part[Any]) -> bool:
    unfinished = part.node.unfinished
    return unfinished.get(part.token) is part and unfinished.pop(part.token, None) is part


def _ask_in_thread(parts: Sequence[Part[T]], enough: Callable[[], bool], within: float) -> None:
    waiting: dict[int, Part[T]] = {}
    try:
        for part in parts:
            if not part.done:
                part.resume()
            if part.connection is not None:
                waiting[part.connection.fileno()] = part
        until = now() + within
        while waiting and not enough():
            moment = now()
            left = min(until, *(part.deadline for part in waiting.values())) - moment
            ready = wait_for_data(waiting, max(0.0, left))
            overdue = [] if ready else [fd for fd, part in waiting.items() if part.deadline <= now()]
            if not ready and not overdue and now() >= until:
                return
            for descriptor in ready or overdue:
                part = waiting.pop(descriptor)
                part.resume() if ready else part.give_up()
                if part.connection is not None:
                    waiting[part.connection.fileno()] = part
                elif ready and enough():
                    return
    finally:
        # Also where a signal's exception ends the thread's work: what was sent may be done yet, and has to be undone
        # after that, not before.
        for part in waiting.values():
            part.node.unfinished[part.token] = part
            if part.waits_for_another:
                part.node.finish_later()


async def _ask_in_tasks(parts: Sequence[Part[T]], enough: Callable[[], bool], within: float) -> None:
    pending = {part.start() for part in parts if not part.done}
    until = now() + within
    while pending and not enough() and (left := until - now()) > 0:
        _, pending = await asyncio.wait(
            pending, timeout=None if left == float("inf") else left, return_when=asyncio.FIRST_COMPLETED
        )


if hasattr(select, "poll"):

    def wait_for_data(descriptors: Iterable[int], seconds: float) -> list[int]:
        """Those of them on which there is something to read, after so many seconds at most."""
        poller = select.poll()
        for descriptor in descriptors:
            poller.register(descriptor, select.POLLIN)
        return [descriptor for descriptor, _ in poller.poll(seconds * 1000)]

else:  # pragma: no cover - Windows

    def wait_for_data(descriptors: Iterable[int], seconds: float) -> list[int]:
        return select.select(list(descriptors), [], [], seconds)[0]


def unavailable(parts: Sequence[Part[Any]], needed: int) -> DistLockError:
    """The error for a majority that is missing: how many answered, and what each of the others said."""
    silent = [part for part in parts if not part.done]
    failures = [str(part.error) for part in parts if part.error is not None]
    failures += [f"{part.node} did not answer in time." for part in silent]
    answered = len(parts) - len(failures)
    text = f"{answered} of {len(parts)} nodes answered, {needed} are needed: {' '.join(sorted(failures))}"
    return next(
        (type(part.error)(text) for part in parts if part.error and not isinstance(part.error, BackendUnavailable)),
        BackendUnavailable(text),
    )
