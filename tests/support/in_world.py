"""Cases over a harness, on a store in memory and in a world of the simulation: what they sleep takes no time.

The world has a copy of the package, so the cases are copied, too.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from distlock_web.testing.harness import HARNESSES, Harness

from .simulation import loop, system
from .simulation.program import Program
from .simulation.world import Machine, World

#: Seconds of the world's time that a case may take: longer than it would wait for anything.
LONGEST = 1000.0

_program = Program()


def copies(*classes: type) -> Any:
    """One class of all these cases, over the world's copy of the package."""
    modules = _program.load(*dict.fromkeys(each.__module__ for each in classes))
    found = {name: value for module in modules for name, value in vars(module).items()}
    return type("Copies", (InWorld, *(found[each.__name__] for each in classes)), {})


class InWorld:
    @pytest.fixture(params=sorted(HARNESSES))
    def harness(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Harness]:
        yield from _in_world(request.param, monkeypatch)

    @pytest.fixture
    def tasks(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[Harness]:
        yield from _in_world("asyncio", monkeypatch)


def _in_world(mode: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Harness]:
    world = World(0)
    process = world.process(Machine(world, "machine"), "process")

    def run(call: Callable[[], object]) -> None:
        thread = process.spawn(call)
        world.run(world.time + LONGEST, lambda: not thread.is_alive())
        if thread.error is not None:
            raise thread.error
        assert not thread.is_alive(), "it does not come to its end"

    def run_case(case: Coroutine[Any, Any, None]) -> None:
        run(lambda: loop.run(case) if mode == "asyncio" else _program["core.runtime"].drive(case))

    system.enter(world)
    gc.disable()  # what other tests have left would be given back by the world's threads
    try:
        run(lambda: _program.begin({"default": {"BACKEND": "memory"}}))
        harness = _program["testing.harness"].HARNESSES[mode](_program["core.registry"].registry().store("default"))
        monkeypatch.setattr(harness, "run", run_case)
        yield harness
        assert world.crashes == [], world.crashes
    finally:
        gc.enable()
        world.end()
        _program.end()
        system.enter(None)
