"""One question to several nodes at once, answered when enough of them have.

A thread sends every question before it reads an answer, and waits on all connections together; there is no thread for
an acquisition, and none for a node. In an event loop each node's shared connection is asked by a task. Either way the
answers of one connection come in the order of the questions. So no caller waits for a node that is not needed: its
answer is read when the connection is used next.
"""

from __future__ import annotations

import asyncio
import select
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

from ...core.errors import BackendUnavailable, ConfigurationError, DistLockError
from ...core.runtime import drive, now
from ..redis.scripts.calls import PackedKeys, Script
from ..redis.transport.errors import ENDED, FAILURES, TIMEOUTS, ErrorReply, as_error, broke_connection, translated
from ..redis.transport.pipeline import Pipeline
from .node import Forgot, Node, WrongQuorum, no_vote
from .scripts import EXTEND, RELEASE, VOTE

Reply: TypeAlias = Any
Args: TypeAlias = "tuple[str | int, ...]"

#: Turns of an event loop after the time is over: where it was late, answers may lie unread.
LATE_TURNS = 10
#: Seconds for an answer that is there, or is not.
AT_ONCE = 0.0


@dataclass(eq=False, slots=True)
class Question:
    """What one node is asked, and what came of it: a reply, an error, or neither yet."""

    node: Node
    script: Script
    keys: PackedKeys
    args: Args
    undo_within: float = 0.0  #: a release: for so many seconds there is something to give back
    sent: bool = False  #: it may have arrived
    wanted: bool = True  #: else no caller waits for it any more: asked again it would come after what undoes it
    reply: Reply = None
    error: DistLockError | None = None
    channel: Channel | None = None  #: of a thread, on which its answer is to come
    until: float = 0.0  #: when its connection is given up
    deadline: float = 0.0  #: when the node is
    by_source: bool = False
    repeated: bool = False  #: sent once more, for its connection broke: the first copy may have arrived
    sent_at: float = 0.0
    #: µs that the node's clock is ahead of ``now()``, at least and at most: it was read between question and answer.
    ahead: tuple[float, float] = (0.0, 0.0)

    @property
    def token(self) -> str:
        """Of a vote and of a release."""
        return str(self.args[0])

    @property
    def answered(self) -> bool:
        return self.error is None and self.reply is not None

    @property
    def is_open(self) -> bool:
        """It may have been done, or be done yet, though its answer has not come."""
        return self.sent and self.reply is None

    def open(self, patient: bool) -> None:
        """By a thread: a connection to send it on. A failure is an answer, too, and not raised.

        ``patient``: ask also a node that is silent.
        """
        try:
            self.channel = _channel(self.node, patient)
        except DistLockError as error:
            self.fail(error)

    def send(self) -> None:
        """On that connection, if there is one."""
        if self.channel is None:
            return
        moment = now()
        self.deadline = self.deadline or moment + self.node.timeout
        # One that was idle may have been forgotten by a firewall: half of the time is left for another one.
        self.until = (moment + self.deadline) / 2 if self.channel.connection.was_idle else self.deadline
        self.channel.send(self)

    async def ask(self) -> None:
        """By a task."""
        try:
            try:
                reply = await self._run()
            except BackendUnavailable as error:
                if not (self.wanted and isinstance(error.__cause__, ENDED)):
                    raise  # else its connection had ended before it was used, which says nothing of the server
                self.repeated = self.sent
                reply = await self._run()
        except DistLockError as error:
            self.fail(error)
        except asyncio.CancelledError:  # with its event loop
            self._undo_later()
            raise
        else:
            self.take(reply)

    async def _run(self) -> Reply:
        exchange = Pipeline.over(self.node.server.tasks())
        return await exchange.run(self.script, self.keys, self.args, opened=self.begin)

    def begin(self) -> None:
        """Not before there is a connection: else each call would leave an undo for a node that is down or refuses.

        Raises where this is a vote that was taken back while it waited for the connection: it would stay.
        """
        if self.script is VOTE and not self.wanted:
            if self.token not in self.node.unsent:
                raise BackendUnavailable(f"{self.node} was not asked: the lock was given up before it was connected.")
            self.node.unheard.add(self.token)
        self.sent, self.sent_at = True, now()

    def leave(self) -> None:
        """No caller waits for the answer any more."""
        self.wanted = False
        if self.script is VOTE and self.reply is None and self.error is None:
            (self.node.unheard if self.sent else self.node.unsent).add(self.token)
        if (channel := self.channel) is not None:
            left, pool = self.node.left[channel.patient], self.node.pools[channel.patient]
            left.append(channel)
            if channel.connection.batch is not pool.batch:  # closed meanwhile, by one that may have come before it
                with suppress(ValueError):  # who closes has it already, or another thread, which gives it back
                    left.remove(channel)
                    pool.discard(channel.connection)

    def take(self, reply: Reply) -> None:
        node = self.node
        if isinstance(reply, ErrorReply):
            # A caller that has stopped waiting does not send the script's source: it has not run, and came too late.
            late = reply.no_script and not self.wanted
            self.fail(
                BackendUnavailable(f"{node.address.name} answered late.") if late else as_error(reply, node.address)
            )
            return
        self.reply = reply
        if self.script is RELEASE and self.token in node.unheard:
            self._undo_later()
        elif self.script in (VOTE, EXTEND):
            self.error = no_vote(node, reply)
            if self.script is VOTE:
                self._no_more_late()
                if node.unfounded and not isinstance(self.error, Forgot):
                    node.unfounded = ""  # it was told meanwhile, by whomever: when it forgets again, that is said again
                self.ahead = reply[1] - now() * 1_000_000, reply[1] - self.sent_at * 1_000_000
                node.ahead_us = int(self.ahead[1])
            if self.script is VOTE or self.error is not None or isinstance(node.no_vote, WrongQuorum):
                node.no_vote = self.error

    def fail(self, error: DistLockError) -> None:
        self.error = error
        if self.script is VOTE or isinstance(self.node.no_vote, WrongQuorum):
            self.node.no_vote = None
        if self.script is VOTE:
            self._no_more_late()
        if isinstance(error, ConfigurationError):
            self.node.warn(error)
        elif self.wanted and broke_connection(error):
            self.node.outage.begin(error)
        self._undo_later()

    def _no_more_late(self) -> None:
        token = self.token
        self.node.unheard.discard(token)
        self.node.unsent.discard(token)

    def _undo_later(self) -> None:
        """A release, once the node answers. A vote that no caller waited for may come after it: then once that has."""
        after = 0.0
        if self.script is RELEASE and self.token in self.node.unheard:
            self.node.unheard.discard(self.token)
            after = self.node.timeout
        if self.undo_within:
            self.node.outage.postpone(self._undo, after=after, within=after + self.undo_within)

    def _undo(self) -> None:
        # Who waited then has asked again by now, or has gone: it would be told of a release, and nobody else.
        drive(self.node.server.threads().run(self.script, self.keys, (*self.args[:3], "")))


