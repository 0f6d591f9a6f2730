"""Whether a server answers, what is kept for the time when it does again, and who asks."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator

import pytest

from distlock_web import BackendUnavailable, ConfigurationError
from distlock_web.core.errors import NotSent
from distlock_web.core.runtime import THREADS, Runtime, drive, now
from distlock_web.core.worker import Workers
from distlock_web.kit import outage
from distlock_web.kit.outage import Outage
from tests.support.callers import no_thread, threads
from tests.support.waiting import LONG, SLACK, SOON, eventually

IN_VAIN = TimeoutError("no answer")


@pytest.fixture
def unanswered() -> Iterator[tuple[Outage, threading.Event]]:
    """That of a server that answers from the moment of the event on."""
    answers = threading.Event()

    def probe() -> None:
        if not answers.is_set():
            raise BackendUnavailable("The server of the test does not answer.")

    watched = Outage("The server", probe, SLACK)
    yield watched, answers
    watched.close()


def test_a_request_that_fails_after_the_store_was_closed_has_nobody_ask_for_ever(
    unanswered: tuple[Outage, threading.Event],
) -> None:
    """A renewal that was on its way when the store was closed left a thread that asked a stopped server."""
    watched, answers = unanswered
    answers.set()
    for _ in range(3):
        watched.postpone(watched.refuse_if_silent, after=LONG, within=LONG)  # done at the close, and no new request
    watched.close()
    answers.clear()
    watched.begin(IN_VAIN)
    assert not watched.silent
    eventually(lambda: not threads("distlock-outage"), "nobody asks", SOON)
    watched.refuse_if_silent()
    watched.begin(IN_VAIN)
    assert watched.silent, "a store that is used again after it was closed is watched again"


def test_one_that_fails_keeps_none_of_the_others(
    unanswered: tuple[Outage, threading.Event], caplog: pytest.LogCaptureFixture
) -> None:
    watched, answers = unanswered
    done: list[str] = []

    def fail() -> None:
        raise LookupError("a bug")

    watched.postpone(fail, after=0.0, within=LONG)
    watched.postpone(lambda: done.append("the other"), after=0.0, within=LONG)
    answers.set()
    eventually(lambda: done, "the other is done", SOON)
    eventually(lambda: "a bug" in caplog.text, "the failure is logged", SOON)  # by another thread, perhaps later


def test_without_a_thread_that_asks_nobody_is_refused(
    unanswered: tuple[Outage, threading.Event], caplog: pytest.LogCaptureFixture
) -> None:
    """At the end of the interpreter, or where a system has no more threads, a finished block raised RuntimeError."""
    watched, _ = unanswered
    with no_thread("distlock-outage"), caplog.at_level(logging.WARNING):
        watched.begin(IN_VAIN)
        watched.postpone(lambda: None, after=0.0, within=LONG)
    assert "can't start new thread" in caplog.text
    watched.refuse_if_silent()


def test_what_was_postponed_where_no_thread_could_be_started_is_done_with_the_next_request(
    unanswered: tuple[Outage, threading.Event],
) -> None:
    """It waited for somebody else to be silent: a lock that was taken for nobody was held for its whole lease."""
    watched, answers = unanswered
    done: list[int] = []
    with no_thread("distlock-outage"):
        watched.postpone(lambda: done.append(1), after=0.0, within=LONG)
    answers.set()
    watched.refuse_if_silent()
    eventually(lambda: done, "it is done", SOON)


def test_who_is_refused_sees_to_it_that_somebody_asks(unanswered: tuple[Outage, threading.Event]) -> None:
    """A signal came while the thread was started: all were refused for ever, and nobody asked."""
    watched, answers = unanswered
    with no_thread("distlock-outage", KeyboardInterrupt()), pytest.raises(KeyboardInterrupt):
        watched.begin(IN_VAIN)
    with pytest.raises(BackendUnavailable):
        watched.refuse_if_silent()
    answers.set()
    eventually(lambda: not watched.silent, "somebody has asked", SOON)
    watched.refuse_if_silent()


def test_where_nobody_can_ask_any_more_nobody_is_refused(unanswered: tuple[Outage, threading.Event]) -> None:
    watched, _ = unanswered
    with no_thread("distlock-outage", KeyboardInterrupt()), pytest.raises(KeyboardInterrupt):
        watched.begin(IN_VAIN)
    assert watched.silent
    with no_thread("distlock-outage"):
        watched.refuse_if_silent()
    assert not watched.silent


def test_a_server_that_answers_and_refuses_is_not_asked_without_a_pause(
    unanswered: tuple[Outage, threading.Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A master that has become a replica was connected to some hundred times a second, until the lease had ended."""
    asked: list[int] = []

    def refuse() -> None:
        asked.append(len(asked))
        raise BackendUnavailable("READONLY")

    watched, answers = unanswered
    monkeypatch.setattr(outage, "RETRY_AFTER", 60.0)
    answers.set()
    watched.postpone(refuse, after=0.0, within=LONG)
    eventually(lambda: asked, "it is asked", SOON)
    threading.Event().wait(0.1)
    assert asked == [0]
    monkeypatch.undo()
    watched._worker.wake()  # it sleeps for a minute


