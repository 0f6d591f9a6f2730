"""A free lock: take it, give it back, make a new one. What a lock costs that nobody else wants."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count, islice, repeat

from .contenders import FREE, FREE_ASYNC, AsyncContender, AsyncRaw, Contender, Raw
from .inside.floor import AsyncFloor, Floor
from .plan import Bench, in_turns, installed, one_cpu
from .results import Case, Measure

TIME = (Measure("time", "µs", compared=True),)
THREADS, TASKS = 8, 64
WARM_UP = 10  #: rounds before the first that count


#: Beside the locks, what they send: over redis-py, and over our own transport.
ALL: Sequence[type[Contender]] = (*FREE, Floor)
ALL_ASYNC: Sequence[type[AsyncContender]] = (*FREE_ASYNC, AsyncFloor)


def run(bench: Bench) -> Iterator[Case]:
    bench.expect((3 * len(ALL) + 2 * len(ALL_ASYNC)) * bench.plan.rounds)
    one_key, new_keys = repeat("order:00000042"), (f"order:{number:08d}" for number in count())
    with one_cpu(bench.server) as where:
        yield case_of(bench, "1 thread", f"A free lock, 1 thread ({where})", partial(one_thread, one_key))
        yield case_of(bench, "new keys", f"The same, a new key each time ({where})", partial(one_thread, new_keys))
    title = f"Free locks, {THREADS} threads on {THREADS} keys"
    yield case_of(bench, "8 threads", title, _eight_threads, per=THREADS)
    for number in (1, TASKS):
        yield asyncio.run(_tasks(bench, number))


def case_of(
    bench: Bench,
    name: str,
    title: str,
    seconds_for: Callable[[Contender, int], float],
    *,
    per: int = 1,
    url: str = "",
    kinds: Sequence[type[Contender]] = ALL,
) -> Case:
    """The time of one cycle, where ``seconds_for`` a number of rounds does ``per`` cycles in each."""
    case = Case(name, title, TIME, Raw.name)
    contenders = installed(kinds, url or bench.server.url, case.notes.append)
    fill: dict[Contender, int] = {}  # rounds that fill a slice
    for contender in contenders:
        seconds_for(contender, WARM_UP)  # connects, loads scripts
        fill[contender] = max(WARM_UP, int(bench.plan.slice / seconds_for(contender, WARM_UP) * WARM_UP))
    for contender in in_turns(contenders, bench.plan.rounds):
        case.add(contender.name, time=seconds_for(contender, fill[contender]) / fill[contender] / per * 1e6)
        bench.step(f"{name}: {contender.name}")
    for contender in contenders:
        contender.close()
    return case


def one_thread(keys: Iterator[str], contender: Contender, rounds: int) -> float:
    """Seconds for so many cycles, on the next of these keys."""
    some = list(islice(keys, rounds))
    since = time.perf_counter()
    for key in some:
        with contender.lock(key):
            pass
    return time.perf_counter() - since


def _eight_threads(contender: Contender, rounds: int) -> float:
    """Seconds until every thread has taken its lock so many times."""
    start = threading.Barrier(THREADS + 1)

    def work(key: str) -> None:
        start.wait()
        for _ in range(rounds):
            with contender.lock(key):
                pass

    threads = [threading.Thread(target=work, args=(f"order:{number:08d}",)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    start.wait()
    since = time.perf_counter()
    for thread in threads:
        thread.join()
    return time.perf_counter() - since


async def _tasks(bench: Bench, tasks: int) -> Case:
    many = f"{tasks} asyncio tasks on {tasks} keys" if tasks > 1 else "1 asyncio task"
    case = Case(f"{tasks} task{'s' * (tasks > 1)}", f"Free locks, {many}", TIME, AsyncRaw.name)
    contenders = installed(ALL_ASYNC, bench.server.url, case.notes.append)
    fill: dict[AsyncContender, int] = {}
    for contender in contenders:
        await _in_tasks(contender, tasks, WARM_UP)
        fill[contender] = max(WARM_UP, int(bench.plan.slice / await _in_tasks(contender, tasks, WARM_UP) * WARM_UP))
    for contender in in_turns(contenders, bench.plan.rounds):
        seconds = await _in_tasks(contender, tasks, fill[contender])
        case.add(contender.name, time=seconds / fill[contender] / tasks * 1e6)
        bench.step(f"{case.name}: {contender.name}")
    for contender in contenders:
        await contender.close()
    return case


async def _in_tasks(contender: AsyncContender, tasks: int, rounds: int) -> float:
    """Seconds until each task has taken its lock so many times."""

    async def work(key: str) -> None:
        for _ in range(rounds):
            async with contender.lock(key):
                pass

    since = time.perf_counter()
    await asyncio.gather(*(work(f"order:{number:08d}") for number in range(tasks)))
    return time.perf_counter() - since
