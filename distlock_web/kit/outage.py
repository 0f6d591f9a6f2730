"""Whether one server answers: so that one that hangs costs a request milliseconds, and not a time-out each.

A request that waits in vain is a doubt at first: its connection may have died while it was idle, or its event loop may
be late. So when half of its time is over it has the server asked on a fresh connection (``ask``), by a thread of ours,
and goes on waiting. Only where that has no answer either (``answered``) the server is *silent* (``begin``).

While it is, requests are refused at once. The thread asks again and again, so that it is known within milliseconds of
the first answer, and does what could not be done meanwhile (``postpone``): what was perhaps taken, and no caller
waits for any more, is given back before others are let in. They wait a second for it at most.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from ..core.errors import BackendUnavailable, ConfigurationError, DistLockError, NotSent
from ..core.runtime import Runtime, ThreadParker, drive, now
from ..core.worker import Worker, Workers

logger = logging.getLogger("distlock_web")

#: Seconds between two attempts to reach a server that refuses at once; one that hangs is waited for anyway.
RETRY_AFTER = 0.1
#: Seconds after which it does not matter any more whether the address leads to another server.
LOOK_WITHIN = 5.0
#: Seconds between two looks of one who waits for the answer to ``ask``.
POLL = 0.01
#: Tasks that are done at a time when the server answers again, and the seconds for which others are kept out for them.
AT_A_TIME, MAX_KEPT_OUT = 8, 1.0
#: Seconds that the end of a store, or of the program, waits for what was put off.
FINISH_WITHIN = 2.0
#: Seconds for which tasks are kept that were left when the store was closed.
KEPT_AFTER_CLOSE = 60.0


class Postponed(NamedTuple):
    due: float
    until: float  #: after this there is nothing left to do
    work: Callable[[], object]


def _nothing() -> None:
    """What is left to do where having connected is all."""


class Outage:
    """One server, as its connections know it. Every change is one assignment."""

    def __init__(self, name: str, probe: Callable[[], object], timeout: float) -> None:
        self.timeout = timeout  #: seconds that an answer may take
        self._name = name
        self._probe = probe  #: does what a request does, on a connection of its own; raises where that fails
        self._silent_since: float | None = None
        self._cause = self._bug = ""  #: why it is silent; what it was asked in vain for, and what was logged
        self._told = False  #: in this outage: that something was given up
        self._closed = False  #: and it was not asked since
        # When a caller wanted to know, a question was sent, one was sent that was answered, a caller waited in vain.
        self._asked = self._probed = self._answered = self._in_vain = float("-inf")
        self._postponed: deque[Postponed] = deque()
        # Its turn is after all listeners: its server may take its time.
        self._worker = Worker("distlock-outage", self._step, self._is_left, partial(self._finish, alone=True), turn=2)
        self._helpers = Workers("distlock-outage-helper", AT_A_TIME, self._do)  #: with what of that is done now
        self._refused = False  #: the server answers, and refuses something of it

    # May I ask? ---------------------------------------------------------------------------------------------------

    @property
    def silent(self) -> bool:
        return self._silent_since is not None

    @property
    def is_own_thread(self) -> bool:
        """Whether the caller is a thread that asks again, or does what was put off: no caller waits for it."""
        return self._worker.is_current() or self._helpers.is_current()

    def refuse_if_silent(self, begun: bool = False) -> None:
        """``NotSent`` at once where a request would only wait for its time-out. Before each request.

        ``begun``: another request of the same verb may have left something, so it is a plain ``BackendUnavailable``.
        """
        if self._closed and not self.is_own_thread:
            self._closed = False
        since = self._silent_since
        if since is None and self._postponed and not self._worker.runs:
            self.watch()  # no thread was to be had when it was postponed, and no other code would ask for one
        if since is not None and not self.is_own_thread and self.watch():
            raise (BackendUnavailable if begun else NotSent)(
                f"{self._name} does not answer, for {now() - since:.1f} s so far ({self._cause}). This request was "
                f"not sent; a thread keeps asking the server."
            )

    # It failed like this ------------------------------------------------------------------------------------------

    def seconds_for(self, given: float | None) -> float:
        """For which a request is waited for that was given so many: never longer than an answer may take."""
        return self.timeout if given is None else min(given, self.timeout)

    def _had_too_little_time(self, seconds: float | None) -> bool:
        """Whether a request had fewer seconds than an answer may take: that none came says nothing of the server then.

        A late renewal has milliseconds, and its row may be locked. None: it had all of them.
        """
        return seconds is not None and seconds < self.timeout

    def begin(self, error: BaseException, seconds: float | None = None) -> None:
        """A request has waited for so many seconds in vain, and so has a fresh connection: the server is silent."""
        if self._had_too_little_time(seconds):
            return
        self._in_vain = now()
        if self._silent_since is None and not self._closed:  # else a late renewal would have it asked for ever
            self._cause = str(error).rstrip(".") or type(error).__name__
            self._silent_since = now()
            self.watch()

    def watch(self) -> bool:
        """Have a thread ask. False, and the server counts as one that answers: none is to be had, and no other would
        find out that it does."""
        if not self._worker.start():
            self._silent_since = None
            return False
        return True

    # Ask it now ---------------------------------------------------------------------------------------------------

    def ask(self) -> float:
        """Have the server asked now, on a fresh connection. What it returns is for :meth:`answered`."""
        moment = self._asked = now()
        if self._worker.is_current():
            self._ask()
        else:
            self._worker.start()
            self._worker.wake()
        return moment

    def answered(self, asked: float) -> bool:
        """Whether it has answered something that was sent at this moment, or later."""
        return self._answered >= asked

    async def answers(self, asked: float, within: float, runtime: Runtime) -> bool:
        """The same; if it is not known yet, ``within`` so many seconds from that moment."""
        parker = runtime.parker()
        while not self.answered(asked) and now() < asked + within:
            await parker.park(POLL)
        return self.answered(asked)

    def overtakes(self, comes: Callable[[float], bool], until: float, seconds: float) -> bool:
        """Wait with the thread of a request that is sent: ``comes(seconds)`` is whether its answer came within them.

        True: the server has answered a later question on a fresh connection, so that of the request is dead. False: the
        answer is there, or it is ``until``. ``seconds``: those that the request had in all. If an answer may not take
        longer, a server that has answered neither is silent.
        """
        return not comes(max(0.001, (until - now()) / 2)) and self.overtakes_late(comes, until, seconds)

    def overtakes_late(
        self, comes: Callable[[float], bool], until: float, seconds: float, held_up: bool = False
    ) -> bool:
        """The same for a request that half of its time has been waited for.

        ``held_up``: others than the server may keep the answer back, so it is waited for to the end.
        """
        asked, answered = self.ask(), False
        while (left := until - now()) > 0 and (held_up or not answered):
            answered = self.answered(asked)  # before the next look: what was sent first is answered first
            if comes(min(left, POLL)):
                return False
        if not self.answered(asked):
            self.begin(TimeoutError(f"no answer within {seconds:g} s"), seconds)
        return answered

    async def in_vain(self, error: BaseException, seconds: float | None, runtime: Runtime, asked: float | None) -> None:
        """No connection could be opened in these seconds. The server is silent, unless it answers on another one,
        within half of its time from when it was ``asked``; None: it is asked now."""
        wants = not self._had_too_little_time(seconds)
        if wants and not await self.answers(self.ask() if asked is None else asked, self.timeout / 2, runtime):
            self.begin(error)

    # Do this when it is back --------------------------------------------------------------------------------------

    def now_or_later(self, work: Callable[[], object], within: float) -> None:
        """Do this now; if the server does not answer, when it does, and not later than ``within`` seconds from now."""
        try:
            work()
        except BackendUnavailable:
            self.postpone(work, after=0.0, within=within)

    def postpone(self, work: Callable[[], object], *, after: float, within: float) -> None:
        """Do this when the server answers, not sooner than ``after`` seconds from now, and not later than ``within``.

        While it raises ``BackendUnavailable`` it is tried again.
        """
        moment = now()
        self._postponed.append(Postponed(moment + after, moment + within, work))
        self.watch()

    def look(self) -> None:
        """Connect once, soon: an address that follows a master finds out whether it is another one by now."""
        if not any(item.work is _nothing for item in list(self._postponed)):
            self.postpone(_nothing, after=0.0, within=LOOK_WITHIN)

    def take_over(self, other: Outage) -> None:
        """Do here what was to be done when the other answers: it may never do so again."""
        moment = now()
        while other._postponed:
            try:
                item = other._postponed.popleft()
            except IndexError:  # its own thread has just done the last of them
                break
            self.postpone(item.work, after=item.due - moment, within=item.until - moment)
        other._rest()
        other._worker.stop()

    def close(self) -> None:
        """Do what is postponed, as far as the server answers now: for ``FINISH_WITHIN`` and a time-out at most.

        What is left is kept for ``KEPT_AFTER_CLOSE``, and done if the server answers.
        """
        self._finish()
        until = now() + KEPT_AFTER_CLOSE
        for item in list(self._postponed):
            self._drop(item)
            if item.work is not _nothing:
                self._postponed.append(item._replace(until=min(item.until, until)))
        self._rest()
        if self._postponed:
            self.watch()
        else:
            self._worker.stop()

    def _rest(self) -> None:
        """It does not matter any more whether the server answers, until the next request."""
        self._closed = True
        self._silent_since = None

    # Our own thread -----------------------------------------------------------------------------------------------

    def _is_left(self) -> bool:
        return self.silent or bool(self._postponed) or self._asked > self._probed

    def _step(self) -> float:
        if not (self._due() or self.silent or self._asked > self._probed) or not self._ask():
            return RETRY_AFTER
        moment = now()
        caught_up = self._catch_up([item for item in list(self._postponed) if item.due <= moment])
        self._let_in()
        return 0.0 if caught_up else RETRY_AFTER

    def _let_in(self) -> None:
        if self._in_vain < self._answered:  # else a caller has waited in vain since the server was asked
            self._silent_since = None
            self._told = False

    def _finish(self, *, alone: bool = False) -> None:
        """At the end of the store, or of the program: no waiter shall have to wait until it has ended by itself.

        ``alone``: at the end of the program no thread can be started.
        """
        left = list(self._postponed)
        if left and self._ask():
            self._silent_since = None
            self._catch_up(left, within=FINISH_WITHIN, alone=alone)

    def _due(self) -> bool:
        """Whether there is something to do now. What came too late is dropped: it has ended with its lease."""
        moment = now()
        late = [item for item in list(self._postponed) if item.until < moment]
        for item in late:
            self._drop(item)
        given_up = sum(item.work is not _nothing for item in late)
        if given_up and not self._told:
            self._told = True
            text = "%s: what was to be released there (%d so far) could not be, and has ended with its lease."
            logger.info(text, self._name, given_up)
        return any(item.due <= moment for item in list(self._postponed))

    def _ask(self) -> bool:
        moment = self._probed = now()
        try:
            self._probe()
        except ConfigurationError as error:  # an answer: the next caller is told what is wrong
            logger.debug("%s", error)
            self._answered = moment
            self._let_in()
            return False
        except DistLockError as error:
            logger.debug("%s", error)
            return False
        except Exception as error:  # a credential provider's own: without this thread the server is not asked again
            if repr(error) != self._bug:  # else it is logged every time that the thread asks
                self._bug = repr(error)
                logger.exception("%s could not be asked whether it answers", self._name)
            return False
        self._answered, self._bug = moment, ""
        return True

    def _catch_up(self, items: list[Postponed], *, within: float = float("inf"), alone: bool = False) -> bool:
        """Have these done, several at a time: of a server that is far away none waits for all that came before it. This
        thread is free to answer doubts meanwhile, also where what is done waits in vain.

        False: the server answers, and refuses that (a replica): not at once again.
        """
        begun, parker = now(), ThreadParker()
        self._refused = False
        self._helpers.queue.extend(items)
        if not alone:
            self._helpers.start()
        while self._helpers.queue or self._helpers.runs:
            if self._helpers.runs:
                drive(parker.park(POLL))
            else:
                self._helpers.step()
            if self._asked > self._probed:  # one of those that are done meets a dead connection, or another caller does
                self._ask()
            if now() > begun + MAX_KEPT_OUT:
                self._let_in()
            if now() > begun + within:
                self._helpers.queue.clear()
        return not self._refused

    def _do(self, item: Postponed) -> None:
        if item not in self._postponed:  # it was given up meanwhile, to make room
            return
        try:
            item.work()
        except BackendUnavailable:
            self._refused = True
            self._helpers.queue.clear()
            self._put_last(item)
        except DistLockError as error:
            logger.info("A postponed request to the store could not be done: %s", error)
            self._drop(item)
        except Exception:
            logger.exception("A postponed request to the store failed")
            self._drop(item)
        else:
            self._drop(item)

    def _put_last(self, item: Postponed) -> None:
        """It is tried again after the others: one that another server refuses would keep all of them for its time."""
        try:
            self._postponed.remove(item)
        except ValueError:  # given up meanwhile, or the store was closed
            return
        self._postponed.append(item)

    def _drop(self, item: Postponed) -> None:
        try:
            self._postponed.remove(item)
        except ValueError:  # the store was closed meanwhile
            pass