@pytest.mark.parametrize("refuses", [False, True])
def test_after_what_was_postponed_is_done_the_thread_goes_on_without_a_pause(
    unanswered: tuple[Outage, threading.Event], refuses: bool
) -> None:
    """More may have come meanwhile."""
    watched, answers = unanswered
    with no_thread("distlock-outage"):
        watched.postpone(unavailable if refuses else lambda: None, after=0.0, within=LONG)
        answers.set()
        assert watched._step() == (outage.RETRY_AFTER if refuses else 0.0)


def test_a_silence_that_begins_while_the_thread_hears_an_answer_is_one() -> None:
    """The server answered what was asked before; what was asked since waited in vain."""
    asked, hears = threading.Event(), threading.Event()

    def probe() -> None:
        if asked.is_set():
            raise BackendUnavailable("It does not answer any more.")
        asked.set()
        assert hears.wait(SOON)

    watched = Outage("The server", probe, SLACK)
    try:
        watched.begin(IN_VAIN)
        assert asked.wait(SOON)
        watched.begin(IN_VAIN)
        hears.set()
        threading.Event().wait(0.05)
        assert watched.silent
    finally:
        watched.close()


def answered(watched: Outage, asked: float, within: float = SOON) -> bool:
    return drive(watched.answers(asked, within, THREADS))


def test_a_server_that_is_asked_and_answers_is_not_silent(unanswered: tuple[Outage, threading.Event]) -> None:
    watched, answers = unanswered
    asked = watched.ask()
    assert not answered(watched, asked, within=0.05)
    answers.set()
    assert answered(watched, watched.ask())
    assert not watched.silent
    watched.refuse_if_silent()


def test_an_answer_to_an_earlier_question_says_nothing() -> None:
    """It may have hung since: only what was sent after the doubt began takes it away."""
    asked, hears = threading.Semaphore(0), threading.Semaphore(0)

    def probe() -> None:
        asked.release()
        assert hears.acquire(timeout=SOON)

    watched = Outage("The server", probe, SLACK)
    try:
        first = watched.ask()
        assert asked.acquire(timeout=SOON)
        second = watched.ask()
        hears.release()
        assert answered(watched, first)
        assert asked.acquire(timeout=SOON), "it is asked once more"
        assert not watched.answered(second)
        hears.release()
        assert answered(watched, second)
    finally:
        watched.close()


def test_a_doubt_of_the_thread_that_asks_is_answered(
    unanswered: tuple[Outage, threading.Event],
) -> None:
    """Where no other is to be had it does for others what may meet a dead connection: it would wait for itself."""
    watched, answers = unanswered
    said: list[bool] = []
    answers.set()
    with no_thread("distlock-outage-helper"):
        watched.postpone(lambda: said.append(watched.answered(watched.ask())), after=0.0, within=LONG)
        eventually(lambda: said, "it is done", SOON)
    assert said == [True]


@pytest.mark.parametrize("postponed", [1, 2])
def test_a_doubt_is_answered_while_what_was_postponed_is_done(
    unanswered: tuple[Outage, threading.Event], postponed: int
) -> None:
    """The thread that asks waited for its helpers, and they for its answer: a server that was back went silent."""
    watched, answers = unanswered
    said: list[bool] = []
    watched.begin(IN_VAIN)
    for _ in range(postponed):
        watched.postpone(lambda: said.append(answered(watched, watched.ask())), after=0.0, within=LONG)
    answers.set()
    eventually(lambda: len(said) == postponed, "all are done", SOON)
    assert said == [True] * postponed


