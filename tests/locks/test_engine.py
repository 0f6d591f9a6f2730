"""What the engine does with any store: on one in memory, in a world whose time takes none, and on Redis.

What a store does is in the contract (``distlock_web.testing.contract``), which every store passes.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from distlock_web.testing.harness import HARNESSES, Harness
from tests.support.simulation import loop, system
from tests.support.simulation.program import Program
from tests.support.simulation.world import Machine, World

PARTS = tuple(f"tests.support.engine.{part}" for part in ("leases", "loss", "reentry", "taking", "transfer"))
pytest.register_assert_rewrite(*PARTS)

from tests.support.engine.leases import LeaseCases  # noqa: E402
from tests.support.engine.loss import LossCases  # noqa: E402
from tests.support.engine.reentry import ReentryCases  # noqa: E402
from tests.support.engine.taking import TakingCases  # noqa: E402
from tests.support.engine.transfer import TransferCases  # noqa: E402

CASES = (LeaseCases, LossCases, ReentryCases, TakingCases, TransferCases)

#: Seconds of a world's time that a case may take: longer than it would wait for anything.
LONGEST = 1000.0


class TestOnRedis(*CASES):  # type: ignore[misc]
    @pytest.fixture
    def settings(self, redis_url: str) -> dict[str, Any]:
        patient = {"socket_timeout": 10, "socket_connect_timeout": 10}  # none of the cases is about time-outs
        return {"BACKEND": "redis", "LOCATION": redis_url, "OPTIONS": patient}


program = Program()
if TYPE_CHECKING:

    class InWorld(LeaseCases): ...
else:
    _copies = [vars(module) for module in program.load(*PARTS)]
    InWorld = type("InWorld", tuple(copy[cases.__name__] for copy, cases in zip(_copies, CASES, strict=True)), {})


class TestInMemory(InWorld):
    @pytest.fixture(params=sorted(HARNESSES))
    def harness(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Harness]:
        yield from self._in_world(request.param, monkeypatch)

    @pytest.fixture
    def tasks(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[Harness]:
        yield from self._in_world("asyncio", monkeypatch)

    def _in_world(self, mode: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Harness]:
        world = World(0)
        process = world.process(Machine(world, "machine"), "process")

        def run(call: Callable[[], object]) -> None:
            thread = process.spawn(call)
            world.run(world.time + LONGEST, lambda: not thread.is_alive())
            if thread.error is not None:
                raise thread.error
            assert not thread.is_alive(), "it does not come to its end"

        def run_case(case: Coroutine[Any, Any, None]) -> None:
            run(lambda: loop.run(case) if mode == "asyncio" else program["core.runtime"].drive(case))

        system.enter(world)
        try:
            run(lambda: program.begin({"default": {"BACKEND": "memory"}}))
            harness = program["testing.harness"].HARNESSES[mode](program["core.registry"].registry().store("default"))
            monkeypatch.setattr(harness, "run", run_case)
            yield harness
            assert world.crashes == []
        finally:
            world.end()
            program.end()
            system.enter(None)
