"""One question to several nodes at once, in the time of the slowest answer that is needed.

A thread sends every question before it reads an answer, and waits on all connections together; there is no thread for
an acquisition, and none for a node. In an event loop each node's shared connection is asked by a task.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from ...core.errors import BackendUnavailable, ConfigurationError, DistLockError
from ...core.runtime import now
from ..redis.scripts import PackedKeys, Script
from ..redis.transport.errors import ENDED, FAILURES, ErrorReply, as_error, broke_connection, translated
from .node import Node
from .scripts import RELEASE

Reply: TypeAlias = Any

#: Seconds that the others have when enough is known: a node that answers later is asked no more until it has.
LAG = 0.05


class Question:
    """What one node is asked, and what came of it: a reply, an error, or neither yet."""

    __slots__ = (
        "_connection", "_deadline", "_patient", "_sent_again",
        "args", "error", "keys", "node", "reply", "script", "sent", "until", "wanted",
    )  # fmt: skip

    def __init__(self, node: Node, script: Script, keys: PackedKeys, args: tuple[str | int, ...]) -> None:
        self.node = node
        self.script = script
        self.keys = keys
        self.args = args
        self.sent = False  #: it may have arrived
        self.wanted = True  #: else nobody waits for it any more: asked again it would come after what undoes it
        self.reply: Reply = None
        self.error: DistLockError | None = None
        self.until = 0.0  #: when its connection, or the whole question, is given up
        self._connection: Any = None  # of a thread
        self._deadline = 0.0
        self._patient = self._sent_again = False

    @property
    def answered(self) -> bool:
        return self.error is None and self.reply is not None

    @property
    def is_open(self) -> bool:
        """It may have been done, or be done yet, though nobody has heard so."""
        return self.sent and self.reply is None

    @property
    def descriptor(self) -> int:
        """Of the connection on which its answer is awaited; -1: on none."""
        return -1 if self._connection is None else self._connection.fileno()

    # By a thread ---------------------------------------------------------------------------------------------------

    def send(self, patient: bool) -> None:
        """A failure is an answer, too, and not raised. ``patient``: ask also a node that counts as silent."""
        self._patient = patient
        try:
            if not patient:
                self.node.refuse(slow=self.script is not RELEASE)  # what is given back is to be had at once
            self._connection = self.node.pool(patient).borrow(None)
        except DistLockError as error:
            self._refused(error)
            return
        moment = now()
        self._deadline = self._deadline or moment + self.node.timeout
        # One that was idle may have been forgotten by a firewall: half of the time is left for another one.
        self.until = (moment + self._deadline) / 2 if self._connection.was_idle else self._deadline
        self._write()

    def _write(self, by_source: bool = False) -> None:
        self.sent = True
        try:
            self._connection.send(self.script.call(self.keys, self.args, by_source=by_source))
        except FAILURES as error:
            self._broke(error)

    def receive(self) -> None:
        """Read what has come: the answer, or that the server does not know the script, which is sent then."""
        try:
            reply = self._connection.read()
        except FAILURES as error:
            self._broke(error)
            return
        if isinstance(reply, ErrorReply) and reply.no_script and self.wanted and not self._sent_again:
            self._sent_again = True
            self._write(by_source=True)
            return
        connection, self._connection = self._connection, None
        self.node.pool(self._patient).give_back(connection)
        self._take(reply)

    def leave(self) -> None:
        """Nobody waits for the answer any more."""
        self.wanted = False
        if not self.is_over():
            self.node.owes(self)

    def is_over(self) -> bool:
        descriptor = self.descriptor
        if descriptor >= 0 and _readable([descriptor], 0.0):
            self.receive()
        elif self._connection is not None and (descriptor < 0 or now() >= self.until):
            self._broke(TimeoutError(f"no answer within {self.node.timeout:g} s"))
        return self._connection is None

    def _broke(self, error: BaseException) -> None:
        connection, self._connection = self._connection, None
        pool = self.node.pool(self._patient)
        pool.discard(connection)
        pool.drop_idle()  # most likely dead, too
        if connection.was_idle and self.wanted:
            # It has ended meanwhile, by the server's time-out, a restart, a firewall: that says nothing of the server.
            self.send(self._patient)
            return
        failure = translated(error, self.node.address)
        failure.__cause__ = error
        self._refused(failure)

    def _refused(self, error: DistLockError) -> None:
        self.error = error
        if isinstance(error, ConfigurationError):
            self.node.warn(error)
        if broke_connection(error) and isinstance(error, BackendUnavailable):
            self.node.failed(error)

    # By a task -----------------------------------------------------------------------------------------------------

    async def ask(self) -> None:
        try:
            self.node.refuse()
            self.sent = True
            try:
                reply = await self.node.exchange().run(self.script, self.keys, self.args)
            except BackendUnavailable as error:
                if not (self.wanted and isinstance(error.__cause__, ENDED)):
                    raise
                # It has ended while it was idle: that says nothing of the server now.
                reply = await self.node.exchange().run(self.script, self.keys, self.args)
            self._take(reply)
        except DistLockError as error:
            self._refused(error)

    def _take(self, reply: Reply) -> None:
        if isinstance(reply, ErrorReply):
            self._refused(as_error(reply, self.node.address))
        else:
            self.reply = reply


Enough: TypeAlias = Callable[[Sequence[Question]], bool]


async def ask(questions: Sequence[Question], enough: Enough, within: float, *, blocking: bool, patient: bool) -> None:
    """Ask all of them; return when all have answered or failed, soon after ``enough``, after ``within`` seconds."""
    if blocking:
        _ask_in_thread(questions, enough, within, patient)
    else:
        await _ask_in_tasks(questions, enough, within)


def every_answer(questions: Sequence[Question]) -> bool:
    """Never enough: every node that can has to answer."""
    return False


def _ask_in_thread(questions: Sequence[Question], enough: Enough, within: float, patient: bool) -> None:
    waiting: dict[int, Question] = {}
    try:
        # Those that are silent last, where they are asked at all: to connect to them takes its time.
        for question in sorted(questions, key=lambda question: question.node.outage.silent):
            question.send(patient)
            if question.descriptor >= 0:
                waiting[question.descriptor] = question
        until, hurries = now() + within, False  # from now on: to open a connection may have taken long
        while waiting and (moment := now()) < until:
            if not hurries and enough(questions):
                hurries, until = True, min(until, moment + LAG)
            next_due = min(until, *(question.until for question in waiting.values()))
            ready = _readable(waiting, max(0.0, next_due - moment))
            for descriptor in ready or [descriptor for descriptor, each in waiting.items() if each.until <= now()]:
                question = waiting.pop(descriptor)
                if ready:
                    question.receive()
                if question.descriptor >= 0 and not question.is_over():
                    waiting[question.descriptor] = question
    finally:
        # Also where a signal's exception ends the thread's work. What was sent may be done yet: who asked undoes it.
        for question in waiting.values():
            question.leave()


async def _ask_in_tasks(questions: Sequence[Question], enough: Enough, within: float) -> None:
    asked = {asyncio.ensure_future(question.ask()): question for question in questions}
    pending, until = set(asked), now() + within
    try:
        while pending and not enough(questions) and (left := until - now()) > 0:
            _, pending = await asyncio.wait(pending, timeout=left, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in pending:
            question = asked[task]
            question.wanted = False
            if question.node.stream().stream is None:
                task.cancel()  # its connection is still to be opened: what it says there would come too late
            else:  # it ends by itself, within the time-out, and knows then whether its node is silent
                _going_on.add(task)
                task.add_done_callback(_going_on.discard)


#: Tasks that nobody awaits any more: an event loop has only weak references to its own.
_going_on: set[asyncio.Task[None]] = set()


def ask_one(node: Node, script: Script, keys: PackedKeys, args: tuple[str | int, ...]) -> Reply:
    """Ask this node, in this thread, also if it counts as silent. Raises ``DistLockError`` if it does not answer."""
    question = Question(node, script, keys, args)
    _ask_in_thread([question], every_answer, node.timeout, patient=True)
    if not question.answered:
        raise question.error or BackendUnavailable(f"{node} did not answer in time.")
    return question.reply


if hasattr(select, "poll"):

    def _readable(descriptors: Iterable[int], seconds: float) -> list[int]:
        """Those of them on which there is something to read, after so many seconds at most."""
        poller = select.poll()
        for descriptor in descriptors:
            poller.register(descriptor, select.POLLIN)
        return [descriptor for descriptor, _ in poller.poll(seconds * 1000)]

else:  # pragma: no cover - Windows

    def _readable(descriptors: Iterable[int], seconds: float) -> list[int]:
        return select.select(list(descriptors), [], [], seconds)[0]


def unavailable(questions: Sequence[Question], needed: int) -> DistLockError:
    """The error for a majority that is missing: how many answered, and what each of the others said."""
    failures = [
        str(question.error or f"{question.node} did not answer in time.")
        for question in questions
        if not question.answered
    ]
    answered = len(questions) - len(failures)
    text = f"{answered} of {len(questions)} nodes answered, {needed} are needed: {' '.join(sorted(failures))}"
    errors: Mapping[type[DistLockError], None] = dict.fromkeys(type(each.error) for each in questions if each.error)
    kind = next((kind for kind in errors if not issubclass(kind, BackendUnavailable)), BackendUnavailable)
    return kind(text)
