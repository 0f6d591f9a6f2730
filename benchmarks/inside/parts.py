"""Where the work of one lock in asyncio is: instructions of Python's bytecode and calls of Python functions, by part.

Counts, and no times: whoever looks at each instruction makes each a hundred times slower.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import distlock_web

from ..contenders import AsyncDistlock
from ..plan import Bench
from ..results import Case, Measure

TASKS, ROUNDS = 64, 5
MEASURES = (Measure("instructions", "", 0), Measure("calls", "", 0))

PACKAGE = str(Path(distlock_web.__file__).parent)
#: The first that a file's path begins with, below the package.
PARTS: Sequence[tuple[str, Sequence[str]]] = (
    ("the connection: futures, answers", ("backends/redis/transport/",)),
    ("the verbs of Redis, the scripts' calls; outages", ("backends/redis/", "kit/")),
    ("who asks: the chain of blocks, the request, the token, the store", ("locks/reentry/", "core/")),
    (
        "`lock()`, its options, the lease",
        ("locks/lock.py", "locks/options.py", "locks/lease.py", "locks/call_options.py"),
    ),
    ("engine, scope and hold, how a lock ends", ("locks/",)),
)
LOOP, REST = "asyncio's event loop", "the rest"


def run(bench: Bench) -> Iterator[Case]:
    bench.expect(1)
    case = Case(
        "parts", f"One lock in asyncio, by part, with {TASKS} tasks, whose requests leave in one write", MEASURES, ""
    )
    instructions, calls = asyncio.run(_counted(bench.server.url))
    for part, _ in instructions.most_common():
        case.add(part, instructions=instructions[part], calls=calls[part])
    bench.step("parts")
    yield case


async def _counted(url: str) -> tuple[Counter[str], Counter[str]]:
    """Of one lock, taken and released."""
    contender = AsyncDistlock(url)

    async def work(key: str, rounds: int) -> None:
        for _ in range(rounds):
            async with contender.lock(key):
                pass

    async def all_of_them(rounds: int) -> None:
        await asyncio.gather(*(work(f"order:{number:08d}", rounds) for number in range(TASKS)))

    instructions, calls = Counter[str](), Counter[str]()

    def note(frame: FrameType, event: str, argument: Any) -> Any:
        part = part_of(frame.f_code.co_filename)
        if part is None:
            return None
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        if event == "opcode":
            instructions[part] += 1
        elif event == "call":  # also where a coroutine goes on
            calls[part] += 1
        return note

    await all_of_them(ROUNDS)  # connects, loads scripts
    loop = asyncio.get_running_loop()
    sys.settrace(note)
    try:
        await loop.create_task(all_of_them(ROUNDS))
    finally:
        sys.settrace(None)
    await contender.close()
    locks = TASKS * ROUNDS
    return (
        Counter({part: round(count / locks) for part, count in instructions.items()}),
        Counter({part: round(count / locks) for part, count in calls.items()}),
    )


def part_of(file: str) -> str | None:
    if file == __file__:
        return None
    if file.startswith(PACKAGE):
        path = file[len(PACKAGE) + 1 :]
        return next((part for part, begins in PARTS if path.startswith(tuple(begins))), REST)
    return LOOP if "asyncio" in file else REST
