"""What a free lock costs the server: commands, its command time, its CPU, and what is left of names that are free."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import count, repeat

from .contenders import FREE, Contender, RedisPy
from .plan import Bench, in_turns, installed, one_cpu
from .probe import Probe
from .results import Case, Measure
from .uncontended import WARM_UP, one_thread

MEASURES = (
    Measure("commands", "", 1),
    Measure("command time", "µs", compared=True),
    Measure("CPU", "µs", compared=True),
)
LEFT = (Measure("keys", "", 0), Measure("keys for over a minute", "", 0), Measure("bytes per name", "", 0))
MINUTE = 60  #: seconds


def run(bench: Bench) -> Iterator[Case]:
    bench.expect(2 * len(FREE) * bench.plan.rounds + len(FREE))
    new_names, one_name = (f"order:{number:08d}" for number in count()), repeat("order:00000042")
    with one_cpu(bench.server) as where:
        yield _spent(bench, "server, new names", f"The server's part in a free lock, new names ({where})", new_names)
        yield _spent(bench, "server, known name", f"The same, one name again and again ({where})", one_name)
    yield _left(bench)


def _spent(bench: Bench, name: str, title: str, keys: Iterator[str]) -> Case:
    """Of one cycle: take the lock, and give it back."""
    case = Case(name, title, MEASURES, RedisPy.name)
    contenders = installed(FREE, bench.server.url, case.notes.append)
    fill: dict[Contender, int] = {}  # cycles that fill a slice
    sent: dict[Contender, set[str]] = {}
    with Probe(bench.server.url) as probe:
        for contender in contenders:
            one_thread(keys, contender, WARM_UP)  # connects, loads scripts
            fill[contender] = max(WARM_UP, int(bench.plan.slice / one_thread(keys, contender, WARM_UP) * WARM_UP))
            sent[contender] = probe.sent_during(partial(one_thread, keys, contender, WARM_UP))
        for contender in in_turns(contenders, bench.plan.rounds):
            cycles = fill[contender]
            # The CPU's counter is read next to the work: the other question costs the server CPU.
            before, cpu_before = probe.stats(), probe.cpu()
            one_thread(keys, contender, cycles)
            cpu, after = probe.cpu() - cpu_before, probe.stats()
            calls, microseconds = after.calls - before.calls, after.microseconds - before.microseconds
            busy = sum(microseconds[command] for command in sent[contender])
            row = {"commands": calls.total() / cycles, "command time": busy / cycles, "CPU": cpu / cycles * 1e6}
            case.add(contender.name, **row)
            bench.step(f"{name}: {contender.name}")
        probe.flush()
    for contender in contenders:
        contender.close()
    return case


def _left(bench: Bench) -> Case:
    """Of names that were locked once, and are free: at once, not after a minute of waiting, for a key has its TTL."""
    names = bench.plan.names
    case = Case("names left", f"What {names} names leave on the server when they are free again", LEFT, "")
    contenders = installed(FREE, bench.server.url, case.notes.append)
    with Probe(bench.server.url) as probe:
        for contender in in_turns(contenders, 1):
            probe.flush()
            one_thread((f"warm:{number}" for number in count()), contender, WARM_UP)
            # What is there once, however many names come, is not left of any of them.
            known, memory = probe.names(), probe.memory()
            one_thread((f"order:{number:08d}" for number in count()), contender, names)
            memory = probe.memory() - memory
            keys = probe.names() - known
            kept = sum(left > MINUTE for left in probe.seconds_left(keys))
            row = {"keys": len(keys), "keys for over a minute": kept, "bytes per name": memory / names}
            case.add(contender.name, **row)
            bench.step(f"{case.name}: {contender.name}")
        probe.flush()
    for contender in contenders:
        contender.close()
    return case
