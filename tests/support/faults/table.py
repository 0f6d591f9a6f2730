"""All combinations of some stores, side by side in director processes; and the table of what was tried."""

from __future__ import annotations

import json
import os
import queue
import random
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self

from distlock_web.core.registry import Store
from distlock_web.core.runtime import now

from .package import VARIABLE
from .scenarios import SCENARIOS
from .steps import OF_PUSHED, Combination, Fault, Step
from .way import Way
from .ways import WAYS, way_of

#: Directors side by side: they mostly sleep.
JOBS = 16


@dataclass
class Found:
    """What came of one combination."""

    combination: Combination
    #: What must not have been, in whatever time; and what took too long, or was left for too long.
    wrong: Sequence[str]
    slow: Sequence[str]
    seen: Sequence[str]
    struck: bool
    again: Sequence[str]
    has: Mapping[str, Mapping[str, int]]
    took: float

    @property
    def complaints(self) -> list[str]:
        return [*self.wrong, *self.slow]


class Part(NamedTuple):
    """One of several that together are all: what a night has time for."""

    number: int  #: from 1 on
    of: int

    @classmethod
    def read(cls, text: str) -> Self:
        number, _, of = text.partition("/")
        found = cls(int(number), int(of))
        if not 1 <= found.number <= found.of:
            raise ValueError(text)
        return found


@dataclass
class Tried:
    """All that was tried."""

    found: list[Found] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def wrong(self) -> list[Found]:
        return [each for each in self.found if each.complaints]

    def table(self) -> str:
        """Store × scenario: how many faults were tried, with threads and with asyncio."""
        counts: dict[tuple[str, str], int] = defaultdict(int)
        for each in self.found:
            counts[each.combination.way, each.combination.scenario] += each.struck
        ways = [way for way in WAYS if any(way == known for known, _ in counts)]
        lines = ["| scenario | " + " | ".join(ways) + " |", "|---|" + "---:|" * len(ways)]
        for scenario in SCENARIOS:
            row = [str(counts.get((way, scenario), "")) for way in ways]
            lines.append(f"| `{scenario}` | " + " | ".join(row) + " |")
        totals = [str(sum(count for (way, _), count in counts.items() if way == of)) for of in ways]
        return "\n".join([*lines, "| all | " + " | ".join(totals) + " |"])


class _Died(Exception):
    pass


class _Director:
    """A process that runs one combination after the other."""

    def __init__(self, way: str, shared: Mapping[str, Any], package: str | None) -> None:
        env = {**os.environ, "PYTHONUNBUFFERED": "1", **({VARIABLE: package} if package else {})}
        # Each draws its ports from a part of its own, as pytest-xdist's workers do.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.faults.director", way, json.dumps(dict(shared))],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env,
        )  # fmt: skip
        self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise _Died("its director has died")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def run(self, combination: Combination, clean: Mapping[str, Any] | None) -> Found:
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.write(json.dumps({"combination": str(combination), "clean": clean}) + "\n")
            self._process.stdin.flush()
        answer = self._read()
        return Found(
            combination, *(answer[name] for name in ("wrong", "slow", "seen", "struck", "again", "has", "took"))
        )

    def close(self) -> None:
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


def scenarios_of(way: type[Way], modes: Iterable[str] = ("threads", "asyncio")) -> list[tuple[str, str]]:
    """The modes and scenarios that this store can be tried with."""
    capabilities = _capabilities(way)
    return [
        (mode, name)
        for mode in modes
        for name, scenario in SCENARIOS.items()
        if mode in scenario.modes
        and name not in way.without
        and all(getattr(capabilities, need) for need in scenario.needs)
        and not (scenario.processes and way.in_threads)
    ]


def _capabilities(way: type[Way]) -> Any:
    from distlock_web.core.config import parse

    (config,) = parse({"default": {"BACKEND": way.backend, **way.example}}).values()
    return Store(config).backend.capabilities


def combinations(way: type[Way], mode: str, scenario: str, seen: Iterable[str]) -> list[Combination]:
    """Every fault at each message of a clean run."""
    found = []
    for step in map(Step.read, seen):
        if step.number > way.of_a_kind(step.kind):
            continue
        for fault in OF_PUSHED if step.pushed else Fault:
            if fault not in way.not_tried_faults:
                found.append(Combination(way.name, mode, scenario, step, fault))
    return found


