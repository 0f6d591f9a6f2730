"""One combination after the other: ``python -m tests.support.faults.director WAY SHARED``, by JSON lines."""

from __future__ import annotations

import contextvars
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

from .package import use_package

use_package()

from distlock_web import BackendUnavailable, LeaseLost, LockBusy, configure, lock  # noqa: E402
from distlock_web.core.backend import LockInfo  # noqa: E402
from distlock_web.core.errors import DistLockError  # noqa: E402
from distlock_web.core.registry import registry  # noqa: E402
from distlock_web.core.runtime import drive, now  # noqa: E402
from distlock_web.testing.harness import SyncHarness  # noqa: E402
from tests.support.history import Event  # noqa: E402

from .judges import Look, violations  # noqa: E402
from .party import Complaints, Party, Stillness, has, routes  # noqa: E402
from .scenarios import SCENARIOS, Scenario  # noqa: E402
from .steps import Combination, Strike  # noqa: E402
from .way import Way  # noqa: E402
from .ways import way_of  # noqa: E402
from .wire import Network  # noqa: E402

#: Seconds that all is given beside a lease: what the issue of all this promises, and what a machine needs to do it.
BESIDE = 0.1
#: Seconds after which a scenario has hung.
HUNG = 90.0
#: Seconds between two looks at the store.
LOOK = 0.06
#: How often a combination is run, where the machine stood still; and where its step, by chance, did not come.
TRIES, COMES = 4, 2
MISSED = "the step did not come"
#: Seconds that the machine may stand still before a judgement about time is taken back, and the combination run again.
STILL = 0.05