def test_a_doubt_is_answered_while_one_that_was_postponed_waits(unanswered: tuple[Outage, threading.Event]) -> None:
    """Its connection was dead. Everybody else's doubt waited for its time-out, and a healthy server went silent."""
    watched, answers = unanswered
    begun, goes_on = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        assert goes_on.wait(LONG)

    answers.set()
    watched.postpone(work, after=0.0, within=LONG)
    assert begun.wait(SOON)
    try:
        assert answered(watched, watched.ask())
    finally:
        goes_on.set()


def test_what_is_refused_keeps_nothing_behind_it(unanswered: tuple[Outage, threading.Event]) -> None:
    """Its slot was at a dead node by then: all that came after it waited until its lease had ended."""
    watched, answers = unanswered
    done: list[int] = []

    def refused() -> None:
        raise BackendUnavailable("Another server does not answer.")

    for _ in range(outage.AT_A_TIME):
        watched.postpone(refused, after=0.0, within=LONG)
    watched.postpone(lambda: done.append(1), after=0.0, within=LONG)
    answers.set()
    eventually(lambda: done, "it is done", SOON)


def test_a_server_that_refuses_us_answers() -> None:
    """Its password was changed meanwhile: all were told that it hung, for as long as it did not."""
    refusal: list[BackendUnavailable | ConfigurationError] = [BackendUnavailable("It hangs.")]

    def probe() -> None:
        raise refusal[0]

    watched, done = Outage("The server", probe, SLACK), list[int]()
    watched.begin(IN_VAIN)
    watched.postpone(lambda: done.append(1), after=0.0, within=LONG)
    refusal[0] = ConfigurationError("WRONGPASS")
    eventually(lambda: not watched.silent, "whoever asks is told what is wrong", SOON)
    watched.refuse_if_silent()
    assert not done
    watched.close()


def test_a_bug_that_every_question_meets_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """A traceback came ten times a second, for as long as there was something to do."""
    outcomes: list[Exception | None] = [TypeError("one"), TypeError("one"), TypeError("two"), None, TypeError("two")]
    left = iter(outcomes)

    def probe() -> None:
        if (error := next(left)) is not None:
            raise error

    watched = Outage("The server", probe, SLACK)
    assert [watched._ask() for _ in outcomes] == [outcome is None for outcome in outcomes]
    assert [str(each.exc_info[1]) for each in caplog.records if each.exc_info] == ["one", "two", "two"]


