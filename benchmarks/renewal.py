"""A thousand leases that are renewed: what it costs to keep them, and whether they are kept."""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from multiprocessing.connection import Connection

from .contenders import Contender, Distlock, PythonRedisLock
from .plan import Bench, in_turns, installed
from .probe import Probe
from .results import Case, Measure

EXPIRE = 3  #: seconds; a lock that is not renewed in time is gone, and seen to be
TAKEN_WITHIN = 0.5  #: seconds over which the locks are taken

MEASURES = (
    Measure("requests", "/s", 2),
    Measure("CPU", "s in 20 s", 3, compared=True),
    Measure("threads", "", 0),
    Measure("lost", "", 0),
)


class OneScript(Contender):
    """The least there is: one thread sends one script a second for all keys."""

    name = "one script per tick"
    SCRIPT = "for _, key in ipairs(KEYS) do redis.call('PEXPIRE', key, ARGV[1]) end"

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._keys: list[str] = []
        self._sha = self.client.script_load(self.SCRIPT)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._tick)

    def renewed(self, key: str, expire: int) -> AbstractContextManager[object]:
        self.client.set(key, "mine", px=expire * 1000)
        self._keys.append(key)
        if len(self._keys) == 1:
            self._thread.start()
        return ExitStack()

    def _tick(self) -> None:
        while not self._over.wait(EXPIRE / 3):
            self.client.evalsha(self._sha, len(self._keys), *self._keys, EXPIRE * 1000)

    def close(self) -> None:
        self._over.set()
        if self._keys:
            self._thread.join()
        super().close()


KEEPERS: Sequence[type[Contender]] = (OneScript, Distlock, PythonRedisLock)


def run(bench: Bench) -> Iterator[Case]:
    plan = bench.plan
    bench.expect(len(KEEPERS) * plan.renewal_rounds)
    title = f"{plan.leases:,} renewed leases of {EXPIRE} s, in one process, {plan.renewal:g} s"
    case = Case("renewal", title, MEASURES, OneScript.name)
    kinds = []
    for contender in installed(KEEPERS, bench.server.url, case.notes.append):
        contender.close()
        kinds.append(type(contender))
    for kind in in_turns(kinds, plan.renewal_rounds):
        case.add(kind.name, **_measured(bench, kind))
        bench.step(f"{case.name}: {kind.name}")
    yield case


def _measured(bench: Bench, kind: type[Contender]) -> dict[str, float]:
    """Each in a process of its own: its threads and its CPU time are nobody else's."""
    probe = Probe(bench.server.url)
    probe.flush()
    probe.close()
    context = multiprocessing.get_context("forkserver")
    line, far_end = context.Pipe()
    args = (far_end, kind, bench.server.url, bench.plan.leases, bench.plan.renewal)
    holder = context.Process(target=_hold, args=args, daemon=True)
    holder.start()
    far_end.close()
    try:
        measured: dict[str, float] = line.recv()
    finally:
        # Killed: a holder whose renewal threads have died may not end by itself.
        holder.kill()
        holder.join()
    return measured


def _hold(line: Connection, kind: type[Contender], url: str, leases: int, seconds: float) -> None:
    contender, probe = kind(url), Probe(url)
    threading.excepthook = lambda _: None  # of a thousand dying threads each would print; the lost locks are counted
    keys = [f"order:{number:08d}" for number in range(leases)]
    threads = threading.active_count()
    locks = [contender.renewed(key, EXPIRE) for key in keys]  # kept: python-redis-lock stops when its lock is garbage
    since = time.monotonic()
    for number, lock in enumerate(locks):
        lock.__enter__()
        # At once they would all be due in the same moment, which is one request and no merit.
        time.sleep(max(0.0, since + TAKEN_WITHIN * number / leases - time.monotonic()))
    # Scripts, for that is how each of them renews; one for hundreds of leases takes the server several reads.
    asked, used = probe.scripts(), time.process_time()
    time.sleep(seconds)
    used, asked = time.process_time() - used, probe.scripts() - asked
    line.send(
        {
            "requests": asked / seconds,
            "CPU": used / seconds * 20,
            "threads": threading.active_count() - threads,
            "lost": leases - _alive(keys, probe.names()),
        }
    )
    line.recv()  # until killed


def _alive(keys: Sequence[str], names: set[str]) -> int:
    """How many locks the server still has, under whatever prefix."""
    return sum(any(prefix + key in names for prefix in ("", "disLock:", "lock:")) for key in keys)