class Process:
    """A party that is a process. It plays one part after the other."""

    def __init__(self, name: str, inbox: queue.SimpleQueue[tuple[str, dict[str, Any]]]) -> None:
        self.name = name
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.faults.party"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._turn = threading.Lock()

        def read() -> None:
            assert self._process.stdout is not None
            for line in self._process.stdout:
                inbox.put((self.name, json.loads(line)))
            inbox.put((self.name, {"died": True}))

        threading.Thread(target=read, name="faults-reader", daemon=True).start()

    def send(self, message: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        with suppress(OSError), self._turn:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()

    def stop(self) -> None:
        os.kill(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self._process.pid, signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


class Run:
    """Of one combination: what was said, and what came of it."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.told: list[tuple[str, Event]] = []
        self.outcomes: dict[str, list[str]] = {name: [] for name in scenario.parts}
        self.wrong: list[str] = []
        self.slow: list[str] = []  #: what took longer than it may: wrong, unless the machine stood still
        self.ready: set[str] = set()
        self.ended: set[str] = set()
        self.closed: set[str] = set()
        self.still: dict[str, float] = {}
        self.has: dict[str, dict[str, int]] = {}
        self.has_after: dict[str, dict[str, int]] = {}  #: while the stores are open still
        self.looks: list[Look] = []


class Director:
    def __init__(self, way: Way) -> None:
        self.way = way
        self._inbox: queue.SimpleQueue[tuple[str, dict[str, Any]]] = queue.SimpleQueue()
        self._processes: dict[str, Process] = {}
        self._number = 0
        self._ended_at = now()
        self._heart = Stillness()
        self._heart.start()
        Complaints(lambda text: self._inbox.put(("director", {"wrong": text}))).install()

    def close(self) -> None:
        for process in self._processes.values():
            process.kill()

    # One combination ------------------------------------------------------------------------------------------------

    def run(self, combination: Combination, clean: Mapping[str, Mapping[str, int]] | None = None) -> dict[str, Any]:
        """It, and again where the machine stood still; by JSON. ``clean``: what each process has after the same without
        a fault."""
        begun, again = now(), list[str]()
        for _ in range(TRIES):
            run, strike, still = self._once(combination, clean)
            unclean = [
                f"{name} did not do its part without a fault: {run.outcomes[name]}"
                for name, words in run.scenario.clean.items()
                if combination.step is None and run.outcomes[name] != words
            ]
            if run.wrong:
                break
            if unclean and len(again) < TRIES - 1:  # it takes a machine that has time, and no more
                again.append(unclean[0])
                continue
            run.slow += unclean
            if run.slow and still > STILL:
                again.append(f"the machine stood still for {still:.2f} s")
                run.slow.clear()
            elif combination.step is not None and not strike.struck and again.count(MISSED) < COMES - 1:
                again.append(MISSED)
            else:
                break
        return {
            "combination": str(combination),
            "wrong": run.wrong,
            "slow": run.slow,
            "struck": strike.struck,
            "seen": [str(step) for step in strike.seen],
            "again": again,
            "has": run.has_after,
            "took": now() - begun,
        }

    def _once(self, combination: Combination, clean: Any) -> tuple[Run, Strike, float]:
        scenario, way = SCENARIOS[combination.scenario], self.way
        run, strike = Run(scenario), Strike(combination.step, combination.fault, self._stop)
        self._strike = strike
        self._heart.longest = 0.0
        self._number += 1
        key = way.key(f"{combination.scenario}:{self._number}")
        way.clear()
        while not self._inbox.empty():
            self._inbox.get()
        players = self._players(scenario)
        try:
            self._begin(combination, run, players, key)
            with self._looking(run, key):
                self._tell(players, "go", None)
                self._listen(run, players, lambda: run.ended == set(players), HUNG, "its parts did not end")
                self._until(lambda: strike.over, HUNG, run, "the fault did not end")
                self._free(run, max(strike.until, self._ended_at), key)
            self._look_at_processes(run, clean, players)
            self._tell(players, "over", None)
            self._finish(run, players)
            run.wrong += violations(run.told, run.looks)
            run.wrong += [f"left in the store: {each}" for each in way.left()]
        finally:
            way.disconnect()
            registry().close()
        for name in players if run.wrong or run.slow else ():  # nobody else has what it has left
            if process := self._processes.pop(name, None):
                process.kill()
        return run, strike, max([self._heart.longest, *([] if strike.fault == "stopped" else run.still.values())])

    # The parties ----------------------------------------------------------------------------------------------------

    def _players(self, scenario: Scenario) -> dict[str, Any]:
        if self.way.in_threads:
            return dict.fromkeys(scenario.parts)
        for name in scenario.parts:
            if name not in self._processes:
                self._processes[name] = Process(name, self._inbox)
        return {name: self._processes[name] for name in scenario.parts}

    def _begin(self, combination: Combination, run: Run, players: dict[str, Any], key: str) -> None:
        way, strike = self.way, self._strike
        entries = {name: way.connect(name, strike) for name in players}
        near = way.near()
        routes.update(way.routes.get("director", {}))
        configure({"default": near, **({**entries, "near": near} if way.in_threads else {})})
        if way.in_threads:
            for name in players:
                way.install(name, registry().store(name), strike)
                players[name] = self._thread(combination, run, name, key)
            return
        for name, process in players.items():
            process.send({
                "name": name, "mode": combination.mode, "scenario": combination.scenario, "key": key,
                "lease": way.lease, "store": entries[name], "near": way.seen_by_parties(), "database": way.database(),
                "routes": way.routes.get(name, {}),
            })  # fmt: skip
        self._listen(run, players, lambda: run.ready == set(players), HUNG, "a party did not begin")

    def _thread(self, combination: Combination, run: Run, name: str, key: str) -> Any:
        def say(message: dict[str, Any]) -> None:
            self._inbox.put((name, message))

        party = Party(name, combination.mode, name, key, self.way.lease, say, self.way.database())
        part = run.scenario.parts[name]

        def play() -> None:
            contextvars.Context().run(party.harness.run, party.play(part))
            say({"still": 0.0})

        threading.Thread(target=play, name=f"faults-{name}", daemon=True).start()
        return party

    def _tell(self, players: Mapping[str, Any], word: str, value: Any, but: str = "") -> None:
        for name, player in players.items():
            if name == but:
                continue
            if isinstance(player, Party):
                player.hear(word, value)
            else:
                player.send({"hear": word, "value": value})

    def _stop(self, party: str) -> None:
        """Called by the wire. Threads are stopped by what is between them and their driver."""
        process, strike = self._processes.get(party), self._strike
        if process is None or self.way.in_threads:
            return

        def go_on() -> None:
            process.resume()
            strike.end()

        process.stop()
        timer = threading.Timer(1.5 * self.way.lease, go_on)
        timer.daemon = True
        timer.start()

    # What they say --------------------------------------------------------------------------------------------------

    def _listen(
        self, run: Run, players: Mapping[str, Any], until: Callable[[], bool], patience: float, otherwise: str
    ) -> None:
        give_up = now() + patience
        while not until():
            try:
                name, message = self._inbox.get(timeout=0.1)
            except queue.Empty:
                if now() > give_up:
                    run.wrong.append(f"{otherwise}: {sorted(set(players) - run.ended)}")
                    return
                continue
            self._heard(run, players, name, message)

    def _heard(self, run: Run, players: Mapping[str, Any], name: str, message: dict[str, Any]) -> None:
        if "event" in message:
            run.told.append((message["name"], Event(**message["event"])))
        elif "outcome" in message:
            run.outcomes[name].append(message["outcome"])
        elif "wrong" in message:
            run.wrong.append(f"{name}: {message['wrong']}")
        elif "tell" in message:
            if message["tell"].startswith("ended:"):
                run.ended.add(name)
                self._ended_at = now()
            self._tell(players, message["tell"], message["value"], but=name)
        elif "ready" in message:
            run.ready.add(name)
        elif "still" in message:
            run.still[name] = message["still"]
        elif "has" in message:
            run.has[name] = message["has"]
        elif "closed" in message:
            run.closed.add(name)
        elif "died" in message:
            run.wrong.append(f"the process of {name} has died")
            run.ended.add(name)

    @staticmethod
    def _until(condition: Callable[[], bool], patience: float, run: Run, otherwise: str) -> None:
        give_up = now() + patience
        while not condition():
            if now() > give_up:
                run.wrong.append(otherwise)
                return
            time.sleep(0.005)

    # Independent callers --------------------------------------------------------------------------------------------

    @contextmanager
    def _looking(self, run: Run, key: str) -> Iterator[None]:
        """Ask the store all the time, past all faults, who has the locks."""
        over = threading.Event()
        store = registry().store("default")
        harness, prefix = SyncHarness(store), store.config.prefix
        names = [f"{prefix}{part}" for part in (key, f"{key}1", f"{key}2", f"once:{key}")]

        def look() -> None:
            while not over.wait(LOOK):
                begun = now()
                with suppress(BackendUnavailable):
                    lines = drive(harness.port.inspect(names))
                    shown = [line for line in lines if line.name in names]
                    run.looks.append(Look(begun, now(), [_named(line, prefix) for line in shown]))

        thread = threading.Thread(target=look, name="faults-look", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _free(self, run: Run, end: float, key: str) -> None:
        """One ``expire`` and 100 ms after the end the next caller has each lock."""
        until = end + run.scenario.longest * self.way.lease + BESIDE
        give_up = until + 30 * self.way.lease
        for name in sorted({key, *(name for name, _ in run.told if not name.startswith("once:"))}):
            while True:
                asked = now()
                try:
                    lease = contextvars.Context().run(lock(name, expire=self.way.lease).acquire)
                except (LockBusy, BackendUnavailable, LeaseLost):
                    if now() > give_up:
                        run.wrong.append(f"{name} is not free {now() - end:.2f} s after the end")
                        break
                    time.sleep(0.02)
                    continue
                run.told.append((name, Event("next", "acquired", now(), lease.fence)))
                run.told.append((name, Event("next", "released", now())))
                with suppress(DistLockError):
                    lease.release()
                if asked > until + 0.02:
                    run.slow.append(f"{name} was free only {asked - end:.2f} s after the end")
                break

    def _look_at_processes(self, run: Run, clean: Any, players: Mapping[str, Any]) -> None:
        """Each has nothing postponed any more, and no more connections than after the same without a fault.

        Threads are counted when the stores are closed: who had to wait because of the fault listens for a while.
        """
        give_up = now() + 12.0
        while True:
            self._ask(run, players)
            waiting = {name: what["postponed"] for name, what in run.has.items() if what["postponed"]}
            # Who had to wait may have asked on one connection more.
            sockets = [] if clean is None else list(_more(run.has, clean, self.way.spare, "sockets"))
            if not (waiting or sockets) or now() > give_up:
                break
            time.sleep(0.1)
        run.wrong += [f"{name} has postponed {what}" for name, what in waiting.items()]
        run.slow += sockets
        run.has_after = dict(run.has)

    def _ask(self, run: Run, players: Mapping[str, Any]) -> None:
        run.has.clear()
        if self.way.in_threads:
            run.has["director"] = has(pools_of_sockets=False)
            return
        for process in players.values():
            process.send({"has": True})
        self._listen(run, players, lambda: set(run.has) == set(players), HUNG, "a party did not say what it has")

    def _finish(self, run: Run, players: Mapping[str, Any]) -> None:
        """When the stores are closed nothing is left of them."""
        self._listen(run, players, lambda: set(run.still) == set(players), HUNG, "a party did not stop")
        if self.way.in_threads:
            return
        for process in players.values():
            process.send({"close": True})
        self._listen(run, players, lambda: run.closed == set(players), HUNG, "a store was not closed")
        nothing = {name: {"threads": 0, "sockets": 0, "postponed": 0} for name in players}
        give_up = now() + 20.0
        while True:
            self._ask(run, players)
            rest = list(_more(run.has, nothing, 0, "threads", "sockets", "postponed"))
            if not rest or now() > give_up:
                break
            time.sleep(0.1)
        run.wrong += [f"after close(): {each}" for each in rest]


def _named(line: LockInfo, prefix: str) -> LockInfo:
    return replace(line, name=line.name.removeprefix(prefix))


def _more(
    has: Mapping[str, Mapping[str, int]], clean: Mapping[str, Mapping[str, int]], spare: int, *kinds: str
) -> Iterator[str]:
    for name, what in has.items():
        for kind in kinds:
            if what[kind] > clean[name][kind] + spare:
                yield f"{name} has {what[kind]} {kind}, and {clean[name][kind]} without the fault"


def main() -> None:
    name, shared = sys.argv[1], json.loads(sys.argv[2])
    out = sys.stdout
    network = Network()
    with way_of(name)(network, shared) as way:
        director = Director(way)
        try:
            print(json.dumps({"ready": True}), file=out, flush=True)
            for line in sys.stdin:
                order = json.loads(line)
                found = director.run(Combination.read(order["combination"]), order["clean"])
                print(json.dumps(found), file=out, flush=True)
        finally:
            director.close()
    os._exit(0)


if __name__ == "__main__":
    main()