class Channel:
    """A connection of a thread, and the questions whose answers are to come on it."""

    __slots__ = ("_questions", "connection", "node", "patient")

    def __init__(self, node: Node, patient: bool) -> None:
        self.node = node
        self.patient = patient
        self.connection = drive(node.pools[patient].open(None))
        self._questions: deque[Question] = deque()

    def send(self, question: Question) -> None:
        question.begin()
        self._questions.append(question)
        try:
            self.connection.send(question.script.call(question.keys, question.args, by_source=question.by_source))
        except FAILURES as error:
            self.broke(error)

    def receive(self) -> None:
        """Take the answers that are there: one at least."""
        timeout = None
        while self._questions:
            try:
                reply = self.connection.read(timeout)
            except FAILURES as error:
                if timeout is None or not isinstance(error, TIMEOUTS):
                    self.broke(error)
                return
            timeout, question = AT_ONCE, self._questions.popleft()
            again = question.wanted or question.script is RELEASE  # what a release takes back stays taken back
            if isinstance(reply, ErrorReply) and reply.no_script and again and not question.by_source:
                question.by_source = True
                self.send(question)
                return
            question.channel = None
            if not self._questions:
                self.connection.end()
            question.take(reply)

    def is_awaited(self) -> bool:
        """Whether answers are to come that are not here yet. Does not wait."""
        if _readable([self.connection.fileno()], 0.0):
            self.receive()
        if self._questions and now() >= self._questions[0].deadline:
            error = TimeoutError(f"no answer within {self.node.timeout:g} s")
            self.node.outage.begin(error)
            self.broke(error)
        return bool(self._questions)

    def broke(self, error: BaseException, *, cut_off: bool = False) -> None:
        """``cut_off``: by us, so what was sent may arrive yet, and what undoes a vote may go past it."""
        pool = self.node.pools[self.patient]
        pool.discard(self.connection)
        pool.drop_idle()  # most likely dead, too
        failure = translated(error, self.node.address)
        failure.__cause__ = error
        says_nothing = self.connection.was_idle or isinstance(error, ENDED)  # of the server
        questions, self._questions = self._questions, deque()
        for question in questions:
            question.channel = None
            if says_nothing and question.wanted and not question.repeated:
                question.repeated = True
                question.open(self.patient)
                question.send()
            else:
                unheard = cut_off and question.script is VOTE and question.token in self.node.unheard
                question.fail(failure)
                if unheard:
                    self.node.unheard.add(question.token)


