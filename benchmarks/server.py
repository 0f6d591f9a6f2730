"""What a free lock costs the server: commands, its command time, its CPU."""

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


def run(bench: Bench) -> Iterator[Case]:
    bench.expect(2 * len(FREE) * bench.plan.rounds)
    new_names, one_name = (f"order:{number:08d}" for number in count()), repeat("order:00000042")
    with one_cpu(bench.server) as where:
        yield _spent(bench, "server, new names", f"The server's part in a free lock, new names ({where})", new_names)
        yield _spent(bench, "server, known name", f"The same, one name again and again ({where})", one_name)


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