def test_what_was_postponed_is_done_before_others_are_let_in(
    unanswered: tuple[Outage, threading.Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who came first was refused for what nobody wanted any more, and was to be given back just then."""
    monkeypatch.setattr(outage, "MAX_KEPT_OUT", LONG)
    watched, answers = unanswered
    seen: list[bool] = []

    def work() -> None:
        watched.refuse_if_silent()  # it is itself let in
        for _ in range(2):  # the thread that asks has looked whether others are to be let in
            assert answered(watched, watched.ask())
        seen.append(watched.silent)

    watched.begin(IN_VAIN)
    watched.postpone(work, after=0.0, within=LONG)
    answers.set()
    eventually(lambda: not watched.silent, "others are let in", SOON)
    assert seen == [True]


def test_what_was_postponed_does_not_wait_for_each_other(unanswered: tuple[Outage, threading.Event]) -> None:
    """One after the other: of a server that is 50 ms away 200 locks were given back in ten seconds."""
    watched, answers = unanswered
    together, done = threading.Barrier(4), list[int]()

    def work() -> None:
        watched.refuse_if_silent()  # they are all let in
        done.append(together.wait(SOON))

    watched.begin(IN_VAIN)
    for _ in range(8):
        watched.postpone(work, after=0.0, within=LONG)
    answers.set()
    eventually(lambda: len(done) == 8, "four at a time", SOON)
    eventually(lambda: threads("distlock-outage-helper") == 0, "no thread stays", SOON)


def test_others_are_let_in_though_what_was_postponed_takes_its_time(
    unanswered: tuple[Outage, threading.Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten thousand locks to be given back kept everybody out for as long as that took."""
    monkeypatch.setattr(outage, "MAX_KEPT_OUT", 0.05)
    watched, answers = unanswered
    may_end, done = threading.Event(), list[bool]()
    watched.begin(IN_VAIN)
    for _ in range(outage.AT_A_TIME):
        watched.postpone(lambda: done.append(may_end.wait(SOON)), after=0.0, within=LONG)
    answers.set()
    eventually(lambda: not watched.silent, "others are let in", SOON)
    assert not done
    may_end.set()
    eventually(lambda: len(done) == outage.AT_A_TIME, "all is done", SOON)


def test_what_is_left_at_the_close_is_done_when_the_server_is_back(
    unanswered: tuple[Outage, threading.Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was dropped while the server was away: a lock that could not be given back was held for its whole lease."""
    monkeypatch.setattr(outage, "KEPT_AFTER_CLOSE", LONG)
    watched, answers = unanswered
    done = list[int]()
    watched.postpone(lambda: done.append(1), after=0.0, within=LONG)
    watched.close()
    assert done == []
    answers.set()
    eventually(lambda: done, "what ends by itself is done", SOON)
    assert done == [1]


def test_at_a_close_with_nothing_left_the_server_is_not_asked() -> None:
    asked = list[int]()
    Outage("The server", lambda: asked.append(1), SLACK).close()
    assert asked == []


def test_what_is_left_at_the_close_is_not_kept_for_ever(unanswered: tuple[Outage, threading.Event]) -> None:
    watched, _ = unanswered
    watched.postpone(lambda: None, after=0.0, within=LONG)
    watched.close()
    eventually(lambda: not watched._worker.runs, "the thread ends by itself", SOON)


def test_a_server_that_is_nobodys_any_more_is_not_asked_for_ever(unanswered: tuple[Outage, threading.Event]) -> None:
    """Each node of a cluster that was replaced left a thread that went on to connect, perhaps to a stranger."""
    watched, _ = unanswered
    former = Outage("The former server", lambda: unavailable(), SLACK)
    former.begin(IN_VAIN)
    former.postpone(lambda: None, after=0.0, within=LONG)
    watched.take_over(former)
    former.begin(IN_VAIN)  # a request that was on its way
    assert not former.silent
    watched.close()
    eventually(lambda: threads("distlock-outage") <= 1, "that of what is kept after the close", SOON)


def test_what_comes_too_late_is_given_up_and_said_once(
    unanswered: tuple[Outage, threading.Event], caplog: pytest.LogCaptureFixture
) -> None:
    """Without a word: that a lock had been kept for nobody was seen by those alone who waited for it."""
    watched, _ = unanswered
    done = list[int]()
    with caplog.at_level(logging.INFO, "distlock_web"):
        for within in (0.0, 0.0, 0.3):
            watched.postpone(lambda: done.append(1), after=0.0, within=within)
        watched.look()  # of which nothing is said
        eventually(lambda: len(watched._postponed) <= 1, "all are given up", SOON)
        eventually(lambda: "has ended with its lease" in caplog.text, "it is said", SOON)
        watched.close()
    said = [record.getMessage() for record in caplog.records if "has ended with its lease" in record.getMessage()]
    assert len(said) == 1
    assert done == []


def unavailable() -> None:
    raise BackendUnavailable("The server of the test does not answer.")


def test_the_end_waits_only_so_long_for_what_was_put_off(
    unanswered: tuple[Outage, threading.Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten thousand cancels at a server that is far away held up the end of the program for minutes."""
    watched, answers = unanswered
    begun = list[bool]()

    def work() -> None:
        begun.append(True)
        eventually(lambda: not watched._helpers.queue, "the others are given up", 1.0)

    for _ in range(10 * outage.AT_A_TIME):
        watched.postpone(work, after=LONG, within=2 * LONG)
    answers.set()
    with monkeypatch.context() as patched:
        patched.setattr(outage, "FINISH_WITHIN", LONG / 2)
        patched.setattr(outage, "now", lambda: now() + (LONG if begun else 0.0))  # when some have begun it is over
        watched.close()
    assert 0 < len(begun) <= outage.AT_A_TIME, "those that had begun"


# What is asked, and when --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error", [BackendUnavailable("It hangs."), ConfigurationError("WRONGPASS"), LookupError("a bug of a provider's")]
)
def test_nothing_is_done_before_the_server_has_answered(error: Exception) -> None:
    asked, done, answers = list[int](), list[int](), threading.Event()

    def probe() -> None:
        asked.append(1)
        if not answers.is_set():
            raise error

    watched = Outage("The server", probe, SLACK)
    watched.postpone(lambda: done.append(1), after=0.0, within=LONG)
    eventually(lambda: len(asked) > 2, "it is asked again and again", SOON)
    assert not done
    answers.set()
    eventually(lambda: done, "it is done", SOON)
    watched.close()


def test_a_server_that_answers_is_asked_for_nothing() -> None:
    """Neither by a request, nor for what is not due yet, and is too late then."""
    asked = list[int]()
    watched = Outage("The server", lambda: asked.append(1), SLACK)
    with no_thread("distlock-outage", AssertionError("a thread for nothing")):
        watched.refuse_if_silent()
    watched.postpone(unavailable, after=LONG, within=0.15)
    eventually(lambda: not watched._worker.runs, "nothing is left to do", SOON)
    assert asked == []


def test_what_is_due_later_is_done_later(unanswered: tuple[Outage, threading.Event]) -> None:
    watched, answers = unanswered
    done = list[str]()
    watched.postpone(lambda: done.append("later"), after=LONG, within=2 * LONG)
    watched.postpone(lambda: done.append("now"), after=0.0, within=LONG)
    answers.set()
    eventually(lambda: done, "what is due is done", SOON)
    assert done == ["now"]


def test_whether_an_address_leads_elsewhere_is_looked_at_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outage, "LOOK_WITHIN", LONG)
    asked, answers = list[int](), threading.Event()

    def probe() -> None:
        asked.append(1)
        if not answers.is_set():
            unavailable()

    watched = Outage("The server", probe, SLACK)
    begun = now()
    for _ in range(3):
        watched.look()
    (item,) = watched._postponed
    assert begun <= item.due <= now()
    assert item.until == pytest.approx(item.due + outage.LOOK_WITHIN)
    answers.set()
    eventually(lambda: not watched._worker.runs, "that was all", SOON)
    assert asked
    assert not [record for record in caplog.records if record.levelno > logging.DEBUG]


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (TimeoutError("no answer of X."), "no answer of X"),
        (TimeoutError("no answer"), "no answer"),
        (OSError(), "OSError"),
    ],
)
@pytest.mark.parametrize("begun", [None, True, False])
def test_who_is_refused_hears_why(
    unanswered: tuple[Outage, threading.Event], error: Exception, cause: str, begun: bool | None
) -> None:
    watched, _ = unanswered
    watched.begin(error)
    with pytest.raises(
        BackendUnavailable, match=rf"^The server does not answer, for \d+\.\d s so far \({cause}\)"
    ) as told:
        watched.refuse_if_silent(*[] if begun is None else [begun])
    assert type(told.value) is (BackendUnavailable if begun else NotSent)


