"""Processes that do the work of a scenario, each with a line to it."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Self

PATIENCE = 300.0  #: seconds for an answer: more than anything takes that works
GRACE = 5.0  #: seconds to end in


class Processes:
    """So many processes that run ``target(line, number, *args)`` in the block; they end when their line is closed, and
    are killed if they do not."""

    def __init__(self, count: int, target: Callable[..., None], *args: object) -> None:
        # From a server process without threads: what one holds here would stay held in a child that is forked.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["benchmarks.contenders"])
        self._lines: list[Connection] = []
        self._processes = []
        for number in range(count):
            line, far_end = context.Pipe()
            process = context.Process(target=target, args=(far_end, number, *args), daemon=True)
            process.start()
            far_end.close()
            self._lines.append(line)
            self._processes.append(process)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for line in self._lines:
            line.close()
        for process in self._processes:
            process.join(GRACE)
        self.kill()
        for process in self._processes:
            process.join()

    def tell(self, *message: object) -> None:
        """The same message to each."""
        for line in self._lines:
            line.send(message)

    def hear(self) -> Iterator[Any]:
        """The next message of each, in their order. Raises ``EOFError`` if one has died, ``TimeoutError``."""
        for number, line in enumerate(self._lines):
            if not line.poll(PATIENCE):
                raise TimeoutError(f"Process {number} has said nothing for {PATIENCE:g} s.")
            yield line.recv()

    def failures(self) -> list[str]:
        """All failures that each says it has had, where that is its next message."""
        return [failure for failures in self.hear() for failure in failures]

    def pids(self) -> Iterator[int]:
        for process in self._processes:
            yield process.pid or 0

    def kill(self) -> None:
        """End them as ``kill -9`` does."""
        for process in self._processes:
            process.kill()