def _channel(node: Node, patient: bool) -> Channel:
    """A connection for one more question, of those that were left if there is one. Raises ``DistLockError``."""
    left = node.left[patient]
    while left:
        if not patient:
            node.outage.refuse_if_silent()
        try:
            channel: Channel = left.pop()
        except IndexError:  # another thread has it
            break
        if channel.is_awaited():
            return channel
    return Channel(node, patient)


#: Whether the answers suffice.
Enough: TypeAlias = Callable[[Sequence[Question]], bool]


def every_answer(questions: Sequence[Question]) -> bool:
    """Never enough: every node that can has to answer."""
    return False


def ask_in_thread(questions: Sequence[Question], enough: Enough, within: float, patient: bool) -> None:
    """Ask all of them; return when all have answered or failed, when it is enough, or after ``within`` seconds."""
    try:
        # To open a connection may take long. That is not to count as the time of an answer: clocks are compared by it.
        for question in questions:
            question.open(patient)
        for question in questions:
            question.send()
        until = now() + within
        while not enough(questions):
            channels = {each.channel.connection.fileno(): each for each in questions if each.channel is not None}
            moment = now()
            if not channels or moment >= until:
                break
            next_due = min(until, *[each.until for each in channels.values()])
            for descriptor in _readable(channels, max(0.0, next_due - moment)):
                if (channel := channels.pop(descriptor).channel) is not None:
                    channel.receive()
            for question in channels.values():
                if question.channel is not None and question.until <= now() < until:
                    question.channel.broke(TimeoutError(f"no answer within {question.node.timeout:g} s"))
    except BaseException:  # a signal's: what was read is lost, and an answer would reach the next one who asks there
        for question in questions:
            question.wanted = False
            if question.channel is not None:
                if question.script is VOTE and question.sent:
                    question.node.unheard.add(question.token)
                question.channel.broke(ConnectionError("interrupted"), cut_off=True)
        raise
    for question in questions:
        question.leave()


async def ask_in_tasks(questions: Sequence[Question], enough: Enough, within: float) -> None:
    """The same in an event loop."""
    asked = {asyncio.ensure_future(question.ask()): question for question in questions}
    pending, until, turns = set(asked), now() + within, LATE_TURNS
    try:
        while pending and turns and not enough(questions):
            left = until - now()
            turns -= left <= 0
            _, pending = await asyncio.wait(pending, timeout=max(0.0, left), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in pending:
            asked[task].leave()
            _going_on.add(task)  # it ends by itself, within the time-out
            task.add_done_callback(_has_ended)
    # What is no answer, but a bug's or a signal's. Each is looked at: else asyncio logs that nobody has.
    errors = [task.exception() for task in asked if task.done() and not task.cancelled()]
    error = next((each for each in errors if each is not None), None)
    if error is not None:
        raise error


def _has_ended(task: asyncio.Task[None]) -> None:
    _going_on.discard(task)
    if not task.cancelled():
        task.exception()  # seen


#: Tasks that are not awaited any more: an event loop has only weak references to its own.
_going_on: set[asyncio.Task[None]] = set()


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
    others = [each for each in questions if not each.answered]
    answered = len(questions) - len(others)
    text = f"{answered} of {len(questions)} nodes answered, {needed} are needed: {said_instead(questions)}"
    kinds = [type(each.error) for each in others if each.error is not None]
    kind = next((kind for kind in kinds if not issubclass(kind, BackendUnavailable)), BackendUnavailable)
    return kind(text)


def said_instead(questions: Sequence[Question]) -> str:
    """In words, what each of those said that did not answer."""
    others = [each for each in questions if not each.answered]
    return " ".join(sorted(str(each.error or f"{each.node} did not answer in time.") for each in others))
