"""``race(…)``: what a test calls, and what it gets back."""

from __future__ import annotations

import inspect
import re
import sys
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from itertools import pairwise, permutations
from re import Pattern
from typing import Any

from . import report
from .at_django import Django, django_views
from .at_locks import at_our_locks
from .at_sqlalchemy import at_sqlalchemy, flask_views
from .outcomes import Frozen, Raised, Result, shown
from .scheduler import HANG, Caller, Order, RaceRefused, running
from .search import Search, count, is_serial
from .stops import NO_ASYNC, Watch, step

#: Further orders, and seconds, in which one is looked for that fails with fewer switches.
SHORTER, SHORTER_SECONDS = 20, 2.0


class Outcome:
    """What all orders that were tried have led to."""

    def __init__(self) -> None:
        self.tried = 0  #: orders
        self.of = 0  #: orders that there are, as far as no caller waits for another one
        self.complete = False  #: all were tried
        self.order: str | None = None  #: of the race: as ``race(…, order=…)`` takes it
        #: Of the callers: in the race, or where none was found, in the first order.
        self.answers: tuple[object, ...] = ()
        self.observed: object = None  #: what ``observe`` has returned there
        self._report = ""

    @property
    def is_race(self) -> bool:
        """Whether an order gave what no serial order gives."""
        return self.order is not None

    def assert_as_one_after_the_other(self) -> None:
        """``AssertionError``, with the order and what was done in it, if there is a race."""
        __tracebackhide__ = True  # of pytest: the report is what is read
        if self.is_race:
            raise AssertionError(str(self))

    def assert_race(self) -> None:
        """``AssertionError`` if no order has shown one: for code that is known to have it."""
        __tracebackhide__ = True
        if not self.is_race:
            raise AssertionError(str(self))

    def __str__(self) -> str:
        if self.is_race:
            return self._report
        most = "all of them" if self.complete else f"of about {self.of}, those with few switches first"
        return f"As one after the other, in {self.tried} orders: {most}."

    __repr__ = __str__