def test_what_was_given_up_is_told_once_in_an_outage(
    unanswered: tuple[Outage, threading.Event], caplog: pytest.LogCaptureFixture
) -> None:
    watched, _ = unanswered
    caplog.set_level(logging.INFO, "distlock_web")

    def give_up(*works: Callable[[], object]) -> list[str]:
        caplog.clear()
        watched._postponed.extend(outage.Postponed(0.0, 0.0, work) for work in works)
        assert not watched._due()
        return caplog.messages

    said = "The server: what was to be released there (%d so far) could not be, and has ended with its lease."
    assert give_up() == []
    assert give_up(outage._nothing) == [], "where the address leads is not released"
    assert give_up(unavailable, outage._nothing, unavailable) == [said % 2]
    assert give_up(unavailable) == []
    watched._answered = now()
    watched._let_in()
    assert give_up(unavailable) == [said % 1]


# What another one takes over, and the end ---------------------------------------------------------------------------


def test_what_is_taken_over_keeps_its_times(unanswered: tuple[Outage, threading.Event]) -> None:
    watched, _ = unanswered
    former = Outage("The former server", unavailable, SLACK)
    former.postpone(lambda: None, after=LONG, within=2 * LONG)
    former.postpone(lambda: None, after=0.0, within=LONG)
    before = {(item.due, item.until) for item in former._postponed}
    watched.take_over(former)
    after = {(item.due, item.until) for item in watched._postponed}
    assert sorted(after) == [pytest.approx(times, abs=SLACK) for times in sorted(before)]