def try_way(
    name: str,
    *,
    jobs: int = JOBS,
    choice: int | None = None,
    seed: int = 0,
    part: Part = Part(1, 1),  # noqa: B008 - it is a tuple
    only: Callable[[Combination], bool] = lambda _: True,
    tell: Callable[[int, int, Found], None] = lambda *_: None,
    package: str | None = None,
) -> Tried:
    """All that ``only`` lets of one store, a part or a choice of it; ``package``: where another copy of ours is."""
    way, tried, begun = way_of(name), Tried(), now()
    with way.serve() as shared:
        free: queue.SimpleQueue[_Director] = queue.SimpleQueue()
        directors: list[_Director] = []
        broken: list[BaseException] = []
        has: dict[tuple[str, str], Mapping[str, Any]] = {}  # after the clean runs

        def begun_director() -> _Director:
            for _ in range(3):  # a port that it has drawn may be taken by another one
                with suppress(_Died):
                    directors.append(_Director(name, shared, package))
                    return directors[-1]
            raise RuntimeError("no director can begin: see above")

        def run_all(work: Sequence[Combination], after: Callable[[Found], None]) -> None:
            left, done, turn = list(reversed(work)), 0, threading.Lock()

            def one() -> None:
                nonlocal done
                try:
                    director = free.get_nowait()
                except queue.Empty:
                    director = begun_director()
                while True:
                    with turn:
                        if not left or broken:
                            break
                        combination = left.pop()
                    clean = has.get((combination.mode, combination.scenario))
                    try:
                        found = director.run(combination, clean)
                    except _Died:  # what it has said is in the log
                        director = begun_director()
                        try:
                            found = director.run(combination, clean)
                        except _Died as died:
                            found = Found(combination, [str(died)], [], [], False, [], {}, 0.0)
                            director = begun_director()
                    with turn:
                        done += 1
                        tried.found.append(found)
                        after(found)
                        tell(done, len(work), found)
                free.put(director)

            def guarded() -> None:
                try:
                    one()
                except BaseException as error:
                    broken.append(error)

            threads = [threading.Thread(target=guarded) for _ in range(min(jobs, len(work)))]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            if broken:
                raise broken[0]

        try:
            work: list[Combination] = []

            def enumerate_steps(found: Found) -> None:
                if not found.complaints:
                    mode, scenario = found.combination.mode, found.combination.scenario
                    has[mode, scenario] = found.has
                    work.extend(filter(only, combinations(way, mode, scenario, found.seen)))

            clean = [Combination(name, mode, scenario) for mode, scenario in scenarios_of(way)]
            run_all([each for each in clean if only(each)], enumerate_steps)
            _look_again(tried, lambda again: run_all([again], enumerate_steps))
            work.sort(key=str)
            dice = random.Random(f"{seed}{name}")
            dice.shuffle(work)
            run_all(work[part.number - 1 :: part.of][:choice], lambda _: None)
            _look_again(tried, lambda again: run_all([again], lambda _: None))
        finally:
            for director in directors:
                director.close()
    tried.seconds = now() - begun
    return tried


def _look_again(tried: Tried, run: Callable[[Combination], None]) -> None:
    """What has only taken too long beside others has to do so alone, too: the machine may have been busy."""
    for slow in [each for each in tried.wrong if not each.wrong]:
        tried.found.remove(slow)
        run(slow.combination)
        last = tried.found[-1]
        tried.found[-1] = replace(last, again=[*slow.again, "it was slow beside others", *last.again])


def try_one(combination: Combination, package: str | None = None) -> Found:
    """One again, by its name; its clean run, where that is wrong."""
    return try_these(combination.way, [combination], package).found[-1]


def try_these(
    name: str,
    those: Sequence[Combination],
    package: str | None = None,
    *,
    within: float = float("inf"),
    shared: Mapping[str, Any] | None = None,
) -> Tried:
    """Some of one store, one after the other, behind clean runs; none is begun after ``within`` seconds.

    ``shared``: what the way's ``serve`` gives, of a server that runs already.
    """
    way, tried, begun = way_of(name), Tried(), now()
    clean: dict[tuple[str, str], Found] = {}
    with way.serve() if shared is None else nullcontext(shared) as server:
        director = _Director(name, server, package)

        def run(combination: Combination, has: Mapping[str, Any] | None) -> Found:
            tried.found.append(director.run(combination, has))
            return tried.found[-1]

        try:
            for one in those:
                of = one.mode, one.scenario
                if now() > begun + within:
                    break
                if of not in clean:
                    clean[of] = run(Combination(name, *of), None)
                if one.step and not clean[of].complaints:
                    run(one, clean[of].has)
        finally:
            director.close()
    tried.seconds = now() - begun
    return tried