class Race:
    """Finds the race of some calls: see :func:`race`. With ``unittest``: ``Race()(…)`` in a ``TransactionTestCase``."""

    #: A stop of your own, for what no statement shows: ``race.step("sent the mail")``.
    step = staticmethod(step)

    def __init__(
        self,
        *,
        client: Callable[[], Any] | None = None,
        uncaptured: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        self._client = client
        self._uncaptured = uncaptured

    def __call__(
        self,
        *calls: Callable[..., object],
        callers: int | None = None,
        setup: Callable[[], object] | None = None,
        observe: Callable[[], object] | None = None,
        client: Callable[[], Any] | None = None,
        ignore: str | Pattern[str] | Sequence[str | Pattern[str]] = (),
        order: str | None = None,
        limit: int = 500,
        seconds: float = 20.0,
        seed: int = 0,
        hang: float = HANG,
    ) -> Outcome:
        """Try the orders of these calls until one gives what no serial order gives.

        ``callers``: so many make the one call. A call may take one argument, a test client: of ``client()``, else of
        the framework's. ``setup`` makes the state before each order; the rows of all tables that are written are put
        back afterwards. ``observe`` returns what counts beside the answers. ``ignore``: fields of JSON, of rows and of
        dicts, by name, and patterns in texts. ``order``: this one only. ``limit`` and ``seconds`` bound the search,
        ``seed`` names the choice of orders with many switches, ``hang`` the seconds that a caller may run alone.
        """
        chosen = _calls(calls, callers)
        if running() is not None:
            raise RaceRefused("race: a caller cannot race itself.")
        letters = None if order is None else _letters(order, len(chosen))
        with ExitStack() as stack:
            watch = Watch()
            framework = _watched(stack, watch)
            client = client or self._client or _client_of_framework
            tries = _Tries(chosen, setup, observe, client, Frozen(ignore), watch, framework, hang)
            return tries.search(letters, limit, seconds, seed, stack.enter_context(_Progress(self._uncaptured)))


def _calls(calls: Sequence[Callable[..., object]], callers: int | None) -> list[Callable[..., object]]:
    chosen = list(calls) * callers if callers is not None and len(calls) == 1 else list(calls)
    if len(chosen) < 2 or (callers is not None and callers != len(chosen)) or len(chosen) > 5:
        raise RaceRefused("race: name two to five calls, race(buy, cancel); or one and callers=2.")
    for call in chosen:
        if inspect.iscoroutinefunction(call):
            raise RaceRefused(NO_ASYNC)
    return chosen


def _letters(order: str, callers: int) -> list[int]:
    runs = re.findall(r"([A-E])(\d*)", order)
    numbers = [ord(letter) - ord("A") for letter, times in runs for _ in range(int(times or 1))]
    if not re.fullmatch(r"(\s*[A-E]\d*)+\s*", order) or max(numbers) >= callers:
        raise RaceRefused(f'race: order={order!r}: "ABAB" or "A3 B2 A", as the report has it: a letter for each step.')
    return numbers


def _watched(stack: ExitStack, watch: Watch) -> Django | None:
    """Stop wherever this process can be stopped: what is not imported is not there to be used."""
    stack.callback(watch.close)
    stack.enter_context(at_our_locks(watch))
    if "flask" in sys.modules:
        stack.enter_context(flask_views())
    if "sqlalchemy" in sys.modules:
        stack.enter_context(at_sqlalchemy(watch))
    if not _has_django():
        return None
    django = Django(watch)
    stack.enter_context(django_views())
    stack.enter_context(django.connected())
    return django


def _has_django() -> bool:
    conf, apps = sys.modules.get("django.conf"), sys.modules.get("django.apps")
    return bool(conf is not None and conf.settings.configured and apps is not None and apps.apps.ready)


def _client_of_framework() -> Any:
    flask = sys.modules.get("flask")
    if flask is not None and flask.has_app_context():
        return flask.current_app.test_client()
    if _has_django():
        from django.test import Client

        return Client()
    raise RaceRefused("race: the call wants a client: give client=, as client=app.test_client.")


class _Tries:
    """Runs orders of the same calls, and compares."""

    def __init__(
        self,
        calls: Sequence[Callable[..., object]],
        setup: Callable[[], object] | None,
        observe: Callable[[], object] | None,
        client: Callable[[], Any],
        frozen: Frozen,
        watch: Watch,
        django: Django | None,
        hang: float,
    ) -> None:
        self._calls = calls
        self._setup = setup
        self._observe = observe
        self._client = client
        self._frozen = frozen
        self._watch = watch
        self._django = django
        self._hang = hang
        self._serial: list[tuple[str, Result]] = []
        self._without: dict[frozenset[int], list[Result]] = {}
        self._tried = 0

    def search(self, only: list[int] | None, limit: int, seconds: float, seed: int, progress: _Progress) -> Outcome:
        outcome, search, until = Outcome(), Search(seed), time.monotonic() + seconds
        while (following := search.next()) is not None:
            cost, beginning = following
            if only is not None and cost:
                return self._only(outcome, only)
            if self._tried >= limit or (time.monotonic() > until and self._tried > 1):
                break
            order, result = self._try(beginning)
            search.seen(beginning, order.choices)
            self._count(outcome, order)
            progress.show(self._tried, min(limit, outcome.of))
            if order.trouble:
                self._refuse_trouble_of_one(order)
                return self._found(outcome, order, result)
            if cost == 0 and is_serial(order.choices):
                self._serial.append((order.letters, result))
                if len(self._serial) == 1:
                    outcome.answers, outcome.observed = result.answers, result.observed
                continue
            if not self._serial:  # A polls for what B does: what B does first is known later
                continue
            if self._is_race(order, result):
                self._refuse_what_differs_by_itself()
                shortest = self._shortest(search, cost, order, result)
                return self._found(outcome, *shortest)
        if not self._serial:
            raise RaceRefused(
                "race: no caller ends before another one begins, so there is no serial order to compare with."
            )
        outcome.complete = search.next() is None
        return outcome if only is None else self._only(outcome, only)

    def _only(self, outcome: Outcome, letters: list[int]) -> Outcome:
        order, result = self._try(letters)
        self._refuse_trouble_of_one(order)
        outcome.answers, outcome.observed = result.answers, result.observed
        return self._found(outcome, order, result) if order.trouble or self._is_race(order, result) else outcome

    def _count(self, outcome: Outcome, order: Order) -> None:
        lengths = [order.letters.count(caller.name) for caller in order.callers]
        if not order.trouble and all(step.text == "begins" for step in order.steps):
            raise RaceRefused(
                "race: no caller has stopped anywhere: no statement, no lock of ours, no race.step(…). Has the call "
                "reached the code? Is its database one of Django's or an SQLAlchemy engine's?"
            )
        outcome.tried, outcome.of = self._tried, max(outcome.of, count(lengths))

    def _is_race(self, order: Order, result: Result) -> bool:
        """Whether no serial order leads there. A caller that was not given its lock was told so: it is as if it had not
        called, whatever it answers."""
        if any(result == serial for _, serial in self._serial):
            return False
        refused = frozenset(caller.number for caller in order.callers if caller.refused)
        if not refused:
            return True
        if refused not in self._without:
            others = [number for number in range(len(self._calls)) if number not in refused]
            self._without[refused] = [
                self._try((), rank=(*rank, *refused), without=refused, count=False)[1] for rank in permutations(others)
            ]
        return all(_without(result, refused) != _without(serial, refused) for serial in self._without[refused])

    def _refuse_trouble_of_one(self, order: Order) -> None:
        """What a caller does alone, too, is no race: it is slow, or waits for a program that does not race."""
        if order.trouble and (is_serial(order.choices) or not self._serial):
            raise RaceRefused(f"race: one after the other, {order.trouble.strip()}")

    def _refuse_what_differs_by_itself(self) -> None:
        letters, before = self._serial[0]
        again = self._try([ord(letter) - ord("A") for letter in letters], count=False)[1]
        if again != before:
            raise RaceRefused(
                f"race: one after the other, twice in the same order, gave {self._shown(before, whole=True)} and "
                f"{self._shown(again, whole=True)}. Leave out what differs each time, as ids and times: ignore=…."
            )

    def _shortest(self, search: Search, cost: int, order: Order, result: Result) -> tuple[Order, Result]:
        """Of those with as few preemptions, one with the fewest switches; some are tried."""
        best, until, more = (order, result), time.monotonic() + SHORTER_SECONDS, SHORTER
        while more and time.monotonic() < until:
            following = search.next()
            if following is None or following[0] > cost:
                break
            more -= 1
            tried, led_to = self._try(following[1], count=False)
            search.seen(following[1], tried.choices)
            if self._is_race(tried, led_to) and not tried.trouble and _length(tried) < _length(best[0]):
                best = tried, led_to
        return best

    def _try(
        self,
        beginning: Sequence[int],
        *,
        rank: Sequence[int] | None = None,
        without: Collection[int] = (),
        count: bool = True,
    ) -> tuple[Order, Result]:
        """One order, in a state that is made anew for it, and gone afterwards."""
        self._tried += count
        self._watch.begin()
        try:
            if self._setup is not None:
                self._setup()
            app, calls = _app(), list[Callable[[], object]]()
            for call in self._calls:
                calls.append(partial(self._call, call, self._arguments(call), app))
            for number in without:
                calls[number] = lambda: None
            order = Order(calls, beginning, rank, self._hang).run()
            answers = [_answer(caller) for caller in order.callers]
            observed = self._frozen(self._observe()) if self._observe is not None else None
            return order, Result(tuple(answers), observed)
        finally:
            self._watch.restore()

    def _arguments(self, call: Callable[..., object]) -> tuple[object, ...]:
        try:
            wanted = [each for each in inspect.signature(call).parameters.values() if each.default is each.empty]
        except (TypeError, ValueError):
            return ()
        positional = [each for each in wanted if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
        if len(positional) > 1:
            raise RaceRefused("race: a call takes a client, or nothing: give it the rest with a lambda.")
        return (self._client(),) if positional else ()

    def _call(self, call: Callable[..., object], arguments: tuple[object, ...], app: Any) -> object:
        """In the caller's thread."""
        with ExitStack() as stack:
            if self._django is not None:
                stack.enter_context(self._django.connected())
            if app is not None:
                stack.enter_context(app.app_context())
            answer = call(*arguments)
            if inspect.iscoroutine(answer):
                answer.close()
                caller = running()
                assert caller is not None
                caller.order.refused = RaceRefused(NO_ASYNC)
            return self._frozen.answer(answer)

    def _shown(self, result: Result, *, whole: bool) -> str:
        name = ""
        code = getattr(self._observe, "__code__", None)
        if code is not None and code.co_name == "<lambda>" and code.co_names:
            name = code.co_names[-1]
        return shown(result, name, whole=whole)

    def _found(self, outcome: Outcome, order: Order, result: Result) -> Outcome:
        writes = {step.table for step in order.steps if step.writes}
        fields = {name for step in order.steps for name in step.fields}
        whole = any(self._shown(result, whole=False) == self._shown(serial, whole=False) for _, serial in self._serial)
        serial = list(dict.fromkeys(self._shown(each, whole=whole) for _, each in self._serial)) or ["not known"]
        raised = [f"{each.name}: {type(each.error).__name__}: {each.error}" for each in order.callers if each.error]
        lines = [
            f"Not as one after the other: {self._shown(result, whole=whole)}. One after the other: "
            f"{' or '.join(serial)}.",
            report.columns(order, writes, fields),
            *raised,
            *([order.trouble.strip()] if order.trouble else []),
            f'Order {outcome.tried} of about {outcome.of}. Again: race(…, order="{report.brief(order.letters)}").   '
            f"{report.cure(order, raised)}",
        ]
        outcome.order = report.brief(order.letters)
        outcome.answers, outcome.observed = result.answers, result.observed
        outcome._report = "\n".join(lines)
        return outcome


def _answer(caller: Caller) -> object:
    if caller.cut_short:
        return Raised("did not end")
    return Raised(type(caller.error).__name__) if caller.error else caller.answer


def _without(result: Result, callers: Collection[int]) -> Result:
    answers = tuple(None if place in callers else each for place, each in enumerate(result.answers))
    return Result(answers, result.observed)


def _length(order: Order) -> tuple[int, int, str]:
    """Of the same length, the one that A begins."""
    letters = order.letters
    switches = sum(1 for one, other in pairwise(letters) if one != other)
    return switches, len(letters), letters


def _app() -> Any:
    """Flask's app, where the test is in its context: a plain function of the project's wants it."""
    flask = sys.modules.get("flask")
    return flask.current_app._get_current_object() if flask is not None and flask.has_app_context() else None


class _Progress:
    """A bar on a terminal, for a search that takes longer than two seconds."""

    def __init__(self, uncaptured: Callable[[], AbstractContextManager[Any]]) -> None:
        self._uncaptured = uncaptured
        self._begun = self._shown = time.monotonic()
        self._drawn = False

    def __enter__(self) -> _Progress:
        return self

    def show(self, tried: int, of: int) -> None:
        now = time.monotonic()
        if now - self._begun < 2 or now - self._shown < 0.2:
            return
        self._shown = now
        with self._uncaptured():
            if not sys.stderr.isatty():
                return
            self._drawn = True
            self._draw(tried, of, now - self._begun)

    def _draw(self, tried: int, of: int, seconds: float) -> None:
        filled = 30 * tried // max(tried, of, 1)
        bar = "█" * filled + "·" * (30 - filled)
        sys.stderr.write(f"\rrace  {bar}  {tried} of {of} orders, {seconds:.0f} s")
        sys.stderr.flush()

    def __exit__(self, *exc: object) -> None:
        if self._drawn:
            with self._uncaptured():
                sys.stderr.write("\r\033[K")
                sys.stderr.flush()