def test_what_is_done_after_the_close_makes_no_store_of_it(
    unanswered: tuple[Outage, threading.Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread asks, as every request does, and would have a closed store watched again."""
    monkeypatch.setattr(outage, "KEPT_AFTER_CLOSE", LONG)
    watched, answers = unanswered
    done = list[int]()

    def work() -> None:
        watched.refuse_if_silent()
        done.append(1)

    watched.postpone(work, after=0.0, within=LONG)
    watched.close()
    answers.set()
    eventually(lambda: done, "it is done", SOON)
    watched.begin(IN_VAIN)
    assert not watched.silent


def test_what_is_left_at_the_close_is_done_side_by_side(unanswered: tuple[Outage, threading.Event]) -> None:
    watched, answers = unanswered
    together, done = threading.Barrier(2), list[int]()

    def work() -> None:
        together.wait(SOON)
        done.append(threads("distlock-outage-helper"))

    for _ in range(2):
        watched.postpone(work, after=LONG, within=2 * LONG)
    answers.set()
    watched.close()
    assert len(done) == 2
    assert all(done)


def test_at_the_end_of_the_program_it_is_done_without_a_thread(unanswered: tuple[Outage, threading.Event]) -> None:
    """None can be started any more, and each try would be warned of."""
    watched, answers = unanswered
    done = list[int]()
    for _ in range(3):
        watched.postpone(lambda: done.append(1), after=LONG, within=2 * LONG)
    answers.set()
    with no_thread("distlock-outage-helper", AssertionError("a thread at the end")):
        watched._worker.finish()
    assert len(done) == 3


def test_nobody_pauses_between_what_is_left_at_the_close(
    unanswered: tuple[Outage, threading.Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outage, "FINISH_WITHIN", SOON)
    watched, answers = unanswered
    watched._helpers = Workers("distlock-outage-helper", 1, watched._do)
    done = list[int]()

    def work() -> None:
        threading.Event().wait(0.005)
        done.append(1)

    for _ in range(20):
        watched.postpone(work, after=LONG, within=2 * LONG)
    answers.set()
    watched.close()
    assert len(done) == 20


@pytest.mark.parametrize(
    ("answers", "overtaken", "silent"),
    [
        pytest.param(True, True, False, id="the connection is dead"),
        pytest.param(False, False, True, id="the server is"),
    ],
)
def test_a_request_without_an_answer_asks_why(
    unanswered: tuple[Outage, threading.Event], answers: bool, overtaken: bool, silent: bool
) -> None:
    watched, answering = unanswered
    if answers:
        answering.set()
    begun, never = now(), threading.Event()

    def comes(seconds: float) -> bool:
        return never.wait(min(seconds, outage.POLL))  # of a time that is long because a busy machine is late

    assert watched.overtakes(comes, begun + (LONG if answers else 0.3), watched.timeout) is overtaken
    assert watched.silent is silent
    assert watched._asked > begun, "a fresh connection was tried"


@pytest.mark.parametrize(("left", "looks"), [(4.0, [2.0, outage.POLL]), (0.5, [0.25, outage.POLL]), (0.0, [0.001])])
def test_a_request_is_waited_for_half_of_its_time_and_then_looked_at_to_its_end(
    unanswered: tuple[Outage, threading.Event], left: float, looks: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    watched, _ = unanswered
    monkeypatch.setattr(outage, "now", lambda: 100.0)
    waited = list[float]()

    def comes(seconds: float) -> bool:
        waited.append(seconds)
        return len(waited) == 2

    assert not watched.overtakes(comes, 100.0 + left, SLACK)
    assert waited == looks
    assert watched.silent is (left == 0.0)
    if watched.silent:
        with pytest.raises(NotSent, match=rf"\(no answer within {SLACK:g} s\)"):
            watched.refuse_if_silent()


def test_a_server_to_which_no_connection_opens_has_half_of_a_time_out_to_answer(
    unanswered: tuple[Outage, threading.Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    watched, _ = unanswered
    had = list[tuple[float, float]]()

    async def answers(_: Outage, asked: float, within: float, __: Runtime) -> bool:
        had.append((asked, within))
        return True

    monkeypatch.setattr(Outage, "answers", answers)
    drive(watched.in_vain(IN_VAIN, None, THREADS, 7.0))
    assert had == [(7.0, SLACK / 2)]


def wait_in_vain(watched: Outage, seconds: float) -> None:
    watched.overtakes(threading.Event().wait, now() + 0.01, seconds)


def connect_in_vain(watched: Outage, seconds: float) -> None:
    drive(watched.in_vain(IN_VAIN, seconds, THREADS, None))


def begin(watched: Outage, seconds: float) -> None:
    watched.begin(IN_VAIN, seconds)


@pytest.mark.parametrize("given", [None, 0.4, 0.1, 0.01], ids=["all", "more", "as many", "fewer"])
@pytest.mark.parametrize("fails", [wait_in_vain, connect_in_vain, begin])
def test_a_request_that_had_fewer_seconds_than_an_answer_may_take_says_nothing_of_the_server(
    unanswered: tuple[Outage, threading.Event], fails: Callable[[Outage, float], None], given: float | None
) -> None:
    """A late renewal has milliseconds: the server counted as silent, and all that wanted a lock were refused."""
    watched, _ = unanswered
    watched.timeout = 0.1
    fails(watched, watched.seconds_for(given))
    assert watched.silent is (given != 0.01)


def test_a_request_that_is_answered_in_half_of_its_time_asks_nobody(unanswered: tuple[Outage, threading.Event]) -> None:
    watched, _ = unanswered
    there = threading.Event()
    there.set()
    assert not watched.overtakes(there.wait, now() + LONG, SLACK)
    assert watched._asked == float("-inf")
    assert not watched.silent


def test_an_answer_that_comes_late_is_one(unanswered: tuple[Outage, threading.Event]) -> None:
    """The server was asked meanwhile, and answered, too."""
    watched, answering = unanswered
    answering.set()
    looks: list[float] = []

    def comes(seconds: float) -> bool:
        looks.append(seconds)
        if len(looks) > 1:
            eventually(lambda: watched.answered(watched._asked), "the other answer is there", SOON)
        return len(looks) > 1

    assert not watched.overtakes(comes, now() + LONG, SLACK)


def test_an_answer_that_others_hold_up_is_waited_for_to_the_end(unanswered: tuple[Outage, threading.Event]) -> None:
    """The server answers on a fresh connection, and what is late is what its replicas say."""
    watched, answering = unanswered
    answering.set()
    looks: list[bool] = []

    def comes(seconds: float) -> bool:
        eventually(lambda: watched.answered(watched._asked), "the other answer is there", SOON)
        looks.append(True)
        return len(looks) == 5

    assert not watched.overtakes_late(comes, now() + LONG, SLACK, held_up=True)
    assert len(looks) == 5
    looks.clear()
    assert watched.overtakes_late(comes, now() + LONG, SLACK)
    assert len(looks) == 2, "after the one that found the other answer there"


@pytest.mark.parametrize("earlier", [False, True], ids=["asked now", "asked before"])
@pytest.mark.parametrize("answers", [False, True], ids=["silent", "answers"])
def test_where_no_connection_opens_a_fresh_one_decides(
    unanswered: tuple[Outage, threading.Event], answers: bool, earlier: bool
) -> None:
    watched, answering = unanswered
    if answers:
        answering.set()
    watched.timeout = SOON * 2 if answers else 0.2
    asked = watched.ask() if earlier else None
    drive(watched.in_vain(IN_VAIN, None, THREADS, asked))
    assert watched.silent is not answers
    if earlier:
        assert watched._asked == asked, "it is not asked once more"


def test_what_cannot_be_done_now_is_done_when_the_server_answers(unanswered: tuple[Outage, threading.Event]) -> None:
    watched, answering = unanswered
    done: list[bool] = []

    def work() -> None:
        if not answering.is_set():
            raise BackendUnavailable("The server of the test does not answer.")
        done.append(True)

    begun = now()
    watched.now_or_later(work, within=LONG)
    assert done == []
    (item,) = watched._postponed
    assert begun <= item.due <= now(), "at once, when it answers"
    assert item.until == pytest.approx(item.due + LONG)
    answering.set()
    eventually(lambda: done == [True], "it is done", SOON)
    watched.now_or_later(work, within=LONG)
    assert done == [True, True]
